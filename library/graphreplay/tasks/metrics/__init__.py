"""Mean average precision of boxes, rotated boxes, keypoints and masks, with the similarities that it stands on.

Example:
    >>> from graphreplay.tasks.metrics import MeanAveragePrecision
    >>> precision = MeanAveragePrecision("boxes")
    >>> precision.update(predictions, batch)
    >>> precision.compute()["map50"]
"""

from graphreplay.tasks.metrics.average_precision import MeanAveragePrecision
from graphreplay.tasks.metrics.rotated import rotated_iou
from graphreplay.tasks.metrics.similarity import box_iou, keypoint_similarity, mask_iou

__all__ = ["MeanAveragePrecision", "box_iou", "keypoint_similarity", "mask_iou", "rotated_iou"]
