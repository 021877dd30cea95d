"""The switches by which torch picks kernels. A recording has baked them in; the caller may set them at any time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

# torch's public questions for the same take ten times as long, and this is asked in every forward. What an older torch
# does not know yet it does not choose by either.
_NAMES = (
    "_get_cudnn_enabled",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_depthwise_kernel",
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_blas_preferred_backend",
    "_get_linalg_preferred_backend",
    "_get_flash_sdp_enabled",
    "_get_fa3_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled",
)
_OLDER_PRECISIONS = ("_get_cublas_allow_tf32", "_get_cudnn_allow_tf32", "_get_float32_matmul_precision")


def _precisions() -> list[Callable[[], object]]:
    """How float32 is computed. Where torch knows it by operation, the older questions raise once that was set."""
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is None:
        return [getattr(torch._C, name) for name in _OLDER_PRECISIONS]
    return [partial(precision, "cuda", operation) for operation in ("matmul", "conv", "rnn", "all")]


_SWITCHES = [*(getattr(torch._C, name) for name in _NAMES if hasattr(torch._C, name)), *_precisions()]


def kernel_choice() -> tuple[object, ...]:
    """The switches' positions now, and the type that new tensors have by default. Some 3 microseconds."""
    order = tuple(torch._C._get_sdp_priority_order())
    return (torch.get_default_dtype(), order, *[switch() for switch in _SWITCHES])
