"""Fits with replay end bit for bit where native ones do, and the recordings really were used."""

from __future__ import annotations

import pytest
import torch
from replay_cases import gradients, require_all_equal, watched

from graphreplay import Label
from graphreplay.capability import has_bfloat16
from graphreplay.reference import ReferenceModule, ReferenceNetwork, detection_loss, reference_batches
from graphreplay.testing import Fit, Scenario, prove

PRECISIONS = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
LAYOUTS = {"layouts1": [(2, 64, 64)], "layouts3": [(2, 64, 64), (2, 96, 64), (3, 64, 64)]}
STEPS = 12

pytestmark = pytest.mark.gpu


def prove_reference(precision: str, accumulate: int, shapes: list[tuple[int, int, int]], **trainer: object) -> Fit:
    scenario = Scenario(
        module=ReferenceModule,
        batches=lambda: reference_batches(shapes, STEPS),
        validation=lambda: reference_batches(shapes[:1], 2, seed=2),
        network="network",
        trainer={
            "accelerator": "cuda",
            "devices": 1,
            "max_epochs": 1,
            "precision": PRECISIONS[precision],
            "accumulate_grad_batches": accumulate,
            **trainer,
        },
    )
    return prove(scenario)


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_fit_matches_native(precision: str, accumulate: int, layouts: str) -> None:
    """Each layout is watched once natively, recorded once, and replayed in every later step."""
    shapes = LAYOUTS[layouts]
    proof = prove_reference(precision, accumulate, shapes)
    if precision == "bf16" and not has_bfloat16(torch.device("cuda", 0)):
        assert {one.label for one in proof.report.retirements} == {Label.BF16}
        return
    assert proof.report.retirements == ()
    assert proof.report.recorded == len(shapes)
    assert proof.report.replayed == STEPS - len(shapes)
    assert proof.report.native_by_cause["observed"] == len(shapes)
    assert sum(layout.recomputed for layout in proof.report.layouts) == 0


def test_validation_inside_a_window_runs_native() -> None:
    """Validation every third batch of a window of two uses evaluation mode, and replay goes on behind it."""
    proof = prove_reference("fp16", 2, LAYOUTS["layouts3"], val_check_interval=3)
    assert proof.report.retirements == ()
    assert proof.report.replayed == STEPS - 3
    assert proof.report.native["evaluation"] == 2 * (STEPS // 3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_fit_on_another_device_than_the_current_one_matches(precision: str) -> None:
    """The network on cuda:1, while cuda:0 is current for the caller, in three layouts and windows of two."""
    half = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    other = torch.device("cuda", 1)
    states: dict[bool, list[dict[str, torch.Tensor]]] = {False: [], True: []}
    torch.cuda.set_device(0)
    for replay, seen in states.items():
        torch.manual_seed(3)
        network = ReferenceNetwork().to(other)
        with watched(network, replay) as replaying:
            for step, (images, targets) in enumerate(reference_batches(LAYOUTS["layouts3"], STEPS)):
                with torch.autocast("cuda", half, enabled=half is not torch.float32):
                    outputs = network(images.to(other))
                detection_loss(outputs, [target.to(other) for target in targets]).backward()
                seen.append(gradients(network) | {"random": torch.cuda.get_rng_state(other)})
                if step % 2 == 1:
                    network.zero_grad()
                assert torch.cuda.current_device() == 0
    require_all_equal(states[False], states[True])
    assert replaying.report().retirements == ()
    assert (replaying.report().recorded, replaying.report().replayed) == (3, STEPS - 3)
