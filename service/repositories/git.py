"""Runs git with nothing of the machine's own configuration, and nothing that a repository could make it run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from service.errors import RefRefused, UrlRefused

URL = re.compile(
    r"(https?|ssh|git|file)://[^-\s\0][^\s\0]*|[A-Za-z0-9_.][A-Za-z0-9_.-]*@[A-Za-z0-9.][A-Za-z0-9.-]*:[^\s\0]+|/[^\0\n]*"
)
PASSWORD = re.compile(r"[a-z]+://[^/@]*:[^/@]*@")
SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SHORT_SHA = re.compile(r"[0-9a-f]{7,64}")
# What `git check-ref-format` forbids, and a leading dash, which a command could read as an option.
BAD_REF = re.compile(r"^[-/.]|\.\.|@\{|[\x00-\x20\x7f~^:?*\[\\]|//|\.lock(/|$)|/\.|[/.]$|^@$")


class GitFailed(Exception):
    """A git command failed. ``reason`` is git's own text."""

    def __init__(self, arguments: tuple[str, ...], reason: str) -> None:
        super().__init__(f"git {' '.join(arguments)}: {reason}")
        self.reason = reason


def check_url(url: str) -> str:
    """``url``, if git will fetch it and run no program for it.

    Raises:
        UrlRefused: it is an ``ext::`` or other helper's URL, could be read as an option, or holds a password, which
            every reader of this service would see.
    """
    if PASSWORD.match(url):
        raise UrlRefused("the url holds a password, which readers of this service would see; give it without")
    if not URL.fullmatch(url):
        raise UrlRefused(
            f"url {url!r} is refused; give https://, ssh://, git://, file://, user@host:path or an absolute path"
        )
    return url


def check_ref(ref: str) -> str:
    """``ref``, if git allows such a name for a branch, a tag or a commit.

    Raises:
        RefRefused: it could be read as an option or as an expression.
    """
    if BAD_REF.search(ref):
        raise RefRefused(f"ref {ref!r} is no name of a branch or tag and no SHA; name a commit, a branch or a tag")
    return ref


def prepare(home: Path) -> None:
    """Makes the only configuration that git will read.

    ``safe.directory`` is there since a path that another user owns is still only read. It stands in a file since git
    hands no configuration of the command line on to the second git that it starts for a local path.
    """
    home.mkdir(parents=True, exist_ok=True)
    draft = home / f"gitconfig.{os.getpid()}"
    draft.write_text('[safe]\n\tdirectory = *\n[protocol "ext"]\n\tallow = never\n[core]\n\thooksPath = /dev/null\n')
    draft.replace(home / "gitconfig")


def run(
    home: Path,
    *arguments: str,
    timeout_s: float,
    stdin: bytes | None = None,
    extra: Mapping[str, str] | None = None,
) -> bytes:
    """What a git command prints on its standard output. ``home`` is a folder that ``prepare`` has seen.

    Raises:
        GitFailed: it exited with an error or ran too long.
    """
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_GLOBAL": str(home / "gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        **{key: os.environ[key] for key in ("SSH_AUTH_SOCK", "SSL_CERT_FILE", "GIT_SSH_COMMAND") if key in os.environ},
        **(extra or {}),
    }
    try:
        done = subprocess.run(
            ["git", *arguments], input=stdin or b"", capture_output=True, env=env, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise GitFailed(arguments, f"no end after {timeout_s:g} s") from error
    if done.returncode != 0:
        raise GitFailed(arguments, done.stderr.decode(errors="replace").strip()[:4000])
    return done.stdout
