"""Evidence: a digest that binds a table to observations, and the key of what may be compared."""

from __future__ import annotations

from typing import Any

import pytest

from service.results.evidence import comparison_key, digest, gpu_of

CASES = [("a.py::x", 0, "passed", None), ("a.py::x", 1, "failed", "assertion"), ("b.py::y", 0, "skipped", None)]


def test_the_digest_is_of_the_results_alone() -> None:
    """Whatever the order of storing, equal results have one digest; it is a fixed one, for logs quote it."""
    first = digest("tree", "py3.11", "unit", CASES)
    assert first == digest("tree", "py3.11", "unit", reversed(CASES))
    assert first == "87b847d2768274bdd68009a1bb1570624399e0aef40cbe27f00e277ea30cc1b7"


@pytest.mark.parametrize(
    "other",
    [
        ("tree2", "py3.11", "unit", CASES),
        ("tree", "py3.12", "unit", CASES),
        ("tree", "py3.11", "gate", CASES),
        ("tree", "py3.11", "unit", CASES[:2]),
        ("tree", "py3.11", "unit", [("a.py::x", 0, "failed", None), *CASES[1:]]),
        ("tree", "py3.11", "unit", [CASES[0], ("a.py::x", 1, "failed", "bitwise-mismatch"), CASES[2]]),
        ("tree", "py3.11", "unit", [CASES[0], ("a.py::x", 2, "failed", "assertion"), CASES[2]]),
    ],
)
def test_every_other_result_has_another_digest(other: tuple[Any, ...]) -> None:
    """Tree, runtime, suite, each outcome, class and occurrence count."""
    assert digest(*other) != digest("tree", "py3.11", "unit", CASES)


H200 = {"model": "NVIDIA H200", "uuid": "GPU-1"}


@pytest.mark.parametrize(
    ("record", "key", "gpu"),
    [
        ({}, "no GPU / no driver / none / none", None),
        ({"gpus": [H200], "driver": "570.1", "torch": "2.9.1+cu129", "lightning": "2.6.0"},
         "NVIDIA H200 / 570.1 / 2.9.1+cu129 / 2.6.0", "NVIDIA H200"),
        ({"gpus": [H200, {**H200, "uuid": "GPU-2"}], "driver": "570.1"},
         "NVIDIA H200+NVIDIA H200 / 570.1 / none / none", "2 x NVIDIA H200"),
        ({"gpus": [H200, {"model": "NVIDIA A100"}]}, "NVIDIA H200+NVIDIA A100 / no driver / none / none",
         "NVIDIA H200, NVIDIA A100"),
        ({"gpus": 5}, "no GPU / no driver / none / none", None),
        ({"gpus": ["x", 1]}, "no GPU / no driver / none / none", None),
        ({"gpus": None, "torch": "x" * 500}, ("no GPU / no driver / " + "x" * 500)[:400], None),
    ],
)  # fmt: skip
def test_what_must_be_equal_before_bits_are_compared(record: dict[str, Any], key: str, gpu: str | None) -> None:
    """GPU models, driver, torch build and lightning; a record that makes no sense is not an error."""
    assert comparison_key(record) == key
    assert gpu_of(record) == gpu


def test_no_record_names_no_gpu() -> None:
    """An attempt whose environment was never told has none."""
    assert gpu_of(None) is None
