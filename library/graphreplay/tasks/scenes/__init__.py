"""Scenes of drawn shapes with exact boxes, keypoints, rotated boxes and masks, made on the fly.

Example:
    >>> from graphreplay.tasks.scenes import SceneData
    >>> data = SceneData("detection", batch_size=8, sizes=((96, 96), (128, 96)), seed=1)
"""

from graphreplay.tasks.scenes.data import SceneData
from graphreplay.tasks.scenes.scene import Scene, draw_scene

__all__ = ["Scene", "SceneData", "draw_scene"]
