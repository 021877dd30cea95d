"""The cap on layouts counts what is recorded, and what is only watched stays small."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from device_cases import ON_DEVICES, replay_of, replayed, rows
from torch import nn

from graphreplay import Label, NetworkReplay, RetiredError


class Scaled(nn.Module):
    """Takes a factor as a plain argument, whose value belongs to the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return self.inner(x) * factor


def learn(network: nn.Module, factor: float) -> None:
    network.zero_grad()
    network(rows(5, 0, next(network.parameters()).device), factor).square().mean().backward()


@pytest.fixture
def network(device: str) -> Scaled:
    return Scaled().to(device).train()


@pytest.fixture
def replay(network: Scaled) -> Iterator[NetworkReplay]:
    with replay_of(network, layouts=2) as replay:
        yield replay


@ON_DEVICES
def test_argument_that_warms_up_takes_no_place(device: str) -> None:
    """Nine values once each, the last one for good."""

    def step(network: nn.Module, seed: int) -> None:
        network(rows(5, seed, device), min(1.0, (seed + 1) / 9)).square().mean().backward()

    report = replayed(Scaled, step, 20, device)
    assert report.retirements == ()
    assert (report.recorded, report.replayed, report.native_by_cause) == (1, 11, {"observed": 9})


@ON_DEVICES
def test_ever_new_values_keep_the_books_small(network: Scaled, replay: NetworkReplay) -> None:
    """Most are counted together; a value that stays in the end is recorded all the same."""
    for step in range(300):
        learn(network, 1 / (step + 1))
    report = replay.report()
    assert len(report.layouts) == 4 * 2
    assert report.retirements == ()
    assert report.native == {"observed": 300 - 8}
    assert report.native_by_cause == {"observed": 300}
    assert f"outside of layouts: {300 - 8} observed" in str(report)
    for _ in range(3):
        learn(network, 2.0)
    assert (replay.report().recorded, replay.report().replayed) == (1, 2)


@ON_DEVICES
def test_layouts_in_a_long_row_are_recorded_all_the_same(network: Scaled, replay: NetworkReplay) -> None:
    """Twenty in turn, of which eight are watched at once and two may be recorded."""
    for step in range(60):
        learn(network, float(step % 20))
    report = replay.report()
    assert (report.recorded, report.replayed) == (2, 4)
    assert [one.label for one in report.retirements] == [Label.LAYOUTS]


@ON_DEVICES
def test_watched_layout_finds_no_place_any_more(network: Scaled, replay: NetworkReplay) -> None:
    """It came once before two others were recorded."""
    for factor in (1.0, 2.0, 3.0, 2.0, 3.0, 1.0, 1.0, 2.0):
        learn(network, factor)
    report = replay.report()
    assert (report.recorded, report.replayed) == (2, 3)
    assert report.native == {"layouts-cap": 2}
    assert [one.label for one in report.retirements] == [Label.LAYOUTS]


@ON_DEVICES
def test_closing_gives_places_back(network: Scaled, replay: NetworkReplay) -> None:
    for _ in range(2):
        for factor in (1.0, 2.0):
            learn(network, factor)
    replay.close()
    with replay:
        for _ in range(2):
            for factor in (3.0, 4.0):
                learn(network, factor)
    assert replay.report().recorded == 4
    assert replay.report().retirements == ()


@ON_DEVICES
def test_layout_that_was_given_up_keeps_its_place(device: str) -> None:
    """Each may have cost a capture."""

    class Asking(Scaled):
        def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
            self.last = factor
            return super().forward(x, factor)

    network = Asking().to(device).train()
    with replay_of(network, layouts=2) as replay:
        for _ in range(3):
            for factor in (1.0, 2.0, 3.0):
                learn(network, factor)
    assert [one.label for one in replay.report().retirements] == [Label.STATE, Label.STATE, Label.LAYOUTS]


@ON_DEVICES
def test_strict_raises_where_no_place_is_left(network: Scaled) -> None:
    with replay_of(network, layouts=1, strict=True) as replay:
        learn(network, 1.0)
        learn(network, 2.0)
        learn(network, 1.0)
        with pytest.raises(RetiredError, match=r"layouts-cap: .*layouts=1, then came"):
            learn(network, 2.0)
    assert replay.report().recorded == 1
