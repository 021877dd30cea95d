"""What uv keeps for install lines: used by many, emptied of what serves nobody, and first to go on a full disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import small_disk, wheels
from tests.support.wheels import wheel
from tests.worker.support import wait_for
from tests.worker.test_attempt import PROJECT
from worker.errors import Stopped
from worker.runtimes import install_cache, room
from worker.runtimes.runtime_use import Use

NEVER = threading.Event()
MIB = 1 << 20
BACKEND = """
import zipfile
NAME = "thing-0.3-py3-none-any.whl"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/{NAME}", "w") as wheel:
        wheel.writestr("thing.txt", "x" * (1 << 20))
        info = "thing-0.3.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: thing\\nVersion: 0.3\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return NAME
build_editable = build_wheel
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return install_cache.install_cache(tmp_path / "cache", "https://forge.test/project.git")


def in_it(folder: Path, uv: str, *words: str, cwd: Path) -> None:
    env = os.environ | {"UV_CACHE_DIR": str(folder), "UV_LINK_MODE": "copy"}
    subprocess.run([uv, *words], cwd=cwd, env=env, check=True, capture_output=True)


def install(folder: Path, uv: str, tree: Path, *lines: str) -> None:
    """As the lines of an attempt whose tree lies there."""

    def tidy() -> None:
        in_it(folder, uv, "cache", "prune", cwd=tree)

    (tree / "thing").mkdir(parents=True)
    (tree / "thing" / "backend.py").write_text(BACKEND)
    (tree / "thing" / "pyproject.toml").write_text(PROJECT)
    wheel(tree / "wheels", "local", "0.1", {"local.txt": "x" * MIB})
    with install_cache.held(folder, NEVER, tidy):
        for line in lines:
            words = ["pip", "install", "--no-deps", "--target", str(tree / "site"), *line.split()]
            in_it(folder, uv, *words, "--python", sys.executable, cwd=tree)


@pytest.mark.parametrize(
    "line",
    ["--no-build-isolation ./thing", "--no-build-isolation -e ./thing", "./wheels/local-0.1-py3-none-any.whl"],
    ids=["path", "editable", "wheel"],
)
def test_the_next_attempt_removes_what_was_built_of_earlier_trees(
    folder: Path, tmp_path: Path, uv: str, line: str
) -> None:
    """However a line names a path: nothing more is kept after the third attempt than after the first."""
    sizes = []
    for number in range(3):
        install(folder, uv, tmp_path / str(number), line)
        sizes.append(room.size_of([folder]))
    assert sizes[0] > MIB
    assert max(sizes) - sizes[0] < MIB / 2


@pytest.mark.parametrize("by", ["name", "address"])
def test_what_was_fetched_is_kept(folder: Path, tmp_path: Path, uv: str, by: str) -> None:
    """From an index or from an address of its own: the next attempt does not fetch it again."""
    house = tmp_path / "house"
    wheel(house, "far", "0.1", {"far.txt": "x"})
    with wheels.index(house) as index:
        address = f"{index.removesuffix('/simple')}/far-0.1-py3-none-any.whl"
        line = {"name": f"--index-url {index} far==0.1", "address": f"far@{address}"}[by]
        install(folder, uv, tmp_path / "1", line, "--no-build-isolation ./thing")
    install(folder, uv, tmp_path / "2", f"--offline {line}")
    assert (tmp_path / "2" / "site" / "far.txt").exists()


def test_nobody_empties_what_is_in_use(folder: Path, tmp_path: Path) -> None:
    """Neither to make room nor for the next attempt, which uses it at the same time."""
    other = folder.with_name("other")
    built = folder / "sdists-v9" / "path" / "0123"
    for place in (built, other):
        place.mkdir(parents=True)
    with install_cache.held(folder, NEVER, lambda: None):
        assert not built.exists()
        built.mkdir()
        with install_cache.held(folder, NEVER, lambda: pytest.fail("somebody uses it")):
            assert install_cache.empty(tmp_path / "cache")
            assert built.exists()
            assert not other.exists()
        assert not install_cache.empty(tmp_path / "cache")
    assert install_cache.empty(tmp_path / "cache")
    assert not folder.exists()


def test_an_attempt_waits_while_it_is_emptied(folder: Path) -> None:
    """And then has a folder to use; one that is to end does not wait."""
    folder.mkdir(parents=True)
    emptying = Use(folder)
    assert emptying.alone()
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped), install_cache.held(folder, stop, lambda: None):
        pytest.fail("it was being emptied")
    found = []

    def attempt() -> None:
        with install_cache.held(folder, NEVER, lambda: None):
            found.append(folder.is_dir())

    thread = threading.Thread(target=attempt)
    thread.start()
    shutil.rmtree(folder)
    emptying.release()
    thread.join(30)
    assert found == [True]
    wait_for(lambda: Use(folder).alone(), "the attempt to let go")


@pytest.mark.parametrize("name", ["sdists-v9", "sdists-v9/path", "sdists-v9/path/0123", "wheels-v9/url"])
def test_a_link_in_it_leads_nowhere(folder: Path, tmp_path: Path, name: str) -> None:
    """A tree's code may write there."""
    mine = tmp_path / "mine" / "path" / "0123" / "file"
    mine.parent.mkdir(parents=True)
    mine.touch()
    (folder / name).parent.mkdir(parents=True)
    (folder / name).symlink_to(tmp_path / "mine")
    with install_cache.held(folder, NEVER, lambda: None):
        pass
    install_cache.empty(tmp_path / "cache")
    assert mine.exists()
    assert not folder.exists()


def test_what_a_tree_closed_is_emptied_too_and_leftovers_go_at_the_next_start(folder: Path, tmp_path: Path) -> None:
    (folder / "closed" / "below").mkdir(parents=True)
    (folder / "closed").chmod(0)
    assert install_cache.empty(tmp_path / "cache")
    left = folder.with_name(".gone-0123")
    left.mkdir()
    assert not install_cache.empty(tmp_path / "cache")
    room.clean(tmp_path / "cache")
    assert [path.suffix for path in folder.parent.iterdir()] == [".use"]


FULL = """
import os, pathlib, sys, threading
from worker.runtimes.disk import free
from worker.runtimes.room import Room
disk = pathlib.Path(sys.argv[1])
never, said = threading.Event(), []
runtime, kept = disk / "runtimes" / "py3.11-0123", disk / "install" / "4567"
for folder in (runtime, kept):
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(os.urandom(8 << 20))
(runtime / "ready.json").write_text("{}")
room = Room(disk, floor=free(disk) + (4 << 20), uv_cache=disk / "uv")
if sys.argv[2] == "before":
    room.look(said.append, never)
else:
    print(room.throw_one_away(said.append))
print(runtime.exists(), kept.exists(), said)
"""


@pytest.mark.parametrize(("when", "thrown"), [("before", []), ("in the middle", ["True"])])
def test_it_goes_before_any_runtime(tmp_path: Path, when: str, thrown: list[str]) -> None:
    """Before an attempt begins, and in the middle of a build that finds no room."""
    done = small_disk.run(tmp_path / "disk", 64, FULL, [str(tmp_path / "disk"), when])
    told = "True False ['what uv kept for install lines was thrown away to make room']"
    assert done.stdout.splitlines() == [*thrown, told], done.stdout + done.stderr
