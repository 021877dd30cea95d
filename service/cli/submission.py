"""Makes a job of what was asked at the command line, and sends it."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.cli import checkout as checkouts
from service.cli.checkout import Checkout
from service.cli.errors import UserError
from service.cli.output import refusing
from service.cli.registry import repository_of
from service.client.client import Client
from service.jobs.schemas import JobInput, TreeInput
from service.matrix.config import FILE

SHOWN_CHANGES = 5
_CONFIGURATION = re.compile(
    rb"^((---|\+\+\+) [^/\n]+/|rename (from|to) )" + re.escape(FILE.encode()) + rb"(\s.*)?$", re.MULTILINE
)
"""The lines of a patch that name the root's own ``replaybench.toml``."""


@dataclass(frozen=True)
class Request:
    """What was asked."""

    repository: str | None
    trees: Sequence[str]
    probes: Sequence[Path]
    with_plain: bool
    runtimes: Sequence[str]
    suites: Sequence[str]
    include: Sequence[str]
    exclude: Sequence[str]
    priority: int
    label: str | None
    work_package: str | None
    reason: str | None
    dirty: bool = False
    baseline: str | None = None
    keyword: str = ""
    cases: Sequence[str] = ()
    only_failed_of: int | None = None
    repeat: int = 1


def make_job(request: Request, client: Client, folder: Path, note: Callable[[str], None]) -> JobInput:
    """The job of a request made in a folder; what is left out comes from the checkout there.

    Raises:
        UserError: the request does not fit together, or there is no checkout to take the rest from.
    """
    _check(request)
    probes = [_read_probe(file, note) for file in request.probes]
    named = [*request.trees, *([request.baseline] if request.baseline else [])]
    checkout = None
    if request.repository is None or not request.trees or any(checkouts.is_own(ref) for ref in named):
        checkout = checkouts.read(folder)
    repository = request.repository
    if repository is None and checkout is not None:
        repository = repository_of(client, checkout, note)
    refs = _refs(request, checkout, note)
    if request.dirty and checkout is not None:
        probes = [_dirty_probe(checkout, note)]
    with refusing():
        trees = [TreeInput(ref=ref, probe=probe) for ref in refs for probe in _with_plain(request, probes)]
    with refusing(ref="--baseline"):
        if request.baseline is not None:
            trees.insert(0, TreeInput(ref=checkout.resolve(request.baseline) if checkout else request.baseline))
    with refusing():
        return JobInput(
            repository=repository or "",
            trees=trees,
            runtimes=list(request.runtimes) or None,
            suites=list(request.suites) or None,
            include=tuple(request.include),
            exclude=tuple(request.exclude),
            keyword=request.keyword,
            cases=tuple(request.cases),
            only_failed_of=request.only_failed_of,
            repeat=request.repeat,
            priority=request.priority,
            label=request.label,
            work_package=request.work_package,
            requested_by=user(),
            reason=request.reason,
        )


def _check(request: Request) -> None:
    if request.with_plain and not request.probes and not request.dirty:
        raise UserError("--with-plain goes with --probe or --dirty: without one, every tree is plain already")
    if request.dirty and (request.trees or request.probes):
        raise UserError("--dirty means this checkout as it stands; leave out --tree and --probe, or leave out --dirty")


def _dirty_probe(checkout: Checkout, note: Callable[[str], None]) -> bytes:
    from service.cli.dirty import probe_of

    dirt = probe_of(checkout)
    if dirt.left_out:
        note(f"submodules and nested repositories are left out of the probe: {', '.join(dirt.left_out)}")
    _note_configuration("the checkout", dirt.patch, note)
    return dirt.patch


def _refs(request: Request, checkout: Checkout | None, note: Callable[[str], None]) -> list[str]:
    if checkout is None:
        return list(request.trees)
    if request.trees:
        return [checkout.resolve(ref) for ref in request.trees]
    if checkout.changed and not request.dirty:
        note(dirty(checkout))
    return [checkout.head]


def dirty(checkout: Checkout) -> str:
    """Says that the working tree holds what will not be tested."""
    shown = ", ".join(checkout.changed[:SHOWN_CHANGES])
    more = len(checkout.changed) - SHOWN_CHANGES
    files = f"{shown} and {more} more" if more > 0 else shown
    return f"the checkout differs from its commit ({files}); what is tested is the commit {checkout.head[:7]}"


def _with_plain(request: Request, probes: Sequence[bytes]) -> Sequence[bytes | None]:
    return [None, *probes] if request.with_plain or not probes else probes


def _read_probe(file: Path, note: Callable[[str], None]) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"--probe {str(file)!r} cannot be read: {error.strerror}") from error
    if not content.strip():
        raise UserError(f"--probe {str(file)!r} is empty; make one with `git diff --binary > {file.name}`")
    _note_configuration(f"--probe {str(file)!r}", content, note)
    return content


def _note_configuration(what: str, patch: bytes, note: Callable[[str], None]) -> None:
    """Says which of a probe's changes change no plan: a probe must not choose what proves it."""
    if _CONFIGURATION.search(patch):
        note(
            f"{what} changes {FILE}, and suites, matrix and install lines are taken from the commit's; commit the file "
            "to have them used"
        )


def user() -> str | None:
    """Who is signed in on this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return None
