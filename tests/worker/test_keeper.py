"""The keeper with real process trees: nothing of them outlives the command, the order, or the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

import worker.isolation.process
from tests.worker.support import is_alive, wait_for
from worker.isolation.process import KeptProcess, run_kept

ROOT = Path(__file__).parents[2]
LEAVES = """
import os, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(120)"
children = [subprocess.Popen([sys.executable, "-c", code], start_new_session=s, stdout=subprocess.PIPE) for s in (0, 1)]
[child.stdout.readline() for child in children]
open(sys.argv[1] + ".new", "w").write(" ".join(str(child.pid) for child in children))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(float(sys.argv[2]))
"""


def kept(tmp_path: Path, seconds: float) -> tuple[KeptProcess, list[bytes]]:
    output: list[bytes] = []
    command = [sys.executable, "-c", LEAVES, str(tmp_path / "pids"), str(seconds)]
    return KeptProcess(command, env=dict(os.environ), cwd=tmp_path, grace_s=0.3, on_output=output.append), output


def pids(tmp_path: Path) -> list[int]:
    path = tmp_path / "pids"
    wait_for(path.exists, "the children to start")
    return [int(word) for word in path.read_text().split()]


def test_what_a_command_leaves_behind_is_killed_and_named(tmp_path: Path) -> None:
    """Also a child in a session of its own that ignores SIGTERM."""
    process, _ = kept(tmp_path, 0)
    ended = wait_for(lambda: process.wait(0.1), "the end")
    assert (ended.exit_code, ended.signal) == (0, None)
    assert not any(is_alive(pid) for pid in pids(tmp_path))
    assert sum(f"pid {pid}" in " ".join(ended.left) for pid in pids(tmp_path)) >= 1


@pytest.mark.parametrize("order", ["terminate", "kill"])
def test_an_order_ends_the_whole_tree(tmp_path: Path, order: str) -> None:
    """TERM with a grace, or KILL at once."""
    process, _ = kept(tmp_path, 120)
    children = pids(tmp_path)
    getattr(process, order)()
    ended = wait_for(lambda: process.wait(0.1), "the end")
    assert ended.signal in (signal.SIGTERM, signal.SIGKILL)
    assert not any(is_alive(pid) for pid in children)


@pytest.mark.parametrize("order", ["terminate", "kill"])
def test_a_keeper_that_is_stopped_holds_nobody_up(tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test can SIGSTOP its keeper, which then carries no order out: it is ended with all that is below it."""
    monkeypatch.setattr(worker.isolation.process, "_DEAF_S", 0.2)
    process, _ = kept(tmp_path, 120)
    children = pids(tmp_path)
    os.kill(process._keeper.pid, signal.SIGSTOP)
    getattr(process, order)()
    ended = wait_for(lambda: process.wait(0.05), "the end")
    assert (ended.exit_code, ended.signal) == (None, signal.SIGKILL)
    wait_for(lambda: not any(is_alive(pid) for pid in children), "everything to be gone")


def test_a_worker_killed_outright_leaves_nothing(tmp_path: Path) -> None:
    """The lifeline's end is enough: no process of the tree survives kill -9 of what started the keeper."""
    stand_in = f"""
import os, sys, time
from pathlib import Path
from worker.isolation.process import KeptProcess
command = [sys.executable, "-c", {LEAVES!r}, {str(tmp_path / "pids")!r}, "120"]
process = KeptProcess(command, env=dict(os.environ), cwd=Path("."), grace_s=5, on_output=lambda _: None)
time.sleep(120)
"""
    worker = subprocess.Popen([sys.executable, "-c", stand_in], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    children = pids(tmp_path)
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in children}
    worker.kill()
    worker.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in [*children, *parents]), "everything to be gone")


ORPHAN = """
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(120)
    os._exit(0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
READS_TO_THE_END = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], stdout=subprocess.PIPE)
child.stdout.read()
sys.exit(child.wait())
"""


def step(tmp_path: Path, hook: str, notes: list[str] | None) -> int:
    """Run a command that reads what its child prints to the end, as uv does with a build backend."""
    return run_kept(
        [sys.executable, "-c", READS_TO_THE_END, hook, str(tmp_path / "pids")],
        env=dict(os.environ),
        cwd=tmp_path,
        stop=threading.Event(),
        timeout_s=30,
        note=None if notes is None else notes.append,
    )[0]


def test_a_build_does_not_wait_for_an_orphan_that_holds_its_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its child left behind is killed and told, and it goes on with the child's own result."""
    monkeypatch.setattr(worker.isolation.process, "_ORPHANS_S", 0.1)
    notes: list[str] = []
    assert step(tmp_path, ORPHAN + "sys.exit(3)", notes) == 3
    (pid,) = pids(tmp_path)
    assert not is_alive(pid)
    assert [note.startswith("left behind and killed: ") and f"(pid {pid})" in note for note in notes] == [True]


def test_a_builds_daemon_lives_as_long_as_what_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler's cache server is an orphan too, and of use until the build backend has ended."""
    monkeypatch.setattr(worker.isolation.process, "_ORPHANS_S", 0.0)
    looks = "time.sleep(1.3)\npid = int(open(sys.argv[1]).read())\nos.kill(pid, 0)\n"
    state = "sys.exit(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] == 'Z')\n"
    assert step(tmp_path, ORPHAN + looks + state, []) == 0


def test_the_exit_code_and_all_output_come_back(tmp_path: Path) -> None:
    """Output and errors in one stream."""
    seen: list[bytes] = []
    code, output = run_kept(
        [sys.executable, "-c", "import sys; print('out', flush=True); sys.exit('err')"],
        env=dict(os.environ),
        cwd=tmp_path,
        stop=threading.Event(),
        timeout_s=20,
        on_output=seen.append,
    )
    assert (code, output) == (1, "out\nerr\n")
    assert b"".join(seen) == b"out\nerr\n"


def test_of_endless_output_the_end_alone_is_held(tmp_path: Path) -> None:
    """While it is read too: what a build prints must not fill the worker's memory."""
    size, printed = 64 << 20, 0

    def count(data: bytes) -> None:
        nonlocal printed
        printed += len(data)

    tracemalloc.start()
    try:
        code, output = run_kept(
            ["sh", "-c", f"head -c {size} /dev/zero; printf end"],
            env=dict(os.environ),
            cwd=tmp_path,
            stop=threading.Event(),
            timeout_s=60,
            on_output=count,
        )
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (code, printed) == (0, size + 3)
    assert output == "\0" * ((256 << 10) - 3) + "end"
    assert held < size // 8


def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    """By its name, with code 127."""
    code, output = run_kept(["/no/such"], env={}, cwd=tmp_path, stop=threading.Event(), timeout_s=20)
    assert code == 127
    assert "/no/such: No such file" in output
