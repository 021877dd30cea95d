"""What the GPU can do."""

from __future__ import annotations

import torch


def has_bfloat16(device: torch.device) -> bool:
    """Whether `device` computes in bfloat16 itself: compute capability 8.0 (Ampere) and later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)
