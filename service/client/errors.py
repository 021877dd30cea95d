"""What can go wrong between a client and the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """A call did not succeed; the text is for a person."""


class InputError(ClientError):
    """No request can be made of what was given; nothing was sent. ``problems`` are pydantic's, one for each value."""

    def __init__(self, problems: Sequence[Mapping[str, Any]]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problems))
        self.problems = list(problems)


class UnreachableError(ClientError):
    """Nothing answers at the service's address."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"no service answers at {url} ({reason}); start it with `replaybench up`, or name another --url"
        )
        self.url = url


class ProblemError(ClientError):
    """The service refused a call, by a problem document. ``code`` is stable and meant for programs."""

    def __init__(self, status: int, code: str, detail: str, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{detail} ({status} {code})")
        self.status = status
        self.code = code
        self.detail = detail
        self.extra = dict(extra or {})

    @property
    def problems(self) -> list[dict[str, str]]:
        """What of the request is not understood, by ``key``, ``message`` and ``value``; nothing of other refusals."""
        found = self.extra.get("errors")
        told = found if isinstance(found, list) else []
        return [one for one in told if isinstance(one, dict) and {"key", "message"} <= one.keys()]
