"""Runs git with nothing of the machine's own configuration, and nothing that a repository could make it run."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from service.errors import RefRefused, UrlRefused
from worker.gitaccess.access import AccessFailed, Credential, lent, next_step
from worker.gitaccess.address import AddressRefused, check

URL = re.compile(
    r"(https?|ssh|git|file)://[^-\s\0][^\s\0]*|[A-Za-z0-9_.][A-Za-z0-9_.-]*@[A-Za-z0-9.][A-Za-z0-9.-]*:[^\s\0]+|/[^\0\n]*"
)
PASSWORD = re.compile(r"[a-z]+://[^/@]*:[^/@]*@|https?://[^/@]*@")
SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SHORT_SHA = re.compile(r"[0-9a-f]{7,64}")
# What `git check-ref-format` forbids, and a leading dash, which a command could read as an option.
BAD_REF = re.compile(r"^[-/.]|\.\.|@\{|[\x00-\x20\x7f~^:?*\[\\]|//|\.lock(/|$)|/\.|[/.]$|^@$")


OPTIONS = (
    # Unset, git looks for these two below the user's home, with no regard to which configuration it may read.
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "credential.helper=",
    # A pack is renamed into place when it is whole; loose objects come one by one, and a git that is killed between
    # them leaves a commit that is there and trees that are not.
    "fetch.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
)


class GitFailed(Exception):
    """A git command failed. ``reason`` is git's own text, ``status`` its exit status: ``None`` where it had none,
    negative where a signal ended it."""

    def __init__(self, arguments: tuple[str, ...], reason: str, status: int | None = None) -> None:
        super().__init__(f"git {' '.join(arguments)}: {reason}")
        self.reason, self.status = reason, status


def check_url(url: str) -> str:
    """``url``, if git will fetch it and run no program for it.

    Raises:
        UrlRefused: it is an ``ext::`` or other helper's URL, could be read as an option, or holds a password, which
            every reader of this service would see (as a user of https is a token, often enough); or workers, which
            look closer at hosts and ports, would not fetch it.
    """
    if PASSWORD.match(url):
        raise UrlRefused(
            "the url holds a user or password, which readers of this service would see; give it without, and then "
            "`replaybench repos credential NAME --token -`"
        )
    if not URL.fullmatch(url):
        raise UrlRefused(
            f"url {url!r} is refused; give https://, ssh://, git://, file://, user@host:path or an absolute path"
        )
    try:
        check(url)
    except AddressRefused as error:
        raise UrlRefused(
            f"url is refused, since no worker would fetch it: {error}; a host has letters a to z, digits, '-', '_' and "
            "'.' (give another one in its xn-- form), and a port is 1 to 65535"
        ) from error
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
    credential: Credential | None = None,
) -> bytes:
    """What a git command prints on its standard output. ``home`` is a folder that ``prepare`` has seen.

    A credential is lent to this command alone, and is in none of its texts.

    Raises:
        GitFailed: it exited with an error or ran too long.
    """
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_GLOBAL": str(home / "gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_ASKPASS": "",
        "GIT_TERMINAL_PROMPT": "0",
        **{key: os.environ[key] for key in ("SSH_AUTH_SOCK", "SSL_CERT_FILE", "GIT_SSH_COMMAND") if key in os.environ},
        **(extra or {}),
    }
    try:
        with lent(credential, os.environ) if credential else contextlib.nullcontext() as access:
            options = [word for option in (*OPTIONS, *(access.options if access else ())) for word in ("-c", option)]
            process = subprocess.Popen(
                ["git", *options, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env | dict(access.env) if access else env,
            )
            if access:
                access.admit(process.pid)
            output, said = _end(process, arguments, stdin or b"", timeout_s)
    except AccessFailed as error:
        raise GitFailed(arguments, f"the repository's credential cannot be used: {error}") from error
    if process.returncode != 0:
        text = said.decode(errors="replace").strip()
        reason = (credential.redact(text) if credential else text)[:4000]
        raise GitFailed(arguments, f"{reason}{next_step(reason, 'the repository')}", process.returncode)
    return output


def _end(
    process: subprocess.Popen[bytes], arguments: tuple[str, ...], stdin: bytes, timeout_s: float
) -> tuple[bytes, bytes]:
    """Output and errors of a command that has ended, or was ended when it ran too long."""
    try:
        return process.communicate(stdin, timeout_s)
    except subprocess.TimeoutExpired as error:
        raise GitFailed(arguments, f"no end after {timeout_s:g} s (REPLAYBENCH_GIT_TIMEOUT_S)") from error
    finally:
        if process.poll() is None:
            process.kill()
        # Nothing more is read: a program that git started, and that outlives it, may hold the other ends open.
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
