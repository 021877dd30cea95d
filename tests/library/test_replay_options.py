"""Wrong options are refused before a fit starts, with the way out in the message."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphreplay import NetworkReplay, OptionError, ReplayCallback, ReplayOptions
from graphreplay.reference import ReferenceModule, reference_batches
from graphreplay.testing import Scenario, fit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": "step"}, "scope='step' is not recorded yet; use scope='network'"),
        ({"scope": "all"}, "scope='all' is unknown"),
        ({"layouts": 0}, "layouts=0 must be a whole number of at least 1"),
        ({"layouts": True}, "layouts=True must be"),
        ({"warmup": 1.5}, r"warmup=1\.5 must be"),
        ({"sightings": 0}, "sightings=0 must be"),
        ({"strict": "yes"}, "strict='yes' must be True or False"),
        ({"offload": None}, "offload=None must be True or False"),
        ({"layout": 3}, "unknown option 'layout'; the options are scope, layouts"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, object], message: str) -> None:
    for make in (lambda: NetworkReplay(nn.Linear(1, 1), **options), lambda: ReplayCallback(**options)):
        with pytest.raises(OptionError, match=message):
            make()


def test_defaults() -> None:
    assert ReplayOptions() == ReplayOptions("network", layouts=8, sightings=1, warmup=3, offload=True, strict=False)


def test_network_must_be_a_plain_module() -> None:
    with pytest.raises(OptionError, match=r"must be a torch\.nn\.Module"):
        NetworkReplay(torch.relu)
    # Marked as torch.compile marks its result; importing the compiler for it would take seconds.
    compiled = nn.Linear(1, 1)
    compiled._orig_mod = nn.Linear(1, 1)
    with pytest.raises(OptionError, match="is a compiled"):
        NetworkReplay(compiled)
    with pytest.raises(OptionError, match="network=Linear must be the attribute's path"):
        ReplayCallback(nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("net", "network='net' is no module of ReferenceModule; it has network, average"),
        ("rate", "network='rate' is no module"),
    ],
)
def test_unknown_network_is_refused_before_the_fit(network: str, message: str) -> None:
    trainer = {"accelerator": "cpu", "max_epochs": 1}
    scenario = Scenario(ReferenceModule, lambda: reference_batches([(2, 64, 64)], 1), trainer=trainer, network=network)
    with pytest.raises(OptionError, match=message):
        fit(scenario, replay=True)


def test_only_trained_child_is_found_and_two_are_ambiguous() -> None:
    class Two(ReferenceModule):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(1, 1)

    batches = lambda: reference_batches([(2, 64, 64)], 1)  # noqa: E731  # Two scenarios share it.
    trainer = {"accelerator": "cpu", "max_epochs": 1}
    assert fit(Scenario(ReferenceModule, batches, trainer=trainer), replay=True).report.native == {"device": 1}
    with pytest.raises(OptionError, match="name the network of Two to replay: network= one of network, average, other"):
        fit(Scenario(Two, batches, trainer=trainer), replay=True)
