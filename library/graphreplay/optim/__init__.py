"""Optimizers of the YOLO family, for fits with and without replay.

Example:
    >>> from graphreplay.optim import MuSGD
    >>> optimizer = MuSGD(MuSGD.groups(network, weight_decay=5e-4), lr=0.01, momentum=0.9)
"""

from graphreplay.optim.musgd import MuSGD
from graphreplay.optim.newton_schulz import orthogonalize, orthogonalize_padded

__all__ = ["MuSGD", "orthogonalize", "orthogonalize_padded"]
