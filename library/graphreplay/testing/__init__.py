"""Proof that replay changes nothing: fit one module natively twice and replayed once, and compare the bits.

    from graphreplay.testing import Scenario, prove

    proof = prove(Scenario(module=MyModule, batches=my_batches, trainer={"max_epochs": 1, "precision": "16-mixed"}))
    assert proof.report.replayed > 0

The exceptions carry `failure_class` and a JSON-able `evidence`, which a test runner can store as data.
"""

from graphreplay.testing.bits import Difference, compare, same_bits, ulp_distance
from graphreplay.testing.endstate import EndState
from graphreplay.testing.failures import (
    BitwiseMismatch,
    Nondeterministic,
    NonFinite,
    NotReplayed,
    ParityFailure,
    require_equal,
)
from graphreplay.testing.scenario import Fit, Scenario, fit, prove

__all__ = [
    "BitwiseMismatch",
    "Difference",
    "EndState",
    "Fit",
    "NonFinite",
    "Nondeterministic",
    "NotReplayed",
    "ParityFailure",
    "Scenario",
    "compare",
    "fit",
    "prove",
    "require_equal",
    "same_bits",
    "ulp_distance",
]
