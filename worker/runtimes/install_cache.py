"""What uv keeps for the install lines of one repository: a folder that the tree's own code may write to.

uv keeps what it builds of a local path by that path, and every attempt has its tree at a path of its own. So what it
built for earlier attempts serves nobody, and goes before the next one installs. What was fetched stays, until somebody
needs room on the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from worker.isolation.owned import remove
from worker.runtimes.runtime_use import Use

_GONE = ".gone-"
_OF_PATHS = (("sdists-v*", "path", "*"), ("sdists-v*", "editable", "*"))
_OF_ADDRESSES = ("wheels-v*", "url", "*")
"""The folders of uv's cache (buckets with a version each) for what comes from a path, and from a path or an address."""


def install_cache(cache: Path, url: str) -> Path:
    """The folder of a repository, below the worker's cache."""
    return _all(cache) / hashlib.sha256(url.encode()).hexdigest()[:16]


@contextlib.contextmanager
def held(folder: Path, stop: threading.Event, tidy: Callable[[], None]) -> Iterator[None]:
    """Use the folder together with other attempts. Nobody empties it meanwhile. Where nobody else uses it, what was
    built for earlier attempts is removed first; ``tidy`` has uv drop what that leaves without a name.

    Raises:
        Stopped: the attempt was asked to end while somebody emptied it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    use = Use(folder)
    try:
        if use.alone() and _forget_paths(folder):
            tidy()
        use.wait_share(stop)
        folder.mkdir(parents=True, exist_ok=True)  # Somebody may have thrown it away while this waited.
        yield
    finally:
        use.release()


def empty(cache: Path) -> bool:
    """Throw away what is kept for all repositories whose lines are not just being installed. Whether there was any."""
    thrown = [_throw_away(folder) for folder in _below(_all(cache), "[!.]*")]
    return any(thrown)


def clean(cache: Path) -> None:
    """Remove what a worker that was killed while it emptied left."""
    for folder in _below(_all(cache), f"{_GONE}*"):
        remove(folder)


def _all(cache: Path) -> Path:
    return cache / "install"


def _throw_away(folder: Path) -> bool:
    use = Use(folder)
    try:
        if not use.alone():
            return False
        gone = folder.with_name(_GONE + folder.name)
        remove(gone)
        folder.rename(gone)
        remove(gone)
        return True
    except OSError:
        return False
    finally:
        use.release()


def _forget_paths(folder: Path) -> bool:
    """Remove what is kept of local paths. Whether there was any. A wheel with the answer of a server came from an
    address."""
    found = [place for names in _OF_PATHS for place in _below(folder, *names)]
    wheels = _below(folder, *_OF_ADDRESSES)
    found += [place for place in wheels if not any(name.endswith(".http") for name in _files(place))]
    for place in found:
        remove(place)
    return bool(found)


def _below(folder: Path, first: str, *rest: str) -> list[Path]:
    """The folders that patterns lead to, one for each level. No link is followed: a tree may have put it there."""
    found: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = [
            Path(entry.path)
            for entry in sorted(entries, key=lambda entry: entry.name)
            if fnmatch(entry.name, first) and entry.is_dir(follow_symlinks=False)
        ]
    return [below for place in found for below in _below(place, *rest)] if rest else found


def _files(folder: Path) -> Iterator[str]:
    for _, _, names in os.walk(folder):
        yield from names
