"""One fit, run natively twice and replayed once from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from graphreplay.callback import ReplayCallback
from graphreplay.errors import OptionError
from graphreplay.report import Report
from graphreplay.testing.endstate import EndState, collect
from graphreplay.testing.failures import BitwiseMismatch, Nondeterministic, NonFinite

_QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "benchmark": False,
}


@dataclass(frozen=True)
class Scenario:
    """What to fit.

    Attributes:
        module: Makes the LightningModule; called after seeding, once for each fit.
        batches: Makes the training batches; called once for each fit and must give the same each time.
        validation: Likewise for validation batches; None for none.
        trainer: Arguments of the Trainer, beside quiet defaults. `callbacks` are functions that make a Callback.
        network: Which network to replay, as in `ReplayCallback`.
        options: Options of the replay.
        replayed: Makes the LightningModule of the replayed fit, where that brings a `ReplayCallback` itself; `network`
            and `options` do not count then.
        seed: Seeds Python's and torch's generators.
    """

    module: Callable[[], LightningModule]
    batches: Callable[[], Iterable[Any]]
    validation: Callable[[], Iterable[Any]] | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)
    network: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    replayed: Callable[[], LightningModule] | None = None


@dataclass(frozen=True)
class Fit:
    """One fit's end, and what its replay reports (empty for a native one)."""

    state: EndState
    report: Report


class _Loader:
    """Batches as they are. Lightning would take a list for several loaders to draw from at once."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # Lightning asks, and does without where it raises.


class _Losses(Callback):
    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def on_train_batch_end(self, _trainer: Trainer, _module: LightningModule, outputs: Any, *_: Any) -> None:
        # A step that returned no loss leaves an empty mapping.
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self.values.append(loss.detach().clone())


def fit(scenario: Scenario, *, replay: bool) -> Fit:
    """Fit the scenario once, from its seed.

    Raises:
        OptionError: The module of `scenario.replayed` brought no `ReplayCallback`.
    """
    random.seed(scenario.seed)
    torch.manual_seed(scenario.seed)
    losses = _Losses()
    added = [ReplayCallback(scenario.network, **scenario.options)] if replay and scenario.replayed is None else []
    options = dict(scenario.trainer)
    own = [make() for make in options.pop("callbacks", ())]
    trainer = Trainer(**{**_QUIET, **options}, callbacks=[*own, losses, *added])
    module = scenario.replayed() if replay and scenario.replayed is not None else scenario.module()
    validation = None if scenario.validation is None else _Loader(scenario.validation())
    trainer.fit(module, _Loader(scenario.batches()), validation)
    return Fit(collect(trainer, module, losses.values), _report(trainer) if replay else Report((), ()))


def _report(trainer: Trainer) -> Report:
    found = [callback for callback in trainer.callbacks if isinstance(callback, ReplayCallback)]
    if not found:
        raise OptionError("replayed= made a module without a ReplayCallback; return one from its configure_callbacks")
    return found[0].report()


def prove(scenario: Scenario) -> Fit:
    """Show that replay changes nothing in this scenario; the replayed fit, for assertions on its counters.

    Raises:
        Nondeterministic: Two native fits differ.
        NonFinite: The replayed fit reached a non-finite value that the native one did not.
        BitwiseMismatch: The replayed end state differs from the native one in any bit.
    """
    native, again = fit(scenario, replay=False).state, fit(scenario, replay=False).state
    if (unstable := native.difference(again)) is not None:
        raise Nondeterministic(f"native differs from native: {unstable}", unstable.evidence())
    replayed = fit(scenario, replay=True)
    difference = native.difference(replayed.state)
    if difference is None:
        return replayed
    evidence = {**difference.evidence(), "report": replayed.report.as_dict()}
    broken = replayed.state.first_nonfinite()
    if broken is not None and native.first_nonfinite() is None:
        step, name = broken
        where = "at the end" if step is None else f"at step {step}"
        raise NonFinite(f"{name} is not finite {where}, natively it is", {**evidence, "step": step, "tensor": name})
    raise BitwiseMismatch(f"replayed differs from native: {difference}", evidence)
