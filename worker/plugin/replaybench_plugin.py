"""Writes what pytest does as flushed JSON lines, for whoever runs it.

One file alone in its folder, loaded by ``-p replaybench_plugin``: Python 3.9 or newer, the standard library and pytest
only. ``REPLAYBENCH_EVENTS`` names the file that the lines are appended to; without it the plugin does nothing.
``REPLAYBENCH_SELECT`` may name a JSON file of [node id, occurrence] pairs; then only these cases run. An occurrence of
null means all, and then the id may also be that of a file, a class or a function with parameters. Lines are ASCII,
so that NUL and lone surrogates survive. A case's key is its place in the collection, not its id: ids may repeat.
``REPLAYBENCH_CAPTURED`` is the descriptor of a socket to the worker, which has sent the key that seals each line.
In a worker of pytest-xdist it writes nothing: its reports reach the controller, with what the exception alone can tell.

This file must never make a run fail that would pass without it.
"""

# ruff: noqa: ARG002 - pytest passes by name what a hook asks for; zip(strict=) needs Python 3.10
from __future__ import annotations

import collections
import contextlib
import errno
import faulthandler
import hashlib
import hmac
import json
import os
import re
import signal
import socket
import stat
import sys
from typing import Any, Callable, Deque, Dict, Generator, List, Optional, Tuple  # noqa: UP035 - Python 3.9

import pytest

_MESSAGE = 8 << 10
_TRACEBACK = 64 << 10
_EVIDENCE = 64 << 10
_DEPTH = 100  # Deeper nesting the JSON reader of the worker's Python may refuse, and the whole line with it.
_CHUNK = 500
_CHUNK_LETTERS = 256 << 10

_EVENTS = os.environ.pop("REPLAYBENCH_EVENTS", "")
_SELECT = os.environ.pop("REPLAYBENCH_SELECT", "")
_CAPTURED = os.environ.pop("REPLAYBENCH_CAPTURED", "")
_EVENTS_LOST = 174
_EVENTS_BROKEN = 175
_KEY_BYTES = 32
_SEAL = 32
_PHASES = ("setup", "call", "teardown")
_CARRIED = "replaybench_exception"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)

# A test may put something else in the place of any of these, and forget to put it back.
_dumps, _loads = json.JSONEncoder().encode, json.JSONDecoder().decode
_open, _write, _fstat, _getpid, _exit = os.open, os.write, os.fstat, os.getpid, os._exit
_hmac, _sha256 = hmac.new, hashlib.sha256

_STICKY = re.compile(
    r"device-side assert|illegal memory access|unspecified launch failure|misaligned address|illegal instruction"
    r"|hardware stack error|invalid program counter|operation not supported on global/shared address space"
    r"|launch timed out and was terminated|uncorrectable (ECC|NVLink) error"
)
"""CUDA errors after which every later call in the same process fails too (CUDA runtime API, error codes 700 to 719)."""

_CHANNEL = socket.socket(fileno=int(_CAPTURED)) if _EVENTS and _CAPTURED else None
_KEY = b""
if _CHANNEL is not None:
    _CHANNEL.set_inheritable(False)
    _KEY = _CHANNEL.recv(_KEY_BYTES, socket.MSG_WAITALL)

if _EVENTS:
    # Before capturing starts, so that a crash and an ordered dump of all threads reach the real output.
    _REAL_STDERR = os.fdopen(os.dup(2), "w")
    faulthandler.enable(_REAL_STDERR)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=_REAL_STDERR, all_threads=True)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Hand over the files that pytest captures into, which it has pointed 1 and 2 at: what was printed before a process
    ended in the middle of a case is not lost with it. Before any of the tests' own code, and the socket closes here."""
    if _CHANNEL is not None:
        with contextlib.suppress(OSError), _CHANNEL as to_worker:
            if all(stat.S_ISREG(os.fstat(file).st_mode) for file in (1, 2)):
                socket.send_fds(to_worker, [b"."], [1, 2])


def pytest_configure(config: Any) -> None:
    """Start to write, except in a worker of pytest-xdist, whose controller writes for all."""
    if hasattr(config, "workerinput"):
        if "replaybench" in config.workerinput:
            selection = _Selection(_loads(config.workerinput["replaybench"]))
            config.pluginmanager.register(_Carrier(selection), "replaybench-carrier")
    elif _EVENTS:
        config.pluginmanager.register(_Writer(_EVENTS, _selection()), "replaybench-writer")


