"""What holds for every command: help, JSON, completion."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from service.cli.main import app
from tests.support import embedded

# These run until they are stopped, or write what has a form of its own.
OF_THE_WORKER = {f"worker {name}" for name in ("gpus", "clear", "spools", "deliver")}
WITHOUT_JSON = {"up", "serve", "db upgrade", "export", "junit", *OF_THE_WORKER}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    below_it = getattr(command, "commands", None)
    if below_it is not None:
        for name, below in below_it.items():
            yield from leaves(below, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does_and_every_option_too(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    options = [one for one in command.params if one.param_type_name == "option"]
    silent = [one.name for one in options if not one.help and not one.hidden]
    assert not silent


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - WITHOUT_JSON))
def test_what_shows_something_does_so_as_json(name: str) -> None:
    assert "--json" in {option for one in COMMANDS[name].params for option in one.opts}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("replaybench com", {"compare"}),
        ("replaybench repos ho", {"hook-secret"}),
        ("replaybench jobs --l", {"--limit"}),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, offered: set[str]) -> None:
    asked = {"_REPLAYBENCH_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    script = Path(sys.executable).with_name("replaybench")
    done = subprocess.run([script], env=embedded.environment(**asked), capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == offered
