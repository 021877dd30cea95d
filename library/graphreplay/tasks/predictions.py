"""From a network's maps to the objects of each image. For validation: here the host may wait for the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from graphreplay.tasks.anchors import anchors
from graphreplay.tasks.batch import Predictions
from graphreplay.tasks.losses.boxes import decode, iou
from graphreplay.tasks.losses.keypoints import decode_keypoints
from graphreplay.tasks.losses.masks import mask_logits, within
from graphreplay.tasks.losses.rotated import decode_rotated, probabilistic_iou
from graphreplay.tasks.networks import DetectionMaps, OrientedMaps, PoseMaps, SegmentationMaps

# Anchors of an image that are looked at, objects that are kept, and the least score and most overlap of those.
CANDIDATES, MOST = 200, 50
LEAST_SCORE = 0.001
MOST_OVERLAP = 0.6
# Probabilistic IoU falls faster than that of boxes.
MOST_ROTATED_OVERLAP = 0.5

Overlap = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Size = tuple[int, int]


@torch.no_grad()
def detections(maps: DetectionMaps, size: Size) -> list[Predictions]:
    """Boxes of each image, of `size` (height, width) in pixels; best first, after suppression within a class."""
    sides, classes = maps.sides.float(), maps.classes.float()
    boxes = decode(sides, anchors(*size, sides.device))
    found = _suppressed(classes.sigmoid(), boxes, iou, MOST_OVERLAP)
    return [
        Predictions(scores, kinds, boxes=boxes[image, picked]) for image, (scores, kinds, picked) in enumerate(found)
    ]


@torch.no_grad()
def poses(maps: PoseMaps, size: Size) -> list[Predictions]:
    """Boxes and keypoints of each image. See `detections`."""
    at = anchors(*size, maps.sides.device)
    boxes = decode(maps.sides.float(), at)
    points = decode_keypoints(maps.keypoints.float(), at)
    found = _suppressed(maps.classes.float().sigmoid(), boxes, iou, MOST_OVERLAP)
    return [
        Predictions(scores, kinds, boxes=boxes[image, picked], keypoints=points[image, picked])
        for image, (scores, kinds, picked) in enumerate(found)
    ]


@torch.no_grad()
def oriented(maps: OrientedMaps, size: Size) -> list[Predictions]:
    """Rotated boxes of each image, suppressed by probabilistic IoU. See `detections`."""
    boxes = decode_rotated(maps.sides.float(), maps.angles.float(), anchors(*size, maps.sides.device))
    found = _suppressed(maps.classes.float().sigmoid(), boxes, probabilistic_iou, MOST_ROTATED_OVERLAP)
    return [
        Predictions(scores, kinds, rotated=boxes[image, picked]) for image, (scores, kinds, picked) in enumerate(found)
    ]


@torch.no_grad()
def segments(maps: SegmentationMaps, size: Size) -> list[Predictions]:
    """Boxes and masks of each image, the masks cropped to the boxes. See `detections`."""
    boxes = decode(maps.sides.float(), anchors(*size, maps.sides.device))
    prototypes, coefficients = maps.prototypes.float(), maps.coefficients.float().transpose(1, 2)
    found = _suppressed(maps.classes.float().sigmoid(), boxes, iou, MOST_OVERLAP)
    whole = []
    for image, (scores, kinds, picked) in enumerate(found):
        logits = mask_logits(coefficients[None, image, picked], prototypes[None, image])[0]
        masks = (logits > 0) & within(boxes[image, picked], *prototypes.shape[2:])
        whole.append(Predictions(scores, kinds, boxes=boxes[image, picked], masks=masks))
    return whole


def _suppressed(
    scores: torch.Tensor, boxes: torch.Tensor, overlap: Overlap, most: float
) -> Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The anchors of each image that are left after greedy suppression within a class, best first.

    Args:
        scores: (B, classes, A).
        boxes: (B, A, ...), as `overlap` takes them.
        overlap: Of boxes that broadcast.
        most: The overlap above which the less sure of two goes.

    Returns:
        For each image scores, classes and anchors, (N,) each.
    """
    scores, classes = scores.max(1)
    best = scores.topk(min(CANDIDATES, scores.size(1)), 1)
    left = boxes.gather(1, best.indices[..., None].expand(-1, -1, boxes.size(2)))
    kinds = classes.gather(1, best.indices)
    same = kinds[:, :, None] == kinds[:, None]
    rivals = (same & (overlap(left[:, :, None], left[:, None]) > most)).triu(1)
    keep = _greedy(rivals) & (best.values > LEAST_SCORE)
    rows = zip(best.values, kinds, best.indices, keep, strict=True)
    return [tuple(part[kept][:MOST] for part in parts) for *parts, kept in rows]


def _greedy(rivals: torch.Tensor) -> torch.Tensor:
    """Which of N go on, best first, where none goes on that has a better rival which does.

    Rounds until nothing changes, each over all pairs at once: after n rounds the first n are decided.

    Args:
        rivals: (B, N, N) bool, above the diagonal: whether the first excludes the second.
    """
    keep = torch.ones(rivals.shape[:2], dtype=torch.bool, device=rivals.device)
    while True:
        again = ~(rivals & keep[:, :, None]).any(1)
        if torch.equal(again, keep):
            return keep
        keep = again
