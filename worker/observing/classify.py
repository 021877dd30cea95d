"""Why a case did not pass, as a failure class: the exception's own word, then the tree's rules, then what is known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from worker.messages import FailureClass, FailureRule

_CLASSES = frozenset(item.value for item in FailureClass)
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_CUDA = re.compile(
    r"\bCUDA(?: driver)? error\b|\bcuda(?:Error|_error)|\bCUDA_ERROR_|\b(?:CUBLAS|CUDNN)_STATUS_|cuDNN error"
)


def classify(exception: Mapping[str, Any], message: str, rules: Sequence[FailureRule]) -> FailureClass:
    """The failure class of an exception as the plugin describes it; ``message`` stands in where there is none."""
    own = exception.get("failure_class")
    if isinstance(own, str) and own in _CLASSES:
        return FailureClass(own)
    kind = str(exception.get("type", ""))
    text = f"{kind}: {exception.get('text', message)}"
    for rule in rules:
        if _matches(rule, text):
            return rule.failure_class
    bases = exception.get("bases", [])
    if "OutOfMemoryError" in bases or _OUT_OF_MEMORY.search(text):
        return FailureClass.OUT_OF_MEMORY
    if kind == "CUDA" or "AcceleratorError" in bases or _CUDA.search(text):
        return FailureClass.CUDA_ERROR
    # pytest.fail and a strict xfail that passes are assertions in another dress.
    if "AssertionError" in bases or kind.endswith("outcomes.Failed") or not kind:
        return FailureClass.ASSERTION
    return FailureClass.EXCEPTION


def _matches(rule: FailureRule, text: str) -> bool:
    """The service refuses what is no regular expression; one that this Python reads otherwise classes nothing."""
    try:
        return re.search(rule.match, text) is not None
    except re.error:
        return False
