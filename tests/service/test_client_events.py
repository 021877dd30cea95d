"""Server-sent events as the standard has them."""

from __future__ import annotations

from service.client.events import Event, parse


def test_an_event_has_a_name_data_and_an_id() -> None:
    lines = ["event: change", "id: 7", "data: {", "data: }", ""]
    assert list(parse(lines)) == [Event("change", "{\n}", "7")]


def test_an_id_holds_until_the_next_one() -> None:
    lines = ["id: 1", "data: a", "", "data: b", "", "id: 2", "data: c", ""]
    assert [event.id for event in parse(lines)] == ["1", "1", "2"]
    assert [event.id for event in parse(["data: a", ""], last_id="9")] == ["9"]


def test_comments_and_unknown_fields_are_nothing() -> None:
    assert list(parse([": keep-alive", "", "retry: 5", "", "data:x", ""])) == [Event("message", "x", None)]


def test_an_event_cut_off_by_the_end_is_no_event() -> None:
    assert list(parse(["data: whole", "", "data: half"])) == [Event("message", "whole", None)]


def test_an_event_without_data_counts_by_its_name() -> None:
    assert list(parse(["event: end", ""])) == [Event("end", "", None)]