def _selection() -> _Selection:
    if not _SELECT:
        return _Selection(None)
    with open(_SELECT, encoding="ascii") as stream:
        return _Selection(json.load(stream))


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters cut …\n{text[-half:]}"


def _safely(look: Callable[[], Any], otherwise: Callable[[BaseException], Any]) -> Any:
    """What a look at something of the tests' own finds: whatever it raises, the run goes on as without this plugin."""
    try:
        return look()
    except BaseException as error:  # noqa: BLE001 - a test's object may raise anything, SystemExit too, from __str__, a
        return otherwise(error)  # property or iteration


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def _too_deep(text: str) -> bool:
    """Whether a JSON text is nested more deeply than can be handed on."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += (found[0] in "[{") - (found[0] in "]}")
        if depth > _DEPTH:
            return True
    return False


def _jsonable(value: Any, most: int = _EVIDENCE) -> Any:
    """The value if JSON can say it within the cap, else a text of it."""

    def as_json() -> Any:
        text = _dumps(value)
        # Read back, since an object that pretends to be a dict may say something else the next time.
        return {"cut": _cut(text, most // 2)} if len(text) > most or _too_deep(text) else _loads(text)

    def as_text(_: BaseException) -> Any:
        kind = type(value).__name__
        return _safely(
            lambda: _cut(repr(value), most // 2), lambda error: f"<{kind} whose repr raises {type(error).__name__}>"
        )

    return _safely(as_json, as_text)


def _meanings(node_id: str) -> List[str]:  # noqa: UP006
    """The ids by which a case may be selected: its own, then the function, the classes and the file that hold it."""
    path, colons, rest = node_id.partition("::")
    names = rest.partition("[")[0].split("::") if colons else []
    return [node_id] + ["::".join([path] + names[:count]) for count in range(len(names), -1, -1)]  # noqa: RUF005


def _chunks(items: List[Any], letters: Callable[[Any], int]) -> List[List[Any]]:  # noqa: UP006
    """The items in pieces of which each makes a line that can be read at once."""
    chunks: List[List[Any]] = []  # noqa: UP006
    room = 0
    for item in items:
        room -= letters(item)
        if not chunks or room < 0 or len(chunks[-1]) == _CHUNK:
            chunks.append([])
            room = _CHUNK_LETTERS - letters(item)
        chunks[-1].append(item)
    return chunks


class _Selection:
    """The cases that are to run: all of them where there are no pairs."""

    def __init__(self, pairs: Optional[List[Any]]) -> None:  # noqa: UP006, UP045
        self.pairs = pairs
        self.chosen = None if pairs is None else {(node_id, occurrence) for node_id, occurrence in pairs}

    def meant(self, node_id: str) -> List[str]:  # noqa: UP006
        """The selected ids that mean a case, whichever occurrence it is."""
        return [name for name in _meanings(node_id) if (name, None) in self.chosen] if self.chosen else []

    def missing(self, node_ids: List[str]) -> List[str]:  # noqa: UP006
        """The selected ids that mean none of these."""
        names = {node_id for node_id, occurrence in self.chosen or () if occurrence is None}
        if names:
            for node_id in node_ids:
                names.difference_update(self.meant(node_id))
        return sorted(names)

    def split(self, items: List[Any]) -> Tuple[List[Any], List[int], List[Any]]:  # noqa: UP006
        """The items to keep, the occurrence of each among equal ids, and the items to leave out."""
        seen: Dict[str, int] = {}  # noqa: UP006
        kept, occurrences, left = [], [], []
        for item in items:
            occurrence = seen.get(item.nodeid, 0)
            seen[item.nodeid] = occurrence + 1
            if self.chosen is None or (item.nodeid, occurrence) in self.chosen or self.meant(item.nodeid):
                kept.append(item)
                occurrences.append(occurrence)
            else:
                left.append(item)
        return kept, occurrences, left

    def numbered(self, node_ids: List[str]) -> List[List[Any]]:  # noqa: UP006
        """The ids that a worker of pytest-xdist has kept, each with its occurrence in the whole collection."""
        numbers: Dict[str, List[int]] = {}  # noqa: UP006
        for node_id, occurrence in sorted(pair for pair in self.chosen or () if pair[1] is not None):
            if (node_id, None) not in (self.chosen or ()):
                numbers.setdefault(node_id, []).append(occurrence)
        seen: Dict[str, int] = {}  # noqa: UP006
        cases = []
        for node_id in node_ids:
            place = seen.get(node_id, 0)
            seen[node_id] = place + 1
            known = numbers.get(node_id, [])
            cases.append([node_id, known[place] if place < len(known) else place])
        return cases


class _Case:
    """What is known of the case under way."""

    def __init__(self) -> None:
        self.reports: List[Any] = []  # noqa: UP006
        self.exception: Dict[str, Any] = {}  # noqa: UP006

    def remember(self, value: BaseException) -> None:
        _safely(lambda: self.look_at(value), lambda _: None)

    def look_at(self, value: BaseException) -> None:
        kind = type(value)
        self.exception.update(
            type=_cut(f"{kind.__module__}.{kind.__qualname__}", _MESSAGE),
            bases=[_cut(base.__name__, _MESSAGE) for base in kind.__mro__[:12]],
            text=_cut(_text(value), _MESSAGE),
        )
        for name in ("failure_class", "evidence"):
            found = _attribute(value, name)
            if found is not None:
                found = getattr(found, "value", found) if name == "failure_class" else _plain_mapping(found)
                self.exception[name] = _jsonable(found)


def _attribute(value: Any, name: str) -> Any:
    return _safely(lambda: getattr(value, name, None), lambda error: f"<{name} raises {type(error).__name__}>")


def _plain_mapping(value: Any) -> Any:
    return _safely(lambda: dict(value), lambda _: {"value": _jsonable(value)})


def _text(value: BaseException) -> str:
    return str(
        _safely(lambda: str(value), lambda error: f"<{type(value).__name__} whose str raises {type(error).__name__}>")
    )


def _failed(made: Any) -> bool:
    """Whether the report that was made says so: what is skipped or fails as expected must not give its exception to a
    later failure of the same case."""
    return bool(_safely(lambda: made.get_result().failed, lambda _: True))


def _of_subtest(report: Any) -> bool:
    """Whether it tells of a subtest, by its class in pytest 9 or in pytest-subtests before. Its phase is ``call`` too,
    and the case's own report of it comes after those of all its subtests."""
    return any(kind.__name__ in ("SubtestReport", "SubTestReport") for kind in type(report).__mro__)


