"""What docs/replay.md and the README tell is so: code runs, the report is the printed one, no label is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import graphreplay
import graphreplay.callback
from graphreplay import Label
from graphreplay.tasks.batch import TASKS
from graphreplay.testing.rehearsal import Rehearsal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/replay.md").read_text(encoding="utf-8")
README = (ROOT / "library/README.md").read_text(encoding="utf-8")
TEN_LINES, LOOP, PROOF, TASK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@pytest.fixture(params=["rehearsed", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cuda":
        return "cuda"
    monkeypatch.setattr(graphreplay.callback, "NetworkReplay", Rehearsal)
    monkeypatch.setattr(graphreplay, "NetworkReplay", Rehearsal)
    return "cpu"


def run(code: str, device: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """The code on that device, with a Trainer that leaves nothing behind."""
    names = {} if names is None else names
    names["quiet"] = QUIET | {"accelerator": device, "devices": 1}
    code = code.replace("Trainer(", "Trainer(**quiet, ").replace("trainer={", "trainer={**quiet, ")
    exec(compile(code.replace('"cuda"', f'"{device}"'), "docs/replay.md", "exec"), names)  # noqa: S102
    return names


def test_ten_lines_replay_and_print_what_the_page_shows(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(TEN_LINES, device)
    assert (names["replay"].report().recorded, names["replay"].report().replayed) == (2, 10)
    shown = re.search(r"```\n(layout .*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] in capsys.readouterr().out


def test_loop_and_proof_of_the_page_hold(device: str) -> None:
    """Their assertions are the page's own."""
    names = run(TEN_LINES, device)
    run(LOOP, device, names)
    torch.manual_seed(0)
    run(PROOF, device, names)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_fits_as_the_page_shows(task: str, device: str) -> None:
    kind = f"{task.capitalize()}Module"
    code = TASK.replace("PoseModule(", f"{kind}(").replace('"pose"', f'"{task}"')
    names = run("from lightning.pytorch import Trainer\n" + code, device)
    report = names["module"].replay_report()
    assert (report.recorded, report.replayed, report.retirements) == (3, 5, ())


def test_pages_name_every_label_and_none_that_is_not_there() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", PAGE[PAGE.index("## When it retires") :], re.MULTILINE)
    assert rows == [(label.value, label.reason) for label in Label]
    told = re.findall(r"^\| `([a-z0-9-]+)` \| (?:layout|network)", README, re.MULTILINE)
    assert told == [label.value for label in Label]
