"""The networks of the four tasks: images (B, 3, H, W), H and W multiples of 32, to raw maps, a NamedTuple of tensors.

Of an image there are A = HW/64 + HW/256 + HW/1024 anchors. Nothing is decoded here, and no shape depends on a value, so
that `graphreplay` can record the whole forward.
"""

from graphreplay.tasks.networks.maps import BINS, PROTOTYPES, DetectionMaps, OrientedMaps, PoseMaps, SegmentationMaps
from graphreplay.tasks.networks.tasks import DetectionNetwork, OrientedNetwork, PoseNetwork, SegmentationNetwork

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
