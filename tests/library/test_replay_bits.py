"""Comparison is of bits: NaN equals the same NaN, 0.0 differs from -0.0, and failures carry evidence."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from lightning.pytorch import LightningModule

from graphreplay.reference import ReferenceModule, reference_batches
from graphreplay.testing import (
    BitwiseMismatch,
    EndState,
    Fit,
    Nondeterministic,
    NonFinite,
    Scenario,
    compare,
    prove,
    require_equal,
    same_bits,
    scenario,
    ulp_distance,
)

NAN = float("nan")
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_equals_itself_and_zero_differs_from_minus_zero(dtype: torch.dtype) -> None:
    assert same_bits(torch.tensor([NAN, 1.0], dtype=dtype), torch.tensor([NAN, 1.0], dtype=dtype))
    assert not same_bits(torch.tensor(0.0, dtype=dtype), torch.tensor(-0.0, dtype=dtype))


def test_another_nan_differs() -> None:
    quiet = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert not same_bits(quiet[:1], quiet[1:])


def test_form_counts_but_stride_does_not() -> None:
    x = torch.rand(3, 2)
    assert same_bits(x, x.t().contiguous().t())
    assert not same_bits(x, x.reshape(2, 3))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert same_bits(torch.tensor([True]), torch.tensor([True]))
    assert not same_bits(torch.tensor([1 + 0j]), torch.tensor([1 - 0j]).conj().resolve_conj())


@pytest.mark.parametrize("dtype", FLOATS)
def test_ulp_distance_counts_steps(dtype: torch.dtype) -> None:
    one = torch.ones(1, dtype=dtype)
    up = torch.nextafter(one, one * 2) if dtype is not torch.float16 else torch.tensor([1 + 2**-10], dtype=dtype)
    assert ulp_distance(one, up) == 1
    assert ulp_distance(torch.zeros(1, dtype=dtype), -torch.zeros(1, dtype=dtype)) == 1
    assert ulp_distance(one, one) == 0


def test_ulp_distance_at_the_ends() -> None:
    """From the lowest to the highest float64 it does not overflow; NaN has no distance; integers neither."""
    ends = torch.tensor([-math.inf], dtype=torch.float64), torch.tensor([math.inf], dtype=torch.float64)
    assert ulp_distance(*ends) == 2 * 0x7FF0000000000000 + 1
    assert ulp_distance(torch.tensor([NAN]), torch.tensor([1.0])) is None
    assert ulp_distance(torch.tensor([NAN, 2.0]), torch.tensor([1.0, 2.0])) == 0
    assert ulp_distance(torch.tensor([1]), torch.tensor([2])) is None
    assert ulp_distance(torch.zeros(1), torch.zeros(2)) is None


def test_difference_names_the_first_and_counts() -> None:
    left = {"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2), "gone": torch.ones(1)}
    right = {"a": torch.ones(2), "b": torch.tensor([1.0, 1 + 2**-22]), "c": torch.tensor([1.0, 1 + 2**-23])}
    found = compare(left, right)
    assert found is not None
    assert found.evidence() == {"tensor": "b", "differing": 3, "of": 4, "largest_ulp": 2, "step": None}
    assert compare(left, dict(left)) is None


def test_require_equal_names_the_step() -> None:
    require_equal({"a": torch.ones(1)}, {"a": torch.ones(1)}, 3)
    with pytest.raises(BitwiseMismatch, match="1 of 1 tensors differ, first a, by up to 1 ULP, from step 3") as caught:
        require_equal({"a": torch.ones(1)}, {"a": torch.tensor([1 + 2**-23])}, 3)
    assert caught.value.evidence["step"] == 3


def end(losses: list[float], **tensors: float) -> Fit:
    named = {f"module.{name}": torch.tensor(value) for name, value in tensors.items()}
    return Fit(EndState(named, torch.tensor(losses)), scenario.Report((), ()))


def fits(monkeypatch: pytest.MonkeyPatch, native: Fit, again: Fit, replayed: Fit) -> Scenario:
    """A scenario whose three fits end as given: `prove` is what is tested here, not fitting."""
    ends = iter([native, again, replayed])
    monkeypatch.setattr(scenario, "fit", lambda *_, **__: next(ends))
    return Scenario(LightningModule, list)


NATIVE = end([1.0, 0.5], w=2.0, v=1.0)


def test_mismatch_carries_class_and_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BitwiseMismatch, match=r"2 of 3 tensors differ, first module\.w") as caught:
        prove(fits(monkeypatch, NATIVE, NATIVE, end([1.0, 0.75], w=-2.0, v=1.0)))
    assert caught.value.failure_class == "bitwise-mismatch"
    evidence = json.loads(json.dumps(caught.value.evidence))
    assert (evidence["tensor"], evidence["differing"], evidence["of"], evidence["step"]) == ("module.w", 2, 3, 1)


def test_non_finite_names_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NonFinite, match="loss is not finite at step 1") as caught:
        prove(fits(monkeypatch, NATIVE, NATIVE, end([1.0, NAN], w=2.0, v=1.0)))
    assert caught.value.failure_class == "non-finite"
    assert caught.value.evidence["step"] == 1


def test_non_finite_weight_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NonFinite, match=r"module\.v is not finite at the end"):
        prove(fits(monkeypatch, NATIVE, NATIVE, end([1.0, 0.5], w=2.0, v=math.inf)))


def test_native_unlike_native_never_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the replayed fit equals one of them."""
    with pytest.raises(Nondeterministic) as caught:
        prove(fits(monkeypatch, NATIVE, end([1.0, 0.5], w=2.0, v=1.5), NATIVE))
    assert caught.value.failure_class == "nondeterministic"


def test_equal_ends_pass_with_their_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(NATIVE, state=replace(NATIVE.state, losses=torch.tensor([1.0, NAN])))
    assert prove(fits(monkeypatch, broken, broken, broken)) is broken


def test_real_fits_from_one_seed_are_equal_and_from_another_are_not() -> None:
    """The state that is compared really holds the fit: another seed changes it."""

    def fitted(seed: int) -> EndState:
        made = Scenario(
            module=ReferenceModule,
            batches=lambda: reference_batches([(2, 64, 64)], 2),
            trainer={"accelerator": "cpu", "max_epochs": 1},
            network="network",
            seed=seed,
        )
        return scenario.fit(made, replay=False).state

    first = fitted(0)
    assert first.difference(fitted(0)) is None
    other = first.difference(fitted(1))
    assert other is not None
    assert other.step == 0
