"""Settings are read once, and garbage is named with its variable, its value and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from worker.settings import SettingsError, load


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BROKER_URL", "redis://127.0.0.1:6379/0")
    monkeypatch.setenv("REPLAYBENCH_SERVICE_URL", "http://127.0.0.1:8000/")
    monkeypatch.setenv("REPLAYBENCH_WORKER_TOKEN", "secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_defaults_suit_one_cpu_worker(tmp_path: Path) -> None:
    """One slot, the user's cache folder, nothing shown of the token."""
    settings = load()
    assert (settings.cpu_slots, settings.cache_dir) == (1, tmp_path / "replaybench")
    assert settings.service_url == "http://127.0.0.1:8000"
    assert "secret" not in repr(settings)
    with pytest.raises(ValidationError):
        settings.cpu_slots = 2  # type: ignore[misc]


def test_lists_are_written_as_a_shell_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreters as in PATH, labels and mounts with commas."""
    monkeypatch.setenv("REPLAYBENCH_HOST_RUNTIMES", "/a/python:/b/python")
    monkeypatch.setenv("REPLAYBENCH_LABELS", "big, arm")
    monkeypatch.setenv("REPLAYBENCH_MOUNTS", "coco=/data/coco,voc=/data/voc")
    settings = load()
    assert settings.host_runtimes == (Path("/a/python"), Path("/b/python"))
    assert settings.labels == ("big", "arm")
    assert settings.mounts == {"coco": Path("/data/coco"), "voc": Path("/data/voc")}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REPLAYBENCH_CPU_SLOTS", "many"),
        ("REPLAYBENCH_CPU_SLOTS", "0"),
        ("REPLAYBENCH_BUILDS", "perhaps"),
        ("REPLAYBENCH_MOUNTS", "coco"),
        ("REPLAYBENCH_MOUNTS", "coco=relative"),
        ("REPLAYBENCH_SERVICE_URL", "not a url"),
        ("REPLAYBENCH_FLUSH_S", "-1"),
    ],
)
def test_garbage_is_loud(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Never a default in silence."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as error:
        load()
    assert name in str(error.value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("name", ["BROKER_URL", "REPLAYBENCH_SERVICE_URL", "REPLAYBENCH_WORKER_TOKEN"])
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With what to set."""
    monkeypatch.delenv(name)
    with pytest.raises(SettingsError, match=rf"{name}.* set|set .*{name}"):
        load()


def test_the_token_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that cannot be read says what to do."""
    monkeypatch.delenv("REPLAYBENCH_WORKER_TOKEN")
    monkeypatch.setenv("REPLAYBENCH_WORKER_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(SettingsError, match="start the service once"):
        _ = load().token
    (tmp_path / "token").write_text("from-file\n")
    assert load().token == "from-file"


def test_uv_is_found_or_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By name on PATH, by its path, or with a word on what to install."""
    (tmp_path / "my-uv").write_text("#!/bin/sh\n")
    (tmp_path / "my-uv").chmod(0o755)
    monkeypatch.setenv("REPLAYBENCH_UV", str(tmp_path / "my-uv"))
    assert load().uv_command == str(tmp_path / "my-uv")
    monkeypatch.setenv("REPLAYBENCH_UV", "no-such-uv")
    with pytest.raises(SettingsError, match="install uv"):
        _ = load().uv_command
