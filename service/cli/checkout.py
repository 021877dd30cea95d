"""What git says of the checkout the user stands in."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from service.cli.errors import UserError

_OWN = re.compile(r"(HEAD|@)([~^@].*)?")


@dataclass(frozen=True)
class Checkout:
    """A working tree: its folder, its commit, the URLs of its remotes and the files that differ from the commit."""

    root: Path
    head: str
    remotes: tuple[str, ...]
    changed: tuple[str, ...]

    def resolve(self, ref: str) -> str:
        """A ref as it is to be sent. ``HEAD`` and ``@`` mean this checkout's, so they become commits here; any other
        name is looked up in the registered repository.
        """
        if not is_own(ref):
            return ref
        return _git(self.root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", what=f"commit of {ref!r}")


def is_own(ref: str) -> bool:
    """Whether a ref is meant from where the checkout stands: ``HEAD~2``, ``@^``."""
    return _OWN.fullmatch(ref) is not None


def read(folder: Path) -> Checkout:
    """The checkout that holds a folder.

    Raises:
        UserError: there is none, or it has no commit yet.
    """
    root = Path(_git(folder, "rev-parse", "--show-toplevel", what="checkout"))
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", what="commit")
    remotes = _git(root, "config", "--get-regexp", r"^remote\..*\.url$", may_fail=True)
    changed = _git(root, "status", "--porcelain", "-z", "--no-renames")
    return Checkout(
        root=root,
        head=head,
        remotes=tuple(line.split(" ", 1)[1] for line in remotes.splitlines() if " " in line),
        changed=tuple(entry[3:] for entry in changed.split("\0") if len(entry) > 3),
    )


def _git(folder: Path, *arguments: str, what: str = "answer", may_fail: bool = False) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError as error:
        raise UserError("git is not on PATH; install it, or give --repository and --tree") from error
    if done.returncode and not may_fail:
        reason = done.stderr.strip() or "git knows of none"
        raise UserError(f"no {what} in {folder}: {reason}; run this in a checkout, or give --repository and --tree")
    return done.stdout.removesuffix("\n")


def same_place(one: str, other: str) -> bool:
    """Whether two git URLs mean one repository, however they are spelt."""
    return _place(one) == _place(other)


def _place(url: str) -> str:
    url = url.strip().removeprefix("file://")
    if url.startswith(("/", ".", "~")):
        return str(Path(url).expanduser().resolve()).removesuffix("/.git")
    scheme, separator, rest = url.partition("://")
    if not separator:  # git@host:path
        rest = scheme.replace(":", "/", 1)
    host, _, path = rest.partition("/")
    return f"{host.rpartition('@')[2].lower()}/{path.strip('/').removesuffix('.git')}"
