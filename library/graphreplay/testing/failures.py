"""The ways in which parity fails, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class ParityFailure(AssertionError):  # noqa: N818  # Tests fail by it; "failure" is the project's word.
    """Replay was not shown to be native. `evidence` holds only what JSON can."""

    failure_class: ClassVar[str]

    def __init__(self, message: str, evidence: Mapping[str, object]) -> None:
        super().__init__(message)
        self.evidence = dict(evidence)


class BitwiseMismatch(ParityFailure):
    """The replayed end state differs from the native one."""

    failure_class = "bitwise-mismatch"


class NonFinite(ParityFailure):
    """The replayed fit reached an infinite or NaN value that the native one did not."""

    failure_class = "non-finite"


class Nondeterministic(ParityFailure):
    """Native differs from native, so that nothing can be said about replay."""

    failure_class = "nondeterministic"
