"""The network of each task: images to raw maps."""

from __future__ import annotations

import torch
from torch import nn

from graphreplay.tasks.networks.heads import Branch, MaskHeads, class_branch
from graphreplay.tasks.networks.maps import (
    BINS,
    PROTOTYPES,
    DetectionMaps,
    OrientedMaps,
    PoseMaps,
    SegmentationMaps,
)
from graphreplay.tasks.networks.trunk import Trunk


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
