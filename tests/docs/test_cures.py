"""Each cure of the library stands where scripts/cure_list.py takes it out, and the tests that need it are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.cure_list import CURES, Cure

ROOT = Path(__file__).resolve().parent.parent.parent
EACH = pytest.mark.parametrize("cure", CURES, ids=lambda cure: cure.name.replace(" ", "-"))


@EACH
def test_a_cure_is_in_the_package(cure: Cure) -> None:
    """A change of the package that an edit no longer fits is seen here, and not on a GPU."""
    for edit in cure.edits:
        found = (ROOT / "library/graphreplay" / edit.file).read_text().count(edit.old)
        assert found == edit.count, f"{edit.file} has {found} times, not {edit.count}: {edit.old!r}"
        assert edit.new != edit.old


@EACH
def test_a_cure_names_tests_of_the_tree(cure: Cure) -> None:
    assert cure.gpu or cure.cpu
    for test in (*cure.gpu, *cure.cpu):
        file, name = re.fullmatch(r"([^:]+)::(\w+)(?:\[.*\])?", test).groups()  # type: ignore[union-attr]
        assert f"def {name}(" in (ROOT / "tests/library" / file).read_text(), test
