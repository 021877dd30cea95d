"""Many readers of one service: a small HTTP client that costs little beside what it measures."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hit:
    """One request. Every one has a connection of its own, which it closes."""

    method: str
    path: str
    token: str
    body: bytes = b""

    def encoded(self) -> bytes:
        """The request's bytes."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self.token}",
                 f"Cookie: replaybench_session={self.token}", "Connection: close",
                 "Content-Type: application/json", f"Content-Length: {len(self.body)}"]  # fmt: skip
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


@dataclass
class Latencies:
    """Milliseconds of each answered request; requests that failed; how long it all took."""

    ms: list[float] = field(default_factory=list)
    errors: int = 0
    wall_s: float = 0.0
    first_error: str = ""


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share (of a hundred) of the values lies."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)] if ordered else math.inf


async def storm(port: int, hits: Sequence[Hit], clients: int, seconds: float, every_s: float = 0.0) -> Latencies:
    """Clients that repeat their request for so long: at once again, or each in a period, evenly spread over it."""
    found, began = Latencies(), time.perf_counter()
    end = began + seconds

    async def client(number: int) -> None:
        request = hits[number % len(hits)].encoded()
        due = began + every_s * number / clients
        while due < end and time.perf_counter() < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await _hit(port, request, found)
            due += every_s

    if not every_s:
        await _hit(port, hits[0].encoded(), Latencies())  # warms up
    await asyncio.gather(*(client(number) for number in range(clients)))
    found.wall_s = time.perf_counter() - began
    return found


async def _hit(port: int, request: bytes, found: Latencies) -> None:
    began, answer = time.perf_counter(), b""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read(-1)
        writer.close()
    if answer[9:12] in {b"200", b"204"}:
        found.ms.append(1000 * (time.perf_counter() - began))
    else:
        found.errors += 1
        found.first_error = found.first_error or answer[:400].decode(errors="replace")
