"""What goes into a task and what comes out: a batch of images with targets, and the predictions for one image."""

from __future__ import annotations

from typing import NamedTuple

import torch

TASKS = ("detection", "pose", "oriented", "segmentation")
CLASSES = 3
KEYPOINTS = 4
# Places for objects of an image. Fixed, so that no shape of a loss depends on the data.
MAX_OBJECTS = 8
# Image pixels along one side of a pixel of a mask.
MASK_STRIDE = 4


class Batch(NamedTuple):
    """Images (B, 3, H, W) with targets in M = `MAX_OBJECTS` places each, of which `present` says which hold an object.

    All other targets are 0 where no object is. Pixel (0, 0) covers 0 to 1 in both directions, so boxes and points are
    in pixels from the image's upper left corner.

    Attributes:
        images: (B, 3, H, W) float32, 0 to 1. H and W are multiples of 32.
        present: (B, M) bool.
        classes: (B, M) int64.
        boxes: (B, M, 4) float32: x1, y1, x2, y2.
        keypoints: (B, M, K, 3) float32: x, y, and 1 where the point is visible, else 0. K is 0 where the task has none.
        rotated: (B, M, 5) float32: centre x, centre y, width, height, angle in radians in [-pi/4, 3 pi/4). The width
            lies along (cos angle, sin angle), with x to the right and y down.
        masks: (B, M, H / 4, W / 4) uint8, 0 or 1; (B, M, 0, 0) where the task has none.
    """

    images: torch.Tensor
    present: torch.Tensor
    classes: torch.Tensor
    boxes: torch.Tensor
    keypoints: torch.Tensor
    rotated: torch.Tensor
    masks: torch.Tensor


class Predictions(NamedTuple):
    """The N objects found in one image. The kinds of shape that the task does not have are None.

    Attributes:
        scores: (N,) float.
        classes: (N,) int64.
        boxes: (N, 4) float, as in `Batch`.
        rotated: (N, 5) float, as in `Batch`.
        keypoints: (N, K, 2) float: x, y in pixels.
        masks: (N, H / 4, W / 4) bool.
    """

    scores: torch.Tensor
    classes: torch.Tensor
    boxes: torch.Tensor | None = None
    rotated: torch.Tensor | None = None
    keypoints: torch.Tensor | None = None
    masks: torch.Tensor | None = None
