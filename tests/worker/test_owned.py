"""What is made and removed where tested code may write."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.isolation.owned import fresh_file, read_file, real_folder, remove

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of a user whom the modes of files hold back, as they do not hold back root."""
    place, own = Path(tempfile.mkdtemp()), os.geteuid()
    if own == 0:
        os.chown(place, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield place
    finally:
        os.seteuid(own)
        shutil.rmtree(place)


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o500])
def test_a_folder_closed_to_its_own_user_is_removed_too(folder: Path, mode: int) -> None:
    """Tests make such ones, and do not open them again; what a link in there leads to stays."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "file").touch()
    closed = folder / "attempt/tree/closed"
    (closed / "below").mkdir(parents=True)
    (closed / "link").symlink_to(outside)
    (closed / "below/file").touch()
    for place in (closed / "below", closed, outside):
        place.chmod(mode)
    remove(folder / "attempt")
    assert not (folder / "attempt").exists()
    assert outside.stat().st_mode & 0o777 == mode
    outside.chmod(0o700)
    assert (outside / "file").exists()


@pytest.mark.parametrize("kind", ["nothing", "file", "folder", "link", "dangling", "pipe"])
def test_what_is_made_is_the_workers_own(folder: Path, kind: str) -> None:
    """Whatever lies in its stead; of that nothing is followed, read or changed."""
    (folder / "outside").write_text("untouched")
    place = folder / "place"
    {
        "nothing": lambda: None,
        "file": lambda: place.write_text("before"),
        "folder": lambda: (place / "below").mkdir(parents=True),
        "link": lambda: place.symlink_to(folder / "outside"),
        "dangling": lambda: place.symlink_to(folder / "made"),
        "pipe": lambda: os.mkfifo(place),
    }[kind]()
    if kind == "file":
        assert read_file(place) == b"before"
    else:
        with pytest.raises(OSError):  # noqa: PT011 - each kind has its own
            read_file(place)
    with fresh_file(place) as stream:
        stream.write(b"ours")
    assert (read_file(place), place.is_symlink()) == (b"ours", False)
    real_folder(place)
    assert (place.is_dir(), place.is_symlink()) == (True, False)
    (place / "kept").touch()
    real_folder(place)
    assert (place / "kept").exists()
    assert (folder / "outside").read_text() == "untouched"
    assert not (folder / "made").exists()
