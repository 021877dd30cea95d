"""What the images take from the rest of the repository is there, by the names they use. An engine has to build them."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import service.variables
import worker.variables
from scripts.toolchain import UV_VERSION

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKER = ROOT / "docker"
FILES = sorted(DOCKER.glob("*.Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
BY_SIDE = {"service": service.variables.own(), "worker": worker.variables.own()}


def instructions(file: Path) -> list[tuple[str, str]]:
    """A Dockerfile's instructions, each with its arguments in one line."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_everything_copied_is_in_the_repository_and_in_the_context(file: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [source for name, rest in instructions(file) if name == "COPY" for source in rest.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    assert not [source for source in copied if any(fnmatch(source, pattern) for pattern in ignored)]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["build-backend"]["module-name"]
    assert {*packages, "pyproject.toml", "uv.lock"} <= set(copied)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_image_has_the_uv_of_the_other_set_ups(file: Path) -> None:
    assert re.findall(r"uv==([\d.]+)", file.read_text()) == [UV_VERSION]


@pytest.mark.parametrize("side", BY_SIDE)
def test_every_variable_is_one_that_is_read(side: str) -> None:
    arguments = dict(instructions(DOCKER / f"{side}.Dockerfile"))["ENV"].split()
    given = {argument.partition("=")[0] for argument in arguments} | set(COMPOSE[side]["environment"])
    ours = {name for name in given if name.startswith("REPLAYBENCH_")}
    assert ours
    assert ours <= BY_SIDE[side]


@pytest.mark.parametrize("side", BY_SIDE)
def test_an_engine_can_end_the_program(side: str) -> None:
    """A shell as the first process keeps SIGTERM to itself, so it must have become the program."""
    file = DOCKER / COMPOSE[side]["build"]["dockerfile"].removeprefix("docker/")
    command = COMPOSE[side].get("command", dict(instructions(file))["CMD"])
    assert re.search(r'"replaybench", |&& exec replaybench \w+"$', command)


def test_whoever_depends_waits_until_the_other_is_healthy() -> None:
    for one in COMPOSE.values():
        for other, how in one.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in COMPOSE[other]
