"""Why a case did not pass, as a failure class: the exception's own word, then the tree's rules, then what is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from worker.messages import FailureClass

_CLASSES = frozenset(item.value for item in FailureClass)
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_CUDA = re.compile(
    r"\bCUDA(?: driver)? error\b|\bcuda(?:Error|_error)|\bCUDA_ERROR_|\b(?:CUBLAS|CUDNN)_STATUS_|cuDNN error"
)


def classify(exception: Mapping[str, Any], message: str, by_rule: Callable[[str], FailureClass | None]) -> FailureClass:
    """The failure class of an exception as the plugin describes it; ``message`` stands in where there is none, and
    ``by_rule`` is the class that the tree's own rules give a text."""
    own = exception.get("failure_class")
    if isinstance(own, str) and own in _CLASSES:
        return FailureClass(own)
    kind = str(exception.get("type", ""))
    text = f"{kind}: {exception.get('text', message)}"
    if found := by_rule(text):
        return found
    bases = exception.get("bases", [])
    if "OutOfMemoryError" in bases or _OUT_OF_MEMORY.search(text):
        return FailureClass.OUT_OF_MEMORY
    if kind == "CUDA" or "AcceleratorError" in bases or _CUDA.search(text):
        return FailureClass.CUDA_ERROR
    # pytest.fail and a strict xfail that passes are assertions in another dress.
    if "AssertionError" in bases or kind.endswith("outcomes.Failed") or not kind:
        return FailureClass.ASSERTION
    return FailureClass.EXCEPTION
