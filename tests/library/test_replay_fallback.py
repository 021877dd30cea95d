"""Where nothing can be recorded, the network runs native, says so, and is left as it was."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader

import graphreplay.capability
from graphreplay import Label, NetworkReplay, ReplayCallback, RetiredError, capture_network
from graphreplay.reference import ReferenceModule, ReferenceNetwork, reference_batches
from graphreplay.testing import Scenario, compare, fit, prove

SHAPES = [(2, 64, 64)]


def linear() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def train(network: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    for _ in range(3):
        network(torch.rand(2, 3)).sum().backward()
    return {name: weight.grad.clone() for name, weight in network.named_parameters()}


def test_cpu_training_runs_native_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Every training forward is counted, the reason stands in the report once and in the log once."""
    network = linear()
    twin = copy.deepcopy(network)
    with NetworkReplay(network) as replay, caplog.at_level(logging.WARNING, "graphreplay"):
        replayed = train(network)
    assert compare(train(twin), replayed) is None
    report = replay.report()
    assert report.native == {"device": 3}
    assert [(one.layout, one.label) for one in report.retirements] == [("*", Label.DEVICE)]
    assert "cpu" in report.retirements[0].reason
    assert [record.message for record in caplog.records] == [
        f"replay retired * as device: {report.retirements[0].reason}"
    ]


def test_evaluation_and_no_grad_run_native() -> None:
    network = linear()
    with NetworkReplay(network) as replay:
        with torch.no_grad():
            network(torch.rand(1, 3))
        network.eval()
        network(torch.rand(1, 3))
    assert replay.report().native == {"evaluation": 2}
    assert replay.report().retirements == ()


def test_strict_raises_on_cpu() -> None:
    network = linear()
    with NetworkReplay(network, strict=True), pytest.raises(RetiredError, match="device") as caught:
        network(torch.rand(1, 3))
    assert caught.value.label is Label.DEVICE
    assert caught.value.layout == "*"


def test_retiring_by_hand_is_final() -> None:
    network = linear()
    with NetworkReplay(network) as replay:
        replay.retire(Label.DISTRIBUTED)
        network(torch.rand(1, 3))
    assert [one.label for one in replay.report().retirements] == [Label.DISTRIBUTED]
    assert replay.report().native == {"distributed": 1}


def test_network_is_as_before_while_attached() -> None:
    """Neither the module tree, the state, nor what an optimizer sees has changed."""
    network = linear()
    names = [name for name, _ in network.named_modules()]
    keys, weights = list(network.state_dict()), list(network.parameters())
    with NetworkReplay(network):
        assert [name for name, _ in network.named_modules()] == names
        assert list(network.state_dict()) == keys
        assert all(now is then for now, then in zip(network.parameters(), weights, strict=True))
        assert type(network) is nn.Sequential
    assert "forward" not in vars(network)


def test_copies_of_a_replayed_network_are_native() -> None:
    """An EMA made by deepcopy, and a pickled network, run themselves and not the original."""
    network = linear()
    with NetworkReplay(network) as replay:
        copied, loaded = copy.deepcopy(network), pickle.loads(pickle.dumps(network))  # noqa: S301  # Its own bytes.
        for one in (copied, loaded):
            one.eval()
            one[0].weight.data.zero_()
            one[0].bias.data.zero_()
            assert compare({"": one(torch.ones(1, 3))}, {"": one[2].bias.detach()[None]}) is None
        network(torch.ones(1, 3))
    assert replay.report().native == {"device": 1}


def test_copies_of_a_module_that_holds_a_replay() -> None:
    """The one line in a LightningModule does not stand in the way of copying it."""
    module = ReferenceModule()
    module.replay = capture_network(module.network)
    copied = copy.deepcopy(module)
    assert copied.replay is not module.replay
    assert copied.replay.network is copied.network
    assert list(copied.state_dict()) == list(ReferenceModule().state_dict())
    torch.save(module.state_dict(), io.BytesIO())
    module.replay.close()


def test_forward_wrapped_meanwhile_still_leads_to_the_network() -> None:
    network = linear()
    replay = NetworkReplay(network).attach()
    inner = network.forward
    network.forward = lambda x: inner(x + 0)
    replay.detach()
    assert network(torch.ones(1, 3)).shape == (1, 2)
    assert replay.report().native == {}


def test_fit_on_cpu_matches_native() -> None:
    """The callback in a CPU fit: native, counted, the end state bit for bit the same."""
    scenario = Scenario(
        module=ReferenceModule,
        batches=lambda: reference_batches(SHAPES, 4),
        validation=lambda: reference_batches(SHAPES, 1),
        trainer={"accelerator": "cpu", "max_epochs": 1, "accumulate_grad_batches": 2},
        network="network",
    )
    proof = prove(scenario)
    assert proof.report.native == {"evaluation": 1, "device": 4}
    assert any(name.startswith("optimizer.0.state.") for name in proof.state.tensors)
    assert len(proof.state.losses) == 4


