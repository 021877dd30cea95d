"""Folders of worker processes: those of the living are never taken for those of the dead."""

from __future__ import annotations

import threading
from pathlib import Path

from filelock import FileLock

from worker.boot_folder import BootFolder


def test_the_dead_are_told_from_the_living(tmp_path: Path) -> None:
    """By their locks; one that a dead worker left with something in it stays until it is looked after."""
    gone = BootFolder(tmp_path / "spool", "gone")
    (gone.path / "5.jsonl").touch()
    gone.close()
    living = BootFolder(tmp_path / "spool", "living")
    fresh = BootFolder(tmp_path / "spool", "fresh")
    (dead,) = fresh.dead()
    assert dead.path.name == "gone"
    assert fresh.dead() == []
    dead.remove()
    living.close()
    fresh.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_nobody_looks_for_the_dead_while_another_worker_starts(tmp_path: Path) -> None:
    """Its lock file is there a moment before it is locked."""
    mine = BootFolder(tmp_path / "spool", "mine")
    found = threading.Event()
    with FileLock(tmp_path / "spool.lock"):
        (tmp_path / "spool" / "starting").mkdir()
        (tmp_path / "spool" / "starting.lock").touch()
        thread = threading.Thread(target=lambda: [mine.dead(), found.set()])
        thread.start()
        assert not found.wait(0.3)
    thread.join()
    assert found.is_set()
    mine.close()