def _outcome(reports: List[Any]) -> Tuple[str, Any]:  # noqa: UP006
    """The one outcome over set-up, call and tear-down, as pytest counts them, and the report that decides it.

    A subtest that fails fails its case, whether or not the case's own report says so (pytest 9 does, pytest-subtests
    does not); one that is skipped or fails as expected decides nothing.
    """
    failed = [report for report in reports if report.failed]
    for report in failed:
        if report.when not in _PHASES:
            return "crashed", report
    for report in failed:
        if report.when == "call":
            return "failed", report
    if failed:
        return "error", failed[0]
    own = [report for report in reports if not _of_subtest(report)]
    for report in own:
        if report.skipped and report.when in ("setup", "call"):
            return ("xfailed" if hasattr(report, "wasxfail") else "skipped"), report
    calls = [report for report in own if report.when == "call"] or own
    return ("xpassed" if hasattr(calls[-1], "wasxfail") else "passed"), calls[-1]


def _message(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    longrepr = report.longrepr
    if isinstance(longrepr, tuple) and len(longrepr) == 3:
        return str(longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else str(longrepr or "")


def _properties(report: Any) -> Dict[str, Any]:  # noqa: UP006
    def look() -> Dict[str, Any]:  # noqa: UP006
        told: Dict[str, Any] = {}  # noqa: UP006
        room = 2 * _EVIDENCE
        for name, value in getattr(report, "user_properties", []):
            key = _cut(str(name), _MESSAGE)
            told[key] = _jsonable(value)
            room -= len(_dumps([key, told[key]]))
            if room < 0:  # The worker cuts it to less.
                break
        return told

    found: Dict[str, Any] = _safely(look, lambda error: {"unreadable": type(error).__name__})  # noqa: UP006
    return found


class _Lines:
    """The events' file, kept open; opened once more where a test closed its descriptor or put another file there."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.number = 0
        self.file = self.opened()
        self.identity = self.looked_at()

    def opened(self) -> int:
        return _open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def looked_at(self) -> Tuple[int, int]:  # noqa: UP006
        found = _fstat(self.file)
        return found.st_dev, found.st_ino

    def add(self, text: str) -> None:
        try:
            self.put(text)
        except OSError as error:  # What follows would be read wrongly, and this is no test's fault.
            lost = error.errno in _NO_ROOM
            with contextlib.suppress(OSError):
                word = "events cannot be written" if lost else "the tests broke the way of events"
                _write(_REAL_STDERR.fileno(), f"{word}: {error.strerror}\n".encode())
            _exit(_EVENTS_LOST if lost else _EVENTS_BROKEN)

    def put(self, text: str) -> None:
        if _safely(self.looked_at, lambda _: None) != self.identity:
            self.file = self.opened()
            if self.looked_at() != self.identity:
                raise OSError(errno.ESTALE, "the events' file is another one")
        self.number += 1
        told = b"%d %s" % (self.number, text.encode("ascii"))
        # An empty line before it, where somebody left half a line behind.
        data = b"\n" + _hmac(_KEY, told, _sha256).hexdigest()[:_SEAL].encode() + b" " + told + b"\n"
        while data:  # A disk that is nearly full takes a part first.
            data = data[_write(self.file, data) :]


class _Writer:
    """The plugin proper: one per pytest run."""

    def __init__(self, path: str, selection: _Selection) -> None:
        self.lines = _Lines(path)
        self.pid = os.getpid()
        self.selection = selection
        # An item may stand in the collection more than once, hence lists.
        self.occurrences: Dict[int, List[int]] = {}  # noqa: UP006
        self.indices: Dict[int, List[int]] = {}  # noqa: UP006
        self.case: Optional[_Case] = None  # noqa: UP045
        # What workers of pytest-xdist run: of each id the places that wait, and those under way; reports by worker.
        self.waiting: Dict[str, Deque[int]] = {}  # noqa: UP006
        self.under_way: Dict[str, Deque[int]] = {}  # noqa: UP006
        self.spread: Dict[Tuple[str, str], _Case] = {}  # noqa: UP006

    def write(self, event: str, **fields: Any) -> None:
        if _getpid() == self.pid:  # A test may fork and let its child run on.
            self.lines.add(_dumps({"e": event, **fields}))

    def pytest_sessionstart(self, session: Any) -> None:
        self.write("session", pid=self.pid, pytest=pytest.__version__)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: Any, items: List[Any]) -> Generator[None, None, None]:  # noqa: UP006
        yield
        missing = self.selection.missing([item.nodeid for item in items])
        kept, occurrences, left = self.selection.split(items)
        for item, occurrence in zip(kept, occurrences):  # noqa: B905
            self.occurrences.setdefault(id(item), []).append(occurrence)
        self.tell_missing(missing)
        if left:
            items[:] = kept
            config.hook.pytest_deselected(items=left)

    def tell_missing(self, missing: List[str]) -> None:  # noqa: UP006
        for ids in _chunks(missing, len):
            self.write("missing", ids=ids)

    def pytest_collection_finish(self, session: Any) -> None:
        cases = []
        for index, item in enumerate(session.items):
            occurrences = self.occurrences.get(id(item))
            cases.append([item.nodeid, occurrences.pop(0) if occurrences else 0])
            self.indices.setdefault(id(item), []).append(index)
        self.tell(cases)

    def tell(self, cases: List[Any]) -> None:  # noqa: UP006
        for chunk in _chunks(cases, lambda case: len(case[0])):
            self.write("cases", cases=chunk)
        self.write("collected", count=len(cases))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed or report.skipped:
            outcome = "error" if report.failed else "skipped"
            text = str(getattr(report, "longreprtext", "") or report.longrepr)
            message = _message(report) if report.skipped else text.strip().rsplit("\n", 1)[-1]
            self.write(
                "collector",
                id=report.nodeid,
                outcome=outcome,
                message=_cut(message, _MESSAGE),
                traceback=_cut(text, _TRACEBACK) if report.failed else "",
            )

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, None, None]:
        indices = self.indices.get(id(item))
        if not indices:
            yield
            return
        index = indices.pop(0)
        self.case = case = _Case()
        self.write("started", index=index)
        yield
        self.case = None
        broken = _broken_device()
        if any(report.when == "teardown" for report in case.reports):  # Else pytest itself was interrupted.
            self.finish(case, {"index": index}, broken)
        sticky = broken or case.exception.get("sticky")
        if sticky:
            self.write("poisoned", index=index, message=_cut(sticky, _MESSAGE))
            item.session.shouldfail = "a CUDA error that lasts as long as the process: the rest runs in a fresh one"

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, None]:
        made = yield
        if self.case is not None and call.excinfo is not None:
            value = call.excinfo.value
            if "type" not in self.case.exception and _failed(made):
                self.case.remember(value)
            text = _text(value)
            if _STICKY.search(text) and ("CUDA" in text or "cuda" in text):
                self.case.exception.setdefault("sticky", _cut(text, _MESSAGE))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.case is not None:
            self.case.reports.append(report)
            return
        key = (_worker_of(report), report.nodeid)
        case = self.spread.setdefault(key, _Case())
        case.reports.append(report)
        carried = getattr(report, _CARRIED, None)
        if isinstance(carried, str) and not case.exception:
            case.exception = _safely(lambda: dict(_loads(carried)), lambda _: {})
        if report.when not in _PHASES:  # The worker has crashed.
            self.finish_spread(key)

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        if self.case is None and self.waiting.get(nodeid):
            index = self.waiting[nodeid].popleft()
            self.under_way.setdefault(nodeid, collections.deque()).append(index)
            self.write("started", index=index, beside=True)

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        for key, case in self.spread.items() if self.case is None else ():
            if key[1] == nodeid and any(report.when == "teardown" for report in case.reports):
                self.finish_spread(key)
                return

    def finish_spread(self, key: Tuple[str, str]) -> None:  # noqa: UP006
        case = self.spread.pop(key)
        places = self.under_way.get(key[1]) or self.waiting.get(key[1])
        if places:
            self.finish(case, {"index": places.popleft()}, None)

    def finish(self, case: _Case, key: Dict[str, Any], broken: Optional[str]) -> None:  # noqa: UP006, UP045
        def unreadable(error: BaseException) -> Dict[str, Any]:  # noqa: UP006
            """A report that some other plugin has put together wrongly. What it meant nobody can say."""
            message = f"the report of this case cannot be read: {type(error).__name__}"
            return {"outcome": "error", "duration": 0.0, "message": message, "traceback": "", "properties": {},
                    "exception": {}}  # fmt: skip

        said = _safely(lambda: _loads(_dumps(self.said(case, broken))), unreadable)
        self.write("finished", **said, **key)

    def said(self, case: _Case, broken: Optional[str]) -> Dict[str, Any]:  # noqa: UP006, UP045
        outcome, report = _outcome(case.reports)
        own = [item for item in case.reports if not _of_subtest(item)]
        message, traceback = _message(report), ""
        if outcome in ("failed", "error", "crashed"):
            traceback = str(report.longreprtext)
        elif broken:
            outcome, message = "error", f"the case left the CUDA device unusable: {broken}"
            case.exception = {"type": "CUDA", "bases": [], "text": broken}
        return {
            "outcome": outcome,
            "duration": sum(float(getattr(item, "duration", 0.0)) for item in own),
            "message": _cut(message, _MESSAGE) if outcome != "passed" else "",
            "traceback": _cut(traceback, _TRACEBACK),
            "properties": _properties(own[-1] if own and _of_subtest(report) else report),
            "exception": case.exception if outcome in ("failed", "error") else {},
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["replaybench"] = _dumps(self.selection.pairs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: List[str]) -> None:  # noqa: UP006
        if not self.waiting:
            self.tell_missing(self.selection.missing(ids))
            for index, node_id in enumerate(ids):
                self.waiting.setdefault(node_id, collections.deque()).append(index)
            self.tell(self.selection.numbered(ids))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: Any, exitstatus: Any) -> None:
        self.write("session-finished", exit=int(exitstatus))


class _Carrier:
    """In a worker of pytest-xdist: runs what is selected, and sends along what only the exception itself can tell."""

    def __init__(self, selection: _Selection) -> None:
        self.selection = selection
        self.case = _Case()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: Any, items: List[Any]) -> Generator[None, None, None]:  # noqa: UP006
        yield
        kept, _, left = self.selection.split(items)
        if left:
            items[:] = kept
            config.hook.pytest_deselected(items=left)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, None, None]:
        self.case = _Case()
        yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, None]:
        made = yield
        if call.excinfo is None or self.case.exception or not _failed(made):
            return
        self.case.remember(call.excinfo.value)
        _safely(lambda: setattr(made.get_result(), _CARRIED, _dumps(self.case.exception)), lambda _: None)


def _worker_of(report: Any) -> str:
    return str(_safely(lambda: report.node.gateway.id, lambda _: ""))


def _broken_device() -> Optional[str]:  # noqa: UP045
    """A lasting CUDA error that is still unseen: kernels fail late, and the next case must not be blamed."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None

    def look() -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    # torch raises several types, and a test may have replaced any of it.
    return _safely(look, lambda error: str(error) if _STICKY.search(str(error)) else None)  # type: ignore[no-any-return]
