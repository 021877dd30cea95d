"""How the command line shows what it was answered."""

from __future__ import annotations

import datetime
import json

import pytest

from service.cli.output import clean, clean_json, line, text
from service.cli.render import counted, seconds, workers_table
from service.workers.schemas import WorkerOutput


def test_what_tested_code_says_cannot_steer_the_terminal() -> None:
    assert clean("\x1b[2Jgone\x07 \x9b31m") == "�[2Jgone� �31m"
    assert clean("passed\u202edeliaf\u2066\ufeff") == "passed�deliaf��"
    assert line("one\r\ntwo\tthree") == "one two three"


def test_json_says_the_same_without_a_control_character() -> None:
    said = {"\x9b31m": "\x1b[2J\u202e\x7f\n", "plain": "größer ✓"}
    written = clean_json(json.dumps(said, indent=2, ensure_ascii=False))
    assert json.loads(written) == said
    assert clean(written) == written


def test_brackets_of_a_case_are_no_markup() -> None:
    assert text("test_x[red]").plain == "test_x[red]"


def test_counts_read_like_a_table_with_the_worst_first() -> None:
    counts = {"passed": 9, "skipped": 0, "failed": 18, "timed-out": 1}
    assert counted(counts) == "18 failed, 1 timed-out, 9 passed"
    assert counted({}) == ""


@pytest.mark.parametrize(
    ("value", "words"), [(None, ""), (0.04, "0.0 s"), (59.94, "59.9 s"), (61.0, "1:01 min"), (3725.4, "1:02:05 h")]
)
def test_durations_are_for_people(value: float | None, words: str) -> None:
    assert seconds(value) == words


def test_a_drained_card_stands_with_its_reason_in_the_list_of_workers() -> None:
    """Beside one that is fit."""
    devices = [{"model": "NVIDIA H200"}, {"model": "NVIDIA H200", "drained": "Xid 79"}]
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    worker = WorkerOutput(
        id=1, name="h200", host="h", capabilities={"devices": devices}, registered_at=moment, seen_at=moment, live=True
    )
    (cells,) = [list(column.cells) for column in workers_table([worker]).columns if column.header == "Devices"]
    assert str(cells[0]) == "NVIDIA H200, NVIDIA H200 (drained: Xid 79)"