def test_fit_that_fails_gives_the_network_back() -> None:
    """An exception in the fit leaves no replay attached."""
    modules = []

    class Failing(ReferenceModule):
        def on_train_start(self) -> None:
            modules.append(self)
            assert "forward" in vars(self.network)

        def training_step(self, *_: object) -> torch.Tensor:
            raise LookupError("no target")

    trainer = {"accelerator": "cpu", "max_epochs": 1}
    scenario = Scenario(Failing, lambda: reference_batches(SHAPES, 1), trainer=trainer, network="network")
    with pytest.raises(LookupError):
        fit(scenario, replay=True)
    assert "forward" not in vars(modules[0].network)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith("replay of this fit")]


class Interrupted(ReferenceModule):
    """Fails in its second step."""

    def training_step(self, batch: object, index: int) -> torch.Tensor:
        if index == 1:
            raise LookupError("no target")
        return super().training_step(batch, index)


@pytest.mark.parametrize(
    ("module", "epochs", "native"),
    [(ReferenceModule, 1, {"device": 2}), (Interrupted, 1, {"device": 1}), (ReferenceModule, 0, {})],
    ids=["to-its-end", "failed", "nothing-to-train"],
)
def test_report_is_logged_once_for_a_fit(
    caplog: pytest.LogCaptureFixture, module: type[ReferenceModule], epochs: int, native: dict[str, int]
) -> None:
    """With all counts, however the fit ends, and again for the next fit."""
    callback = ReplayCallback("network")
    for _ in range(2):
        caplog.clear()
        trainer = Trainer(
            accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[callback],
        )  # fmt: skip
        model = module()
        fails = pytest.raises(LookupError) if module is Interrupted else contextlib.nullcontext()
        with caplog.at_level(logging.INFO, "graphreplay"), fails:
            trainer.fit(model, DataLoader(reference_batches(SHAPES, 2), batch_size=None))
        (message,) = logged(caplog)
        assert message == f"replay of this fit\n{callback.report()}"
        assert callback.report().native == native
        assert "forward" not in vars(model.network)


class InInit(ReferenceModule):
    """Switches replay on in the one line that needs no callback."""

    def __init__(self) -> None:
        super().__init__()
        self.replay = capture_network(self.network)


class InConfigureModel(ReferenceModule):
    """Likewise, where Lightning asks for large networks to be made. It asks again before each fit."""

    def configure_model(self) -> None:
        if not hasattr(self, "replay"):
            self.replay = capture_network(self.network)


@pytest.mark.parametrize("kind", [InInit, InConfigureModel])
def test_one_line_leaves_the_module_as_it_was(kind: type[ReferenceModule], tmp_path: Path) -> None:
    """Tree, state, optimizer, checkpoint, copies and pickles are those of the module without it."""

    def fitted(made: ReferenceModule) -> Trainer:
        torch.manual_seed(3)
        trainer = Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(made, DataLoader(reference_batches(SHAPES, 2), batch_size=None))
        return trainer

    torch.manual_seed(2)
    plain = ReferenceModule()
    torch.manual_seed(2)
    module = kind()
    fitted(plain).save_checkpoint(tmp_path / "plain.ckpt")
    fitted(module).save_checkpoint(tmp_path / "replayed.ckpt")
    assert module.replay.report().native == {"device": 2}
    assert [name for name, _ in module.named_modules()] == [name for name, _ in plain.named_modules()]
    assert compare(plain.state_dict(), module.state_dict()) is None
    native, replayed = (torch.load(tmp_path / f"{name}.ckpt", weights_only=True) for name in ("plain", "replayed"))
    assert native.keys() == replayed.keys()
    assert compare(native["state_dict"], replayed["state_dict"]) is None
    assert repr(native["optimizer_states"]) == repr(replayed["optimizer_states"])

    module.trainer = None
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):  # noqa: S301  # Its own bytes.
        assert twin.replay is not module.replay
        assert twin.replay.network is twin.network
        assert compare(twin.state_dict(), module.state_dict()) is None
        twin.network(torch.rand(2, 3, 64, 64))
        assert twin.replay.report().native == {}
        with twin.replay:
            twin.network(torch.rand(2, 3, 64, 64))
        assert twin.replay.report().native == {"device": 1}
    assert module.replay.report().native == {"device": 2}


def test_fit_in_several_processes_is_retired() -> None:
    """With a stand-in for the trainer: only its world size is asked for."""
    module, callback = ReferenceModule(), ReplayCallback("network")
    callback.setup(None, module, "fit")
    callback.on_fit_start(SimpleNamespace(world_size=2), module)
    module.network(torch.rand(2, 3, 64, 64))
    callback.on_train_end(None, module)
    assert callback.report().native == {"distributed": 1}


def test_callback_keeps_nothing_in_checkpoints() -> None:
    assert ReplayCallback("network").state_dict() == {}


def test_bfloat16_rule_by_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the capability query: no GPU without bfloat16 is at hand. Ampere (8.0) has it, Turing not."""
    for capability, has in [((7, 5), False), ((8, 0), True), ((9, 0), True)]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert graphreplay.capability.has_bfloat16(torch.device("cuda", 0)) is has


def test_reference_network_shapes() -> None:
    outputs = ReferenceNetwork()(torch.rand(2, 3, 64, 96))
    assert [tuple(output.shape) for output in outputs] == [(2, 7, 8, 12), (2, 7, 4, 6), (2, 7, 2, 3)]
