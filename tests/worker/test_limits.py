"""What a suite may take: its own word within the operator's caps; and what stands in for a group."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.worker.support import wait_for
from worker.isolation.limits import Limits, limits_of
from worker.isolation.process import Confinement, KeptProcess
from worker.messages import SuiteSpec


@pytest.mark.parametrize(("asked", "cap", "held"), [(0, 0, 0), (0, 8, 8), (4, 8, 4), (16, 8, 8), (16, 0, 16)])
def test_a_suite_gets_what_it_asks_for_up_to_the_cap(asked: int, cap: int, held: int) -> None:
    """The cap where it says nothing; no limit where nobody does."""
    suite = SuiteSpec("s", (), memory_mib=asked, processes=asked, file_size_mib=asked, open_files=asked)
    assert limits_of(suite, Limits(cap, cap, cap, cap)) == Limits(held, held, held, held)


@pytest.mark.parametrize(
    ("rlimits", "source", "words"),
    [
        (Limits(file_size_mib=1).each_process(), "open('f', 'wb').write(bytes(2 << 20))", b"File too large"),
        (Limits(open_files=64).each_process(), "x = [open('/dev/null') for _ in range(99)]", b"Too many open files"),
        (Limits(memory_mib=256).instead_of_a_group(0), "x = bytearray(512 << 20)", b"MemoryError"),
        ({}, "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))", b"(0, 0)"),
        ({}, "print(open('/proc/self/oom_score_adj').read())", b"500"),
    ],
)
def test_the_kernel_holds_each_process_to_it(
    tmp_path: Path, rlimits: dict[str, int], source: str, words: bytes
) -> None:
    """File size, open files, memory without a group, no core dumps, and the first one to go when memory is short."""
    output: list[bytes] = []
    process = KeptProcess(
        [sys.executable, "-c", source],
        env=dict(os.environ),
        cwd=tmp_path,
        grace_s=1.0,
        on_output=output.append,
        confinement=Confinement(rlimits=rlimits),
    )
    wait_for(lambda: process.wait(0.1), "the end")
    assert words in b"".join(output)


def test_processes_without_a_group_are_the_users() -> None:
    """RLIMIT_NPROC counts all that the user runs, so what runs already comes on top."""
    assert Limits(processes=50).instead_of_a_group(400) == {"NPROC": 450}
    assert Limits().instead_of_a_group(400) == {}
