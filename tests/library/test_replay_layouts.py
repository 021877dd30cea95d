"""What makes two calls one layout, and what the books say of each."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, cast

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphreplay import Label, ReplayOptions, RetiredError
from graphreplay.errors import UnrecordableError
from graphreplay.gradients import GradientMemory, StaticGradient, reclaim
from graphreplay.layout import Layout, TensorForm
from graphreplay.ledger import Ledger
from graphreplay.recording import Recording
from graphreplay.structure import flatten, rebuild
from graphreplay.testing import compare
from graphreplay.wiring import Wiring


def layout(
    *args: object, training: tuple[bool, ...] = (True,), wanting: tuple[bool, ...] = (True, True), **kwargs: object
) -> Layout:
    return Layout.of(args, kwargs, training, wanting)[0]


X = torch.zeros(2, 3)


# Made in the test: the switches by which torch picks kernels are part of every layout, and a test sets them.
OTHERS = {
    "batch-of-one": lambda: layout(torch.zeros(1, 3)),
    "stride": lambda: layout(torch.zeros(3, 2).t()),
    "dtype": lambda: layout(X.double()),
    "requires-grad": lambda: layout(torch.zeros(2, 3, requires_grad=True)),
    "count": lambda: layout(X, X),
    "container": lambda: layout([X]),
    "keyword": lambda: layout(x=X),
    "value": lambda: layout(X, True),
    "training": lambda: layout(X, training=(True, False)),
    "frozen": lambda: layout(X, wanting=(True, False)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_anything_that_copying_would_hide_makes_another_layout(other: Callable[[], Layout]) -> None:
    assert layout(X) == layout(torch.ones(2, 3))
    assert other() != layout(X)


def test_plain_values_count_by_type_and_bits() -> None:
    assert layout(X, 1) != layout(X, True)
    assert layout(X, 0.0) != layout(X, -0.0)
    assert layout(X, float("nan")) == layout(X, float("nan"))


@pytest.fixture
def autocast_settings() -> Iterator[None]:
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()
    yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])
    torch.set_autocast_cache_enabled(before[2])


def test_autocast_settings_make_another_layout(autocast_settings: None) -> None:
    """Set by hand, since a region does nothing without a GPU."""
    seen = [layout(X)]
    torch.set_autocast_enabled("cuda", True)
    seen.append(layout(X))
    torch.set_autocast_cache_enabled(not torch.is_autocast_cache_enabled())
    seen.append(layout(X))
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    seen.append(layout(X))
    assert len(set(seen)) == 4
    assert [one.uses(torch.bfloat16) for one in seen] == [False, False, False, True]


MATMUL = "torch.backends.cuda.matmul"
SWITCHES = [
    ("torch.backends.cudnn.enabled", False),
    ("torch.backends.cudnn.benchmark", True),
    ("torch.backends.cudnn.deterministic", False),
    ("torch.backends.cudnn.allow_tf32", False),
    (f"{MATMUL}.allow_tf32", True),
    (f"{MATMUL}.allow_fp16_reduced_precision_reduction", False),
    (f"{MATMUL}.allow_bf16_reduced_precision_reduction", False),
    (f"{MATMUL}.allow_fp16_accumulation", True),
]


@contextlib.contextmanager
def switched(holder: object, name: str, value: object) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@pytest.mark.parametrize(("switch", "value"), SWITCHES, ids=[name for name, _ in SWITCHES])
def test_kernel_switches_make_another_layout(switch: str, value: object) -> None:
    path, _, name = switch.removeprefix("torch.").rpartition(".")
    holder = attrgetter(path)(torch)
    if name == "allow_fp16_accumulation" and torch.__version__ < "2.7":
        assert not hasattr(holder, name)
        return
    before = layout(X)
    with switched(holder, name, value):
        assert layout(X) != before


CALLS = {
    "matmul-precision": (
        lambda: torch.set_float32_matmul_precision("high"), lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "flash": (lambda: torch.backends.cuda.enable_flash_sdp(False), lambda: torch.backends.cuda.enable_flash_sdp(True)),
    "efficient": (
        lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
        lambda: torch.backends.cuda.enable_mem_efficient_sdp(True),
    ),
    "math": (lambda: torch.backends.cuda.enable_math_sdp(False), lambda: torch.backends.cuda.enable_math_sdp(True)),
    "cudnn": (lambda: torch.backends.cuda.enable_cudnn_sdp(False), lambda: torch.backends.cuda.enable_cudnn_sdp(True)),
    "math-reduction": (
        lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
        lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False),
    ),
    "default-dtype": (
        lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32),
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False),
    ),
    "deterministic-warn": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("there", "back"), CALLS.values(), ids=CALLS)
def test_kernel_calls_make_another_layout(there: Callable[[], object], back: Callable[[], object]) -> None:
    before = layout(X)
    there()
    try:
        assert layout(X) != before
    finally:
        back()


def test_attention_kernel_of_a_region_makes_another_layout() -> None:
    before = layout(X)
    with sdpa_kernel(SDPBackend.MATH):
        assert layout(X) != before
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION], set_priority=True):
        assert layout(X) != before
    assert layout(X) == before


def test_precision_of_newer_kind_makes_another_layout() -> None:
    """Once it was set, torch answers the older questions with an error."""
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        assert torch.__version__ < "2.9"
        return
    for setting in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        seen = set()
        for precision in ("tf32", "ieee"):
            with switched(setting, "fp32_precision", precision):
                seen.add(layout(X))
        assert len(seen) == 2


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


def test_nested_values_come_back() -> None:
    value = (X, [X + 1, None], {"a": Pair(X + 2, 3), "b": (0.5, "c")})
    tensors: list[torch.Tensor] = []
    node = flatten(value, tensors)
    again = rebuild(node, tensors)
    assert type(again[2]["a"]) is Pair
    assert [tensor[0, 0].item() for tensor in tensors] == [0, 1, 2]
    assert again[1][1] is None
    assert again[2]["b"] == (0.5, "c")


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.zeros(2).to_sparse()], ids=["object", "set", "sparse"])
def test_what_cannot_be_taken_apart_is_refused(value: object) -> None:
    with pytest.raises(UnrecordableError) as caught:
        layout(value)
    assert caught.value.label is Label.STRUCTURE


def test_fingerprint_sees_new_addresses() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    wiring = Wiring(network)
    before = wiring.fingerprint()
    assert wiring.fingerprint() == before
    network.load_state_dict({name: value.clone() for name, value in network.state_dict().items()}, assign=True)
    wiring.refresh()
    assert wiring.fingerprint() != before


def test_wiring_sees_frozen_weights_once_each() -> None:
    """A tied weight counts once, an integer one not at all; the same tuple comes as long as nothing changes."""
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network[1].weight = network[0].weight
    network.register_parameter("table", nn.Parameter(torch.ones(2, dtype=torch.int), requires_grad=False))
    wiring = Wiring(network)
    assert wiring.wanting() == (True, True, True)
    assert wiring.wanting() is wiring.wanting()
    network[0].bias.requires_grad_(False)
    assert sorted(wiring.wanting()) == [False, True, True]


def test_wiring_follows_the_module_tree_and_ties() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    wiring = Wiring(network)
    tied = nn.Linear(2, 2)
    tied.weight = network[0].weight
    network.append(tied)
    wiring.refresh()
    assert [name for name, _ in wiring.weights()] == ["0.weight", "0.bias", "1.bias"]


def test_hooks_count_below_the_root_only() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    network.register_forward_hook(lambda *_: None)
    assert not Wiring(network).hooked()
    network[0].register_forward_pre_hook(lambda *_: None)
    assert Wiring(network).hooked()


def lent(*buffers: torch.Tensor) -> GradientMemory:
    return GradientMemory(buffers)


def test_only_gradients_in_lent_memory_are_moved() -> None:
    """The tensor object stays, its memory is another one, its bits are the same."""
    weight, other = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2))
    buffer = torch.tensor([[1.0, float("nan"), -0.0], [2.0, 3.0, 4.0]])
    memory = lent(buffer)
    weight.grad, other.grad = buffer.detach(), torch.ones(2)
    held, kept = weight.grad, other.grad.data_ptr()
    assert reclaim([weight, other, weight], [memory])
    before = buffer.clone()
    buffer.zero_()
    assert weight.grad is held
    assert compare({"": held}, {"": before}) is None
    assert other.grad.data_ptr() == kept
    assert reclaim([weight, other], [memory])


def test_memory_that_others_hold_is_not_reclaimed() -> None:
    """A gradient kept beside `.grad`, or a view of `.grad`, is found until it is gone, and nothing moves meanwhile."""
    weight, buffer = nn.Parameter(torch.zeros(2, 3)), torch.ones(2, 3)
    memory = lent(buffer)
    weight.grad = buffer.detach()
    view = weight.grad.view(-1)
    assert not reclaim([weight], [memory])
    assert weight.grad.data_ptr() == buffer.data_ptr()
    del view
    assert reclaim([weight], [memory])
    kept = buffer.detach()
    assert not reclaim([weight], [memory])
    del kept
    assert reclaim([weight], [memory])


@pytest.mark.parametrize(
    "gradient",
    [
        torch.rand(2, 3),
        torch.rand(3, 2).t(),
        torch.rand(1).expand(2, 3),
        torch.rand(2, 1).expand(2, 3),
        torch.rand(2, 5)[:, 1:4],
    ],
    ids=["dense", "transposed", "sum", "row-sum", "slice"],
)
def test_static_gradient_takes_every_form(gradient: torch.Tensor) -> None:
    static = StaticGradient(TensorForm.of(gradient))
    target, source = static.slot(gradient)
    target.copy_(source)
    assert static.tensor.stride() == gradient.stride()
    assert compare({"": static.tensor}, {"": gradient}) is None


NEVER_REPLAYED = cast("Recording", object())


def test_ledger_caps_layouts_and_reports_as_json() -> None:
    ledger = Ledger(ReplayOptions(layouts=1))
    entry = ledger.entry(layout(X))
    entry.recording, entry.recorded, entry.replayed = NEVER_REPLAYED, 1, 4
    entry.native["observed"] += 1
    with pytest.raises(UnrecordableError, match="layouts=1") as caught:
        ledger.entry(layout(torch.zeros(5, 3)))
    for _ in range(2):
        ledger.retire_all(caught.value.label, str(caught.value))
    ledger.retire(entry, Label.CAPTURE, "it asked for a number")
    ledger.native["layouts-cap"] += 2
    report = ledger.report()
    assert (report.recorded, report.replayed) == (1, 4)
    assert report.native_by_cause == {"observed": 1, "layouts-cap": 2}
    assert [(one.layout, one.label.value) for one in report.retirements] == [
        ("*", "layouts-cap"),
        ("2x3 float32; no autocast", "capture-failed"),
    ]
    assert json.loads(json.dumps(report.as_dict()))["layouts"][0]["native"] == {"observed": 1}
    assert "retired 2x3 float32; no autocast: capture-failed: it asked for a number" in str(report)


def test_strict_ledger_raises_and_keeps_the_books() -> None:
    ledger = Ledger(ReplayOptions(strict=True))
    entry = ledger.entry(layout(X))
    with pytest.raises(RetiredError, match="capture-failed: why"):
        ledger.retire(entry, Label.CAPTURE, "why")
    assert ledger.report().retirements[0].reason == "why"


def test_every_label_has_a_reason() -> None:
    assert all(label.reason for label in Label)


def test_readme_lists_every_label_once() -> None:
    """With its scope, its meaning and the way out."""
    lines = (Path(__file__).parents[2] / "library" / "README.md").read_text(encoding="utf-8").splitlines()
    begin = lines.index("| label | scope | meaning | way out |") + 2
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[begin:])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert sorted(row[0] for row in rows) == sorted(f"`{label.value}`" for label in Label)
    assert {scope for row in rows for scope in row[1].split(", ")} == {"layout", "network"}
    assert all(len(row) == 4 and all(row) for row in rows)


def test_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(ReplayOptions())
    ledger.retire(ledger.entry(layout(X)), Label.CAPTURE, "it asked for a number \N{EM DASH} once")
    report, path = ledger.report(), tmp_path / "replay.json"
    report.write(path)
    report.write(str(path))
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(report.as_dict()))
    assert written["retirements"][0]["label"] == "capture-failed"

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write(path)
    assert json.loads(path.read_text(encoding="utf-8")) == written
    assert list(tmp_path.iterdir()) == [path]
