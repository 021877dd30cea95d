"""The networks of the four tasks: images (B, 3, H, W), H and W multiples of 32, to raw maps, a NamedTuple of tensors.

Of an image there are A = HW/64 + HW/256 + HW/1024 anchors. Nothing is decoded here, and no shape depends on a value, so
that `graphreplay` can record the whole forward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from graphreplay.tasks.networks.heads import Branch, MaskHeads, class_branch
from graphreplay.tasks.networks.trunk import Trunk

__all__ = [
    "BINS",
    "PROTOTYPES",
    "DetectionMaps",
    "DetectionNetwork",
    "OrientedMaps",
    "OrientedNetwork",
    "PoseMaps",
    "PoseNetwork",
    "SegmentationMaps",
    "SegmentationNetwork",
]

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


class DetectionNetwork(nn.Module):
    """Images to `DetectionMaps`.

    Args:
        classes: Number of classes.
        width: Channels after the stem, an even number.
    """

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.trunk = Trunk(width)
        channels = self.trunk.channels
        self.sides = Branch(channels, channels[0], 4 * BINS, 1.0)
        self.classes = class_branch(channels, classes)

    def forward(self, images: torch.Tensor) -> DetectionMaps:
        features = self.trunk(images)
        return DetectionMaps(self.sides(features), self.classes(features))


class PoseNetwork(DetectionNetwork):
    """Images to `PoseMaps`.

    Args:
        classes: Number of classes.
        keypoints: K, of each object.
        width: Channels after the stem, an even number.
    """

    def __init__(self, classes: int, keypoints: int, width: int = 8) -> None:
        super().__init__(classes, width)
        channels = self.trunk.channels
        self.keypoints = Branch(channels, channels[0], 2 * keypoints)
        self.scales = Branch(channels, channels[0], 2 * keypoints)

    def forward(self, images: torch.Tensor) -> PoseMaps:  # type: ignore[override]  # A task has its own maps.
        features = self.trunk(images)
        return PoseMaps(self.sides(features), self.classes(features), self.keypoints(features), self.scales(features))


class OrientedNetwork(DetectionNetwork):
    """Images to `OrientedMaps`. Arguments as of `DetectionNetwork`."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__(classes, width)
        channels = self.trunk.channels
        self.angles = Branch(channels, channels[0], 1)

    def forward(self, images: torch.Tensor) -> OrientedMaps:  # type: ignore[override]
        features = self.trunk(images)
        return OrientedMaps(self.sides(features), self.classes(features), self.angles(features))


class SegmentationNetwork(DetectionNetwork):
    """Images to `SegmentationMaps`. Arguments as of `DetectionNetwork`.

    `mask_heads` is a module of its own, so that it can be replayed alone from the features.
    """

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__(classes, width)
        self.mask_heads = MaskHeads(self.trunk.channels, PROTOTYPES)

    def forward(self, images: torch.Tensor) -> SegmentationMaps:  # type: ignore[override]
        features = self.trunk(images)
        sides, classes = self.sides(features), self.classes(features)
        # Called last, so that autograd goes through them first: it then adds their two gradients of level 3 to each
        # other before it adds those of the other parts, which is the order that a replay of them has.
        coefficients, prototypes = self.mask_heads(*features)
        return SegmentationMaps(sides, classes, coefficients, prototypes)
