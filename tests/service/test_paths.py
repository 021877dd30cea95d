"""An empty text is no path: taken for one it would be the current directory, and tokens would lie in a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from pydantic_settings import BaseSettings

from service.cli.main import app
from service.settings import Settings, SettingsError, load
from tests.docs.test_settings_page import variables
from tests.support import embedded
from worker.settings import Settings as WorkerSettings


def path_options(app: typer.Typer, name: str = "") -> Iterator[tuple[str, typer.models.ParameterInfo]]:
    """Every option and argument that is a path, of the commands of an app and of those below it."""
    for command in (app.registered_callback, *app.registered_commands):
        if command is not None and command.callback is not None:
            for key, hint in get_type_hints(command.callback, include_extras=True).items():
                if "pathlib.Path" in str(hint):
                    yield f"{name}{command.callback.__name__} {key}", hint.__metadata__[0]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from path_options(group.typer_instance, f"{name}{group.name} ")


def test_no_path_of_the_command_line_is_empty() -> None:
    """Options and arguments alike, whichever command they are of."""
    found = dict(path_options(app))
    assert {"up data_dir", "export output", "verify file", "submit probe", "repos credential known_hosts"} <= set(found)
    for name, option in found.items():
        assert option.parser is not None, f"{name}: give it the parser `service.cli.options.path`"
        with pytest.raises(typer.BadParameter):
            option.parser("")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("up", "--data-dir", ""), "--data-dir"),
        (("verify", ""), "FILE"),
        (("repos", "credential", "demo", "--ssh-key", ""), "--ssh-key ''"),
    ],
)
def test_an_empty_path_is_refused_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = embedded.command(*arguments, cwd=tmp_path, REPLAYBENCH_DATA_DIR=str(tmp_path / "data"))
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    told = " ".join(done.stderr.replace("│", " ").split())
    assert message in told
    assert "'' names no file" in told


def test_an_empty_variable_for_the_data_directory_is_refused(tmp_path: Path) -> None:
    """By every command that would look there."""
    for command in ("up", "jobs"):
        done = embedded.command(command, cwd=tmp_path, REPLAYBENCH_DATA_DIR="")
        assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
        assert "REPLAYBENCH_DATA_DIR='': an empty value names no directory; name one" in done.stderr


@pytest.mark.parametrize("settings", [Settings, WorkerSettings])
def test_no_setting_takes_an_empty_value_for_the_current_directory(
    settings: type[BaseSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, or counts as unset."""
    monkeypatch.setenv("REPLAYBENCH_WORKER_TOKEN", "x" * 24)
    monkeypatch.setenv("REPLAYBENCH_SERVICE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("BROKER_URL", "redis://127.0.0.1:1")
    for name in sorted(variables(settings)):
        with monkeypatch.context() as here:
            here.setenv(name, "")
            try:
                made = settings()
            except ValueError:
                continue
        told = {key: value for key, value in made if Path() in _paths(value)}
        assert not told, name


def _paths(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, tuple) else [value]


def test_the_service_names_what_is_wrong_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYBENCH_DATA_DIR", "")
    with pytest.raises(SettingsError, match=r"^REPLAYBENCH_DATA_DIR='': an empty value"):
        load()
