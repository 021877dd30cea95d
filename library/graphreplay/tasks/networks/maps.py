"""What the networks give: raw maps, nothing of which is decoded."""

from __future__ import annotations

from typing import NamedTuple

import torch

# Each side of a box is a distribution over distances of 0 to BINS - 1 strides.
BINS = 16
PROTOTYPES = 16


class DetectionMaps(NamedTuple):
    """What detection says of each anchor.

    Attributes:
        sides: (B, 4 BINS, A) logits of the distances left, top, right and bottom.
        classes: (B, classes, A) logits.
    """

    sides: torch.Tensor
    classes: torch.Tensor


class PoseMaps(NamedTuple):
    """What pose says of each anchor.

    Attributes:
        sides: See `DetectionMaps`.
        classes: See `DetectionMaps`.
        keypoints: (B, 2 K, A): x and y of each keypoint from the anchor's centre, in strides.
        scales: (B, 2 K, A): how sure they are, see `graphreplay.tasks.losses.keypoints`.
    """

    sides: torch.Tensor
    classes: torch.Tensor
    keypoints: torch.Tensor
    scales: torch.Tensor


class OrientedMaps(NamedTuple):
    """What oriented boxes are made of, for each anchor.

    Attributes:
        sides: As of `DetectionMaps`, along the box's own axes.
        classes: See `DetectionMaps`.
        angles: (B, 1, A) before the sigmoid.
    """

    sides: torch.Tensor
    classes: torch.Tensor
    angles: torch.Tensor


class SegmentationMaps(NamedTuple):
    """What segmentation says of each anchor, and the prototypes.

    Attributes:
        sides: See `DetectionMaps`.
        classes: See `DetectionMaps`.
        coefficients: (B, PROTOTYPES, A).
        prototypes: (B, PROTOTYPES, H / 4, W / 4).
    """

    sides: torch.Tensor
    classes: torch.Tensor
    coefficients: torch.Tensor
    prototypes: torch.Tensor
