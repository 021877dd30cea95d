"""What a forge's delivery comes to, whichever forge it is. Pure: no database, no framework."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from service.matrix.trigger import TriggerEvent

SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
BRANCH, TAG = "refs/heads/", "refs/tags/"


class Malformed(ValueError):
    """The payload lacks what the forge's documentation promises. The text names the key."""


@dataclass(frozen=True)
class Happened:
    """An event that may start a job.

    ``ref`` is the name that the rules' patterns are over. ``trigger`` tells this event from every other one on the same
    commit. Of jobs with one ``line`` the latest alone matters; ``None``: each matters. ``base`` is a SHA or ref to
    compare with, for the changed paths: itself, or with ``since_fork`` where both parted. ``before`` is the commit that
    this one took the place of, where the forge says so.
    """

    event: TriggerEvent
    commit: str
    ref: str
    trigger: str
    line: str | None
    base: str | None = None
    before: str | None = None
    since_fork: bool = False
    from_fork: bool = False
    who: str | None = None
    title: str | None = None

    @property
    def label(self) -> str:
        """``push to main: Fix the copy``."""
        words = {
            TriggerEvent.PUSH: "push to",
            TriggerEvent.TAG: "tag",
            TriggerEvent.MERGE_GROUP: "merge group for",
            TriggerEvent.SCHEDULE: "schedule",
        }
        what = f"{words.get(self.event, ' '.join(self.trigger.split(':')[:2]) + ' into')} {self.ref}"
        return (f"{what}: {self.title}" if self.title else what)[:200]


@dataclass(frozen=True)
class Again:
    """Somebody asked the forge to check a commit again."""

    commit: str


@dataclass(frozen=True)
class Nothing:
    """A delivery that starts nothing, and why."""

    reason: str


Heard: TypeAlias = Happened | Again | Nothing


def pushed(
    ref: str, before: str, after: str, *, commit: str | None = None, who: str | None = None, title: str | None = None
) -> Heard:
    """A push of a branch or a tag, as all forges tell it: an all-zero SHA is no commit."""
    if not after.strip("0"):
        return Nothing(f"{ref} was deleted")
    found = checked(commit or after, "after")
    if ref.startswith(TAG):
        name = ref.removeprefix(TAG)
        return Happened(TriggerEvent.TAG, found, name, key("tag", name), None, who=cut(who), title=first_line(title))
    if not ref.startswith(BRANCH):
        return Nothing(f"{ref} is neither branch nor tag")
    name = ref.removeprefix(BRANCH)
    base = checked(before, "before") if before.strip("0") else None
    # Pushed away and back again, a commit comes to the same branch twice: what it replaced tells the two apart.
    trigger, line = key("push", name, (base or "")[:12]), key("push", name)
    return Happened(TriggerEvent.PUSH, found, name, trigger, line, base, base, who=cut(who), title=first_line(title))


def checked(sha: str, name: str) -> str:
    """A commit's SHA in full.

    Raises:
        Malformed: it is none.
    """
    if not SHA.fullmatch(sha):
        raise Malformed(f"{name} = {sha[:80]!r}: expected a commit's SHA")
    return sha


def first_line(text: str | None) -> str | None:
    """The subject of a message."""
    return cut((text or "").strip().partition("\n")[0]) or None


def cut(text: str | None, most: int = 200) -> str:
    """What fits a column, without what no database stores."""
    return (text or "").replace("\0", "").encode(errors="replace").decode()[:most]


def key(*parts: str) -> str:
    """Parts as one text that fits a column and is another for every other parts, however long these are."""
    text = ":".join(part for part in parts if part)
    return text if len(text) <= 200 else f"{text[:130]}~{hashlib.sha256(text.encode()).hexdigest()}"


def text_at(data: Mapping[str, Any], path: str) -> str:
    """The text under a dotted path.

    Raises:
        Malformed: there is none.
    """
    value = at(data, path)
    if not isinstance(value, str) or not value or "\0" in value or value != cut(value, len(value)):
        raise Malformed(f"{path} = {str(value)[:80]!r}: expected a text")
    return value


def number_at(data: Mapping[str, Any], path: str) -> int:
    """The number under a dotted path.

    Raises:
        Malformed: there is none.
    """
    value = at(data, path)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise Malformed(f"{path} = {str(value)[:80]!r}: expected a number")
    return value


def maybe_commit(data: Mapping[str, Any], path: str) -> str | None:
    """The commit's SHA under a dotted path, or ``None``."""
    value = at(data, path)
    return value if isinstance(value, str) and SHA.fullmatch(value) and value.strip("0") else None


def maybe(data: Mapping[str, Any], path: str) -> str | None:
    """The text under a dotted path, or ``None``."""
    value = at(data, path)
    return value if isinstance(value, str) and value else None


def at(data: Any, path: str) -> Any:
    """What stands under a dotted path, or ``None``."""
    for part in path.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data
