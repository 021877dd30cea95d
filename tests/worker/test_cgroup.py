"""Groups of real processes: what the kernel does at a limit is told, and nothing is left of a group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.holding import CGROUPS, needs_cgroup
from tests.worker.support import is_alive, wait_for
from worker.isolation import cgroup
from worker.isolation.cgroup import Group
from worker.isolation.keeper import descendants
from worker.isolation.limits import Limits
from worker.isolation.process import Confinement, Ended, KeptProcess

pytestmark = needs_cgroup


def made(name: str, **limits: int) -> Group:
    assert CGROUPS is not None
    return CGROUPS.make(f"test-{os.getpid()}-{name}", Limits(**limits))


def start(group: Group, source: str, folder: Path) -> KeptProcess:
    return KeptProcess(
        [sys.executable, "-c", source],
        env=dict(os.environ),
        cwd=folder,
        grace_s=0.3,
        on_output=lambda _: None,
        confinement=Confinement(doors=group.doors),
    )


def run(group: Group, source: str, folder: Path) -> Ended:
    process = start(group, source, folder)
    ended: Ended = wait_for(lambda: process.wait(0.1), "the end", 60)
    return ended


def test_memory_beyond_the_limit_is_told_with_its_figures(tmp_path: Path) -> None:
    """The kernel's killer, the limit and the peak; a plain SIGKILL says nothing of memory."""
    group = made("memory", memory_mib=64)
    try:
        ended = run(group, "data = [bytearray(b'x' * (1 << 20)) for _ in range(200)]", tmp_path)
        assert ended.signal == 9
        assert "the limit of 64 MiB (memory_mib) was reached" in group.out_of_memory()
        assert 60 <= group.peak_mib <= 64
    finally:
        group.close()
    other = made("plain", memory_mib=64)
    assert run(other, "import os; os.kill(os.getpid(), 9)", tmp_path).signal == 9
    assert other.out_of_memory() == ""
    other.close()


FORK_BOMB = """
import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(0.05)
"""


def test_a_fork_bomb_stays_in_its_group_and_ends_with_it(tmp_path: Path) -> None:
    """No more processes than the limit, and none once it is killed."""
    group = made("bomb", processes=60)
    process = start(group, FORK_BOMB, tmp_path)
    wait_for(lambda: group.refused_processes() > 0, "the limit to be reached")
    members = [int(pid) for pid in Path(group.doors[0]).read_text().split()]
    assert 10 < len(members) <= 60
    process.kill()
    wait_for(lambda: process.wait(0.1), "the end")
    group.close()
    assert not any(is_alive(pid) for pid in members)
    assert not any(folder.exists() for folder in group.folders)


def test_a_fork_bomb_is_ended_though_its_keeper_is_dead(tmp_path: Path) -> None:
    """Closing the group is enough."""
    group = made("orphans", processes=60)
    process = start(group, FORK_BOMB, tmp_path)
    wait_for(lambda: group.refused_processes() > 0, "the limit to be reached")
    members = [int(pid) for pid in Path(group.doors[0]).read_text().split()]
    process._keeper.kill()
    with pytest.raises(Exception, match="said nothing"):
        wait_for(lambda: process.wait(0.1), "the end")
    group.close()
    wait_for(lambda: not any(is_alive(pid) for pid in members), "all of them to be gone")


def test_what_a_killed_worker_left_is_found_by_its_nonce() -> None:
    """Its processes are killed; a group of another worker's is left alone."""
    assert CGROUPS is not None
    groups = {boot: CGROUPS.make(f"{boot}-5-1", Limits(processes=20)) for boot in ("0dead0", "a11fe0")}
    processes = {}
    for boot, group in groups.items():
        processes[boot] = subprocess.Popen(["sleep", "100"])
        for door in group.doors:
            Path(door).write_text(str(processes[boot].pid))
    try:
        CGROUPS.end("0dead0")
        assert processes["0dead0"].wait(10) == -9
        assert processes["a11fe0"].poll() is None
        assert not any(folder.exists() for folder in groups["0dead0"].folders)
    finally:
        groups["a11fe0"].close()
        processes["a11fe0"].wait(10)


def test_version_2_is_used_where_it_is_delegated(tmp_path: Path) -> None:
    """A folder with the controllers whose only member is this worker: it moves below, and hands them on."""
    own = tmp_path / "replaybench.service"
    own.mkdir()
    (own / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (own / "cgroup.subtree_control").write_text("")
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert cgroup._delegated(tmp_path, own) == own
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (own / "replaybench-worker" / "cgroup.procs").read_text() == str(os.getpid())
    stranger = next(pid for pid in range(1, 1 << 22) if pid != os.getpid() and pid not in descendants(os.getpid()))
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n{stranger}\n")
    assert cgroup._delegated(tmp_path, own) is None


def test_version_2_is_used_where_a_subgroup_was_given(tmp_path: Path) -> None:
    """systemd's DelegateSubgroup: the folder above the worker's own hands the controllers on already."""
    own = tmp_path / "replaybench.service" / "worker"
    own.mkdir(parents=True)
    (own.parent / "cgroup.subtree_control").write_text("memory pids\n")
    assert cgroup._delegated(tmp_path, own) == own.parent
