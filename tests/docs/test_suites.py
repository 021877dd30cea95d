"""This tree's own suites: what replaybench.toml declares is there, and README.md names it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from service.matrix import config
from worker.messages import SuiteSpec

ROOT = Path(__file__).resolve().parent.parent.parent
SUITES = config.parse((ROOT / config.FILE).read_bytes()).suites
EACH = pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES.keys())
MARKERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
CONFTEST = (ROOT / "tests/library/conftest.py").read_text()


@EACH
def test_a_suite_declares_paths_that_are_there(suite: SuiteSpec) -> None:
    assert suite.paths
    assert all((ROOT / path).exists() for path in suite.paths)


@EACH
def test_a_suite_asks_for_markers_that_are_registered(suite: SuiteSpec) -> None:
    """For the whole tree, and for the library's tests where they run without it."""
    asked = set(re.findall(r"\w+", suite.markers)) - {"and", "or", "not"}
    assert asked <= {line.partition(":")[0] for line in MARKERS}
    assert all(f'"markers", "{name}:' in CONFTEST for name in asked)


@EACH
def test_a_suite_for_cuda_makes_cublas_repeat_itself(suite: SuiteSpec) -> None:
    """torch's deterministic mode refuses to multiply matrices without."""
    if suite.kind.startswith("cuda"):
        assert suite.env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@EACH
def test_the_readme_names_a_suite(suite: SuiteSpec) -> None:
    assert f"`{suite.name}`" in (ROOT / "README.md").read_text()


def test_the_keyword_for_two_devices_finds_tests() -> None:
    suite = SUITES["two-devices"]
    assert suite.kind == "cuda.2"
    assert any(suite.keyword in (ROOT / path).read_text() for path in suite.paths)
