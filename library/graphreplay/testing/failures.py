"""The ways in which parity fails, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch

from graphreplay.report import Report
from graphreplay.testing.bits import compare


class ParityFailure(AssertionError):  # Tests fail by it; "failure" is the project's word.
    """Replay was not shown to be native. `evidence` holds only what JSON can."""

    failure_class: ClassVar[str]

    def __init__(self, message: str, evidence: Mapping[str, object]) -> None:
        super().__init__(message)
        self.evidence = dict(evidence)


class BitwiseMismatch(ParityFailure):
    """The replayed end state differs from the native one."""

    failure_class = "bitwise-mismatch"


def require_equal(
    native: Mapping[str, torch.Tensor], replayed: Mapping[str, torch.Tensor], step: int | None = None
) -> None:
    """Compare two states of your own making, by the tensors' names.

    Args:
        native: What it must be.
        replayed: What it is.
        step: Which step the states belong to, from 0; for the evidence.

    Raises:
        BitwiseMismatch: They differ in any bit.
    """
    difference = compare(native, replayed)
    if difference is not None:
        difference = replace(difference, step=step)
        raise BitwiseMismatch(f"replayed differs from native: {difference}", difference.evidence())


class NonFinite(ParityFailure):
    """The replayed fit reached an infinite or NaN value that the native one did not."""

    failure_class = "non-finite"


class Nondeterministic(ParityFailure):
    """Native differs from native, so that nothing can be said about replay."""

    failure_class = "nondeterministic"


class NotReplayed(ParityFailure):
    """The fit ended as natively, but was not replayed as it should have been.

    Args:
        message: What is missing.
        report: The replay's.
    """

    failure_class = "assertion"

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message, {"report": report.as_dict()})
