"""The losses of the four tasks."""

from graphreplay.tasks.losses.tasks import Loss, detection_loss, oriented_loss, pose_loss, segmentation_loss

__all__ = ["Loss", "detection_loss", "oriented_loss", "pose_loss", "segmentation_loss"]
