"""Makes a batch storable before it is read. Pure: no database, no framework.

A worker cleans what it sends. One that does not must not lose the other cases of its batch, so what no database stores
is made visible here by the same means. A case whose values were changed says so.
"""

from __future__ import annotations

from typing import Any

from worker.cleaning import Cleaner, clean_event

MOST_INTEGER = 2**31 - 1


def clean(batch: Any) -> Any:
    """A batch's JSON data with every text and number in it storable.

    Raises:
        ValueError: an event's own number is none that a column holds; the text names the event, the key and the value.
    """
    if not isinstance(batch, dict) or not isinstance(batch.get("events", []), list):
        return Cleaner().data(batch)
    rest = Cleaner().data({key: value for key, value in batch.items() if key != "events"})
    return {**rest, "events": [_event(index, event) for index, event in enumerate(batch.get("events", []))]}


def _event(index: int, event: Any) -> Any:
    if not isinstance(event, dict):
        return event
    for key, value in event.items():
        if isinstance(value, int) and abs(value) > MOST_INTEGER:
            raise ValueError(f"events[{index}].{key} = {value!r:.40}: no number that a process or a case can have")
    return clean_event(event)
