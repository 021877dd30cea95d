"""The four tasks as LightningModules.

Example:
    >>> from lightning.pytorch import Trainer
    >>> from graphreplay.tasks.modules import PoseModule
    >>> from graphreplay.tasks.scenes import SceneData
    >>> module = PoseModule(capture_network=True)
    >>> Trainer(max_epochs=10).fit(module, SceneData("pose"))
    >>> print(module.replay_report())
"""

from graphreplay.tasks.modules.options import FitOptions
from graphreplay.tasks.modules.tasks import DetectionModule, OrientedModule, PoseModule, SegmentationModule

__all__ = ["DetectionModule", "FitOptions", "OrientedModule", "PoseModule", "SegmentationModule"]
