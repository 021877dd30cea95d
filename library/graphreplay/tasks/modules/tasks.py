"""The LightningModules of the four tasks."""

from __future__ import annotations

from typing import Any

import torch

from graphreplay.errors import OptionError
from graphreplay.tasks import predictions
from graphreplay.tasks.batch import CLASSES, KEYPOINTS, Batch, Predictions
from graphreplay.tasks.errors import NonFiniteError
from graphreplay.tasks.losses import Loss, detection_loss, oriented_loss, pose_loss, segmentation_loss
from graphreplay.tasks.modules.base import TaskModule
from graphreplay.tasks.modules.options import FitOptions
from graphreplay.tasks.networks import (
    DetectionMaps,
    DetectionNetwork,
    OrientedMaps,
    OrientedNetwork,
    PoseMaps,
    PoseNetwork,
    SegmentationMaps,
    SegmentationNetwork,
)


class DetectionModule(TaskModule):
    """Upright boxes.

    Args:
        **options: See `FitOptions`.

    Raises:
        OptionError: An option is wrong.
    """

    kind = "boxes"

    def __init__(self, **options: Any) -> None:
        fit = _without_mask_heads(options)
        super().__init__(DetectionNetwork(CLASSES, fit.width), fit)

    def loss(self, maps: DetectionMaps, batch: Batch) -> Loss:
        return detection_loss(maps, batch)

    def predictions(self, maps: DetectionMaps, size: tuple[int, int]) -> list[Predictions]:
        return predictions.detections(maps, size)


class PoseModule(TaskModule):
    """Boxes and keypoints.

    A keypoint likelihood that is not finite ends the fit. It is noted on the device and read once a window, before the
    optimizer's step: one wait for the GPU (the GradScaler of fp16 has another).

    Args:
        **options: See `FitOptions`.

    Raises:
        OptionError: An option is wrong.
    """

    kind = "keypoints"

    def __init__(self, **options: Any) -> None:
        fit = _without_mask_heads(options)
        super().__init__(PoseNetwork(CLASSES, KEYPOINTS, fit.width), fit)
        self._finite: torch.Tensor | None = None

    def loss(self, maps: PoseMaps, batch: Batch) -> Loss:
        return pose_loss(maps, batch)

    def predictions(self, maps: PoseMaps, size: tuple[int, int]) -> list[Predictions]:
        return predictions.poses(maps, size)

    def note(self, loss: Loss) -> None:
        if self._finite is None or loss.finite is None:
            self._finite = loss.finite
        else:
            self._finite = self._finite & loss.finite

    def on_train_start(self) -> None:
        # A fit that broke off inside a window may have left one behind.
        self._finite = None

    def on_before_optimizer_step(self, _: torch.optim.Optimizer) -> None:
        """The end of a window.

        Raises:
            NonFiniteError: The likelihood of a keypoint was infinite or NaN in one of its batches.
        """
        finite, self._finite = self._finite, None
        if finite is not None and not finite:
            raise NonFiniteError(
                f"the keypoint likelihood is not finite in the window before step {self.trainer.global_step}; "
                "look at its batches, or lower the learning rate"
            )


class OrientedModule(TaskModule):
    """Rotated boxes.

    Args:
        **options: See `FitOptions`.

    Raises:
        OptionError: An option is wrong.
    """

    kind = "rotated"

    def __init__(self, **options: Any) -> None:
        fit = _without_mask_heads(options)
        super().__init__(OrientedNetwork(CLASSES, fit.width), fit)

    def loss(self, maps: OrientedMaps, batch: Batch) -> Loss:
        return oriented_loss(maps, batch)

    def predictions(self, maps: OrientedMaps, size: tuple[int, int]) -> list[Predictions]:
        return predictions.oriented(maps, size)


class SegmentationModule(TaskModule):
    """Boxes and masks.

    Args:
        **options: See `FitOptions`.

    Raises:
        OptionError: An option is wrong.
    """

    kind = "masks"

    def __init__(self, **options: Any) -> None:
        fit = FitOptions.from_keywords(options)
        super().__init__(SegmentationNetwork(CLASSES, fit.width), fit)

    def loss(self, maps: SegmentationMaps, batch: Batch) -> Loss:
        return segmentation_loss(maps, batch)

    def predictions(self, maps: SegmentationMaps, size: tuple[int, int]) -> list[Predictions]:
        return predictions.segments(maps, size)


def _without_mask_heads(options: dict[str, Any]) -> FitOptions:
    fit = FitOptions.from_keywords(options)
    if fit.capture_segment_heads:
        raise OptionError("capture_segment_heads=True needs mask heads, which only SegmentationModule has")
    return fit
