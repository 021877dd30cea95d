"""Mean average precision as COCO defines it: greedy matching, thresholds 0.5 to 0.95, precision at 101 recalls.

Source of the definition: https://cocodataset.org/#detection-eval and #keypoints-eval. There are no crowds here and no
ranges of area.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphreplay.errors import OptionError
from graphreplay.tasks.batch import KEYPOINTS, Batch, Predictions
from graphreplay.tasks.metrics.curve import average_precision
from graphreplay.tasks.metrics.gathering import Found, fetched, gathered
from graphreplay.tasks.metrics.matching import matches, ranks
from graphreplay.tasks.metrics.rotated import paired_iou
from graphreplay.tasks.metrics.similarity import box_area, box_iou, keypoint_similarity, mask_iou

KINDS = ("boxes", "rotated", "keypoints", "masks")
THRESHOLDS = tuple((50 + 5 * step) / 100 for step in range(10))
# The keypoints of drawn shapes are as plain as each other.
SIGMA = 0.1
# A shape fills about this share of its box: what the YOLO family takes for an area where no mask is known.
BOX_SHARE = 0.53
UNDEFINED = {"map50": -1.0, "map": -1.0}


class MeanAveragePrecision:
    """Gathers predictions and targets batch by batch; `compute` gives their mean average precision.

    Predictions and batches may lie on any device; each of their tensors is fetched once an update, joined over the
    images. All is counted in float64 on the CPU.

    Args:
        kind: What is compared, one of `KINDS`: boxes by IoU, rotated boxes by the IoU of the exact intersection, masks
            by the IoU of their pixels, keypoints by OKS with 0.53 times the box as the object's area.
        sigmas: (K,) spreads of the keypoints for OKS; 0.1 each where none are given.
        max_detections: The best that count in an image, of each class.

    Raises:
        OptionError: An option has a wrong value.
    """

    def __init__(self, kind: str, sigmas: Sequence[float] | None = None, max_detections: int = 100) -> None:
        if kind not in KINDS:
            raise OptionError(f"kind={kind!r} is unknown; use one of {', '.join(KINDS)}")
        if sigmas is not None and not all(sigma > 0 for sigma in sigmas):
            raise OptionError(f"sigmas={tuple(sigmas)!r} must be positive, one a keypoint")
        if isinstance(max_detections, bool) or not isinstance(max_detections, int) or max_detections < 1:
            raise OptionError(f"max_detections={max_detections!r} must be a whole number of at least 1")
        self.kind = kind
        self.max_detections = max_detections
        self.sigmas = torch.tensor([SIGMA] * KEYPOINTS if sigmas is None else list(sigmas), dtype=torch.float64)
        # By update: of each counted prediction its score, its class, and whether it hit at each threshold ...
        self._found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        # ... and the class of each object.
        self._objects: list[torch.Tensor] = []

    def reset(self) -> None:
        """Forget everything."""
        self._found.clear()
        self._objects.clear()

    def update(self, predictions: Sequence[Predictions], batch: Batch) -> None:
        """Take in the predictions for the images of one batch, in their order.

        Raises:
            ValueError: There are not as many predictions as images, or they lack what `kind` compares.
        """
        self._require(predictions, batch)
        found = gathered(predictions, self.kind)
        present, classes = batch.present.cpu(), batch.classes.cpu()
        truth = fetched(getattr(batch, self.kind))
        may = found.valid[:, :, None] & present[:, None] & (found.classes[:, :, None] == classes[:, None])
        similarity = torch.where(may, self._similarity(found, truth, batch, may), -1)
        hits = matches(similarity, torch.tensor(THRESHOLDS, dtype=torch.float64))
        counted = found.valid & (ranks(found.classes) < self.max_detections)
        self._found.append((found.scores[counted], found.classes[counted], hits[counted]))
        if self.kind == "keypoints":
            present = present & (truth[..., 2] > 0).any(-1)
        self._objects.append(classes[present])

    def compute(self) -> dict[str, float]:
        """`map50` at the threshold 0.5 and `map` over all thresholds, each the mean over the classes with an object.

        Both are -1, as in COCO, where there was no object at all.
        """
        if not self._objects:
            return dict(UNDEFINED)
        scores, classes, hits = (torch.cat(parts) for parts in zip(*self._found, strict=True))
        kinds, counts = torch.cat(self._objects).unique(return_counts=True)
        table = [
            average_precision(scores[classes == kind], hits[classes == kind], count)
            for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)
        ]
        if not table:
            return dict(UNDEFINED)
        mean = torch.stack(table).mean(0)
        return {"map50": mean[0].item(), "map": mean.mean().item()}

    def _require(self, predictions: Sequence[Predictions], batch: Batch) -> None:
        if len(predictions) != len(batch.images):
            raise ValueError(f"{len(predictions)} predictions for {len(batch.images)} images; give one for each")
        if any(getattr(one, self.kind) is None for one in predictions):
            raise ValueError(f"predictions without {self.kind}; MeanAveragePrecision({self.kind!r}) compares them")
        if self.kind == "keypoints" and batch.keypoints.size(2) != len(self.sigmas):
            raise ValueError(f"{batch.keypoints.size(2)} keypoints and {len(self.sigmas)} sigmas; give one for each")

    def _similarity(self, found: Found, truth: torch.Tensor, batch: Batch, may: torch.Tensor) -> torch.Tensor:
        """(B, N, M) float64; what it says of pairs outside of `may` does not count."""
        if self.kind == "boxes":
            return box_iou(found.shapes, truth)
        if self.kind == "masks":
            return mask_iou(found.shapes, truth)
        if self.kind == "keypoints":
            return keypoint_similarity(found.shapes, truth, BOX_SHARE * box_area(fetched(batch.boxes)), self.sigmas)
        similarity = torch.zeros(may.shape, dtype=torch.float64)
        image, one, other = may.nonzero().unbind(1)
        similarity[image, one, other] = paired_iou(found.shapes[image, one], truth[image, other])
        return similarity
