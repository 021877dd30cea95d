"""The loss of each task: a network's maps and a batch of targets to one value.

Everything is computed in float32, whatever autocast gave the network. No shape and no branch depends on a value and
nothing is read back to the host, so a step never waits for the GPU here; every sum has a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from graphreplay.tasks.anchors import Anchors, anchors
from graphreplay.tasks.batch import Batch
from graphreplay.tasks.losses.assignment import Assignment, assign
from graphreplay.tasks.losses.boxes import complete_iou, decode, inside, iou, product, side_loss
from graphreplay.tasks.losses.keypoints import decode_keypoints, decode_scales, residual_loss, similarity_loss
from graphreplay.tasks.losses.masks import mask_loss
from graphreplay.tasks.losses.rotated import decode_rotated, inside_rotated, probabilistic_iou, reach
from graphreplay.tasks.networks import DetectionMaps, OrientedMaps, PoseMaps, SegmentationMaps

# What each part counts: boxes, classes and sides as in YOLOv8, the others so that they weigh about as much as boxes.
_WEIGHTS = {
    "boxes": 7.5,
    "sides": 1.5,
    "classes": 0.5,
    "similarity": 12.0,
    "residuals": 2.0,
    "masks": 2.5,
}
# In pixels: a square of this side holds the centre of a cell of the finest stride, however it is turned.
_SMALLEST = 12.0


class Loss(NamedTuple):
    """A loss.

    Attributes:
        total: The weighted sum of all parts, to call `backward` on.
        parts: What it was summed from, without weights or gradients, by name.
        finite: Whether the likelihood of the keypoints is finite, a bool tensor; None where there are none.
    """

    total: torch.Tensor
    parts: dict[str, torch.Tensor]
    finite: torch.Tensor | None = None


class _Found(NamedTuple):
    """What the parts of a loss have in common: anchors, their assignment, and the two losses every task has."""

    anchors: Anchors
    assignment: Assignment
    parts: dict[str, torch.Tensor]

    def mean(self, each: torch.Tensor) -> torch.Tensor:
        """The mean of a loss (B, A) over positive anchors, weighted by alignment; 0 without any."""
        return (each * self.assignment.alignment).sum() / self.assignment.total()


def detection_loss(maps: DetectionMaps, batch: Batch) -> Loss:
    """Complete IoU and distribution focal loss of the boxes, binary cross-entropy of the classes."""
    with _full_precision(batch):
        return _summed(_upright(maps.sides.float(), maps.classes.float(), batch))


def pose_loss(maps: PoseMaps, batch: Batch) -> Loss:
    """`detection_loss`, and of the visible keypoints similarity and the likelihood of their residuals."""
    with _full_precision(batch):
        found = _upright(maps.sides.float(), maps.classes.float(), batch)
        points = decode_keypoints(maps.keypoints.float(), found.anchors)
        targets = found.assignment.of_owner(batch.keypoints)
        corner, opposite = found.assignment.of_owner(batch.boxes).chunk(2, -1)
        area = product(opposite - corner).clamp(min=_SMALLEST)
        residual = residual_loss(points, decode_scales(maps.scales.float()), targets[..., :2], area)
        similarity = similarity_loss(points, targets[..., :2], area)
        visible = targets[..., 2]
        share = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        found.parts["similarity"] = found.mean((similarity * share).sum(-1))
        found.parts["residuals"] = found.mean((residual * share).sum(-1))
        # Of all anchors: one that answers for nothing adds 0 to the value, but 0 times infinity to the gradients.
        return _summed(found, residual.isfinite().all())


def oriented_loss(maps: OrientedMaps, batch: Batch) -> Loss:
    """Probabilistic IoU and distribution focal loss of the rotated boxes, binary cross-entropy of the classes."""
    with _full_precision(batch):
        at = _anchors(batch)
        sides, classes = maps.sides.float(), maps.classes.float()
        boxes = decode_rotated(sides, maps.angles.float(), at)
        with torch.no_grad():
            overlaps = probabilistic_iou(batch.rotated[:, :, None], boxes[:, None])
            within = inside_rotated(batch.rotated, at, _SMALLEST)
        assignment = assign(classes.detach().sigmoid(), overlaps, within, batch.classes, batch.present)
        found = _Found(at, assignment, {})
        targets = _targets(assignment, batch.rotated, boxes)
        found.parts["boxes"] = found.mean(1 - probabilistic_iou(boxes, targets))
        found.parts["sides"] = found.mean(side_loss(sides, reach(targets, at.points) / at.strides[:, None]))
        found.parts["classes"] = _class_loss(classes, batch, assignment)
        return _summed(found)


def segmentation_loss(maps: SegmentationMaps, batch: Batch) -> Loss:
    """`detection_loss`, and the binary cross-entropy of the masks."""
    with _full_precision(batch):
        found = _upright(maps.sides.float(), maps.classes.float(), batch)
        coefficients, prototypes = maps.coefficients.float(), maps.prototypes.float()
        found.parts["masks"] = mask_loss(coefficients, prototypes, batch.masks, batch.boxes, found.assignment)
        return _summed(found)


def _full_precision(batch: Batch) -> torch.autocast:
    return torch.autocast(batch.images.device.type, enabled=False)


def _anchors(batch: Batch) -> Anchors:
    return anchors(*batch.images.shape[2:], batch.images.device)


def _upright(sides: torch.Tensor, classes: torch.Tensor, batch: Batch) -> _Found:
    """Assign upright boxes, with their losses as the first parts."""
    at = _anchors(batch)
    boxes = decode(sides, at)
    with torch.no_grad():
        overlaps, within = iou(batch.boxes[:, :, None], boxes[:, None]), inside(batch.boxes, at, _SMALLEST)
    assignment = assign(classes.detach().sigmoid(), overlaps, within, batch.classes, batch.present)
    found = _Found(at, assignment, {})
    targets = _targets(assignment, batch.boxes, boxes)
    found.parts["boxes"] = found.mean(1 - complete_iou(boxes, targets))
    aims = torch.cat([at.points - targets[..., :2], targets[..., 2:] - at.points], -1) / at.strides[:, None]
    found.parts["sides"] = found.mean(side_loss(sides, aims))
    found.parts["classes"] = _class_loss(classes, batch, assignment)
    return found


def _targets(assignment: Assignment, truth: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
    """What each anchor's box should be. Where it answers for nothing, its own prediction: that has finite gradients."""
    return torch.where(assignment.positive[..., None], assignment.of_owner(truth), predicted.detach())


def _class_loss(classes: torch.Tensor, batch: Batch, assignment: Assignment) -> torch.Tensor:
    """Binary cross-entropy with the alignment in the object's class, 0 in others, over the sum of alignments."""
    kinds = torch.arange(classes.size(1), device=classes.device)[:, None]
    aims = (assignment.of_owner(batch.classes)[:, None] == kinds) * assignment.alignment[:, None]
    return functional.binary_cross_entropy_with_logits(classes, aims, reduction="sum") / assignment.total()


def _summed(found: _Found, finite: torch.Tensor | None = None) -> Loss:
    total = sum(_WEIGHTS[name] * part for name, part in found.parts.items())
    return Loss(total, {name: part.detach() for name, part in found.parts.items()}, finite)  # type: ignore[arg-type]
