"""Makes a probe of a working tree: what is tracked and what is new, and nothing of the checkout is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.cli.checkout import Checkout
from service.cli.errors import UserError

MOST_PATCH_BYTES = 16 * 2**20
MOST_FILE_BYTES = 256 * 2**20
"""All changed files together; they are read and compressed before it is known how large the patch will be."""
GITLINK = "160000"
# What a user may have configured for reading diffs must not change the patch.
PLAIN = ("-c", "core.safecrlf=false", "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "-c",
         "advice.addEmbeddedRepo=false")  # fmt: skip
DIFF = ("diff", "--cached", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames",
        "--src-prefix=a/", "--dst-prefix=b/", "--unified=3", "--ignore-submodules=all")  # fmt: skip


@dataclass(frozen=True)
class Dirt:
    """The patch from HEAD to the working tree, and the changed submodules and nested repositories it leaves out."""

    patch: bytes
    left_out: tuple[str, ...]


def probe_of(checkout: Checkout) -> Dirt:
    """The probe of a checkout's working tree: tracked, staged and untracked files, but none that git ignores.

    A copy of the index and a throw-away object folder take what git writes; index, HEAD and objects stay as they are.

    Raises:
        UserError: nothing has changed, it is too large, or git fails.
    """
    _check_sizes(checkout)
    with tempfile.TemporaryDirectory(prefix="replaybench-dirty-") as folder:
        env = _scratch(checkout.root, Path(folder))
        _git(checkout.root, env, "add", "--all")
        links = _links(checkout.root, env)
        patch = _git(checkout.root, env, *DIFF, checkout.head)
    left_out = tuple(sorted(links & {name.rstrip("/") for name in checkout.changed}))
    if not patch.strip():
        only = f" but in {', '.join(left_out)}, which a probe leaves out" if left_out else ""
        raise UserError(f"--dirty: the checkout does not differ from {checkout.head[:7]}{only}; submit without --dirty")
    if len(patch) > MOST_PATCH_BYTES:
        raise UserError(
            f"--dirty: the patch has {len(patch)} bytes, and {MOST_PATCH_BYTES} are taken; add what need not be tested "
            f"to .gitignore ({_largest(checkout)})"
        )
    return Dirt(patch, left_out)


def _scratch(root: Path, folder: Path) -> Mapping[str, str]:
    (folder / "objects").mkdir()
    index = root / _git(root, {}, "rev-parse", "--git-path", "index").decode().rstrip("\n")
    if index.is_file():
        shutil.copyfile(index, folder / "index")  # it knows which files need not be read again
    objects = root / _git(root, {}, "rev-parse", "--git-path", "objects").decode().rstrip("\n")
    return {
        "GIT_INDEX_FILE": str(folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects),
    }


def _links(root: Path, env: Mapping[str, str]) -> set[str]:
    entries = os.fsdecode(_git(root, env, "ls-files", "--stage", "-z")).split("\0")
    return {entry.partition("\t")[2] for entry in entries if entry.startswith(GITLINK)}


def _files(checkout: Checkout) -> dict[str, int]:
    """The sizes of what differs. A folder that is new as a whole stands for its files that git does not ignore."""
    listed = _git(checkout.root, {}, "ls-files", "--modified", "--others", "--exclude-standard", "-z")
    sizes = {}
    for name in {*os.fsdecode(listed).split("\0"), *checkout.changed} - {""}:
        file = checkout.root / name
        sizes[name] = file.lstat().st_size if file.is_file() and not file.is_symlink() else 0
    return sizes


def _check_sizes(checkout: Checkout) -> None:
    total = sum(_files(checkout).values())
    if total > MOST_FILE_BYTES:
        raise UserError(
            f"--dirty: {total} bytes differ from the commit, and {MOST_FILE_BYTES} are looked at; add what need not be "
            f"tested to .gitignore ({_largest(checkout)})"
        )


def _largest(checkout: Checkout) -> str:
    sizes = sorted(_files(checkout).items(), key=lambda item: -item[1])[:3]
    return "the largest: " + ", ".join(f"{name} {size} bytes" for name, size in sizes)


def _git(root: Path, env: Mapping[str, str], *arguments: str) -> bytes:
    command: Sequence[str] = ["git", "-C", str(root), *PLAIN, *arguments]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise UserError(f"--dirty: git {arguments[0]} fails in {root}: {reason}")
    return done.stdout
