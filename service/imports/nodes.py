"""Node ids of cases that a JUnit report names by file, class name and name. Pure: no database, no framework.

pytest writes `tests/test_x.py::TestA::test_b[1]` as class name `tests.test_x.TestA` and name `test_b[1]`; its family
`xunit1` adds `file`, its family `xunit2` does not. The first of these rules that fits says where the path ends and the
classes begin:

1. `file` is the path. Of an absolute one, the longest end counts that is a file of the commit or begins the class name.
2. The longest beginning of the class name that is a file of the commit, written with dots.
3. The class name up to its last part that is named as pytest looks for files: `test_*` or `*_test`.
4. There is no path: the class name stands as it is. No file is made up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

UNNAMED = "(no name)"
LONGEST_ADDRESS, MOST_PARTS = 1000, 40
"""Characters and parts of a class name or file that are looked at part by part; a longer one stands as it is."""

_FILE = re.compile(r"test_.*|.*_test", re.DOTALL)
_DRIVE = re.compile(r"[A-Za-z]:/")


class Nodes:
    """The node ids of a report whose commit has these files."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        self._files = {dotted(file): file for file in files}
        self._places: dict[tuple[str, str], tuple[str, str]] = {}

    def of(self, file: str, classname: str, name: str) -> str:
        """A case's node id. Each of the three may be empty."""
        path, classes = self._place(file, classname)
        return "::".join(part for part in (path, classes, name or UNNAMED) if part)

    def of_file(self, file: str, name: str) -> str:
        """The node id of a file that could not be collected: its path. pytest gives its dotted form as the name."""
        path, _ = self._place(file, name)
        return path or name or UNNAMED

    def _place(self, file: str, classname: str) -> tuple[str, str]:
        key = (file, classname)
        if key not in self._places:
            self._places[key] = self._by_file(_slashes(file), classname) if file else self._by_class(classname)
        return self._places[key]

    def _by_file(self, file: str, classname: str) -> tuple[str, str]:
        absolute = file.startswith("/") or _DRIVE.match(file)
        parts = _parts(file, "/") if absolute else []
        for path in (file, *("/".join(parts[first:]) for first in range(1, len(parts)))):
            classes = _behind(classname, dotted(path))
            if path and (classes is not None or self._files.get(dotted(path)) == path):
                return path, classname if classes is None else classes
        return file, classname

    def _by_class(self, classname: str) -> tuple[str, str]:
        parts = _parts(classname, ".")
        ends = range(len(parts), 0, -1)
        for end in ends:
            path = self._files.get(".".join(parts[:end]))
            if path is not None:
                return path, "::".join(parts[end:])
        for end in ends:
            if _FILE.fullmatch(parts[end - 1]):
                return "/".join(parts[:end]) + ".py", "::".join(parts[end:])
        return classname, ""


def dotted(path: str) -> str:
    """A path as pytest writes it in a class name."""
    return path.removesuffix(".py").replace("/", ".")


def _parts(text: str, mark: str) -> list[str]:
    parts = text.split(mark) if len(text) <= LONGEST_ADDRESS else []
    return parts if len(parts) <= MOST_PARTS else []


def _slashes(file: str) -> str:
    """A path as node ids have it, also where it was written on Windows."""
    return (file if "/" in file else file.replace("\\", "/")).removeprefix("./")


def _behind(classname: str, address: str) -> str | None:
    """The classes behind a file's dotted form in a class name; before it may stand what `--junit-prefix` adds."""
    _, found, rest = f".{classname}.".partition(f".{address}.")
    return rest.removesuffix(".").replace(".", "::") if found and address else None
