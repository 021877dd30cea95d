"""What pip is configured with, in uv's words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import worker.runtimes.package_sources
from worker.runtimes.package_sources import uv_environment


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose pip has no configuration at all."""
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "xdg"), "PIP_CONFIG_FILE": "/dev/null"}


def test_no_configuration_says_nothing(bare: dict[str, str]) -> None:
    """uv is then left to its own defaults."""
    assert uv_environment(bare) == {}


def test_pips_variables_become_uvs(bare: dict[str, str], tmp_path: Path) -> None:
    """Indexes, wheelhouses with commas, certificate, constraint; several indexes are merged, as pip does."""
    (tmp_path / "a b").mkdir()
    for name in ("wheels", "simple"):
        (tmp_path / name).mkdir()
    for name in ("ca.pem", "c.txt"):
        (tmp_path / name).touch()
    pip = {
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "PIP_EXTRA_INDEX_URL": f"https://more.example/simple file://{tmp_path}/simple",
        "PIP_FIND_LINKS": f"{tmp_path}/wheels https://wheels.example/",
        "PIP_CERT": f"{tmp_path}/ca.pem",
        "PIP_CONSTRAINT": f"{tmp_path}/c.txt",
        "PIP_TIMEOUT": "15.5",
    }
    assert uv_environment(bare | pip) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": f"https://more.example/simple file://{tmp_path}/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{tmp_path}/wheels,https://wheels.example/",
        "UV_CONSTRAINT": f"{tmp_path}/c.txt",
        "UV_HTTP_TIMEOUT": "15",
        "SSL_CERT_FILE": f"{tmp_path}/ca.pem",
    }


def test_what_is_missing_is_left_out(bare: dict[str, str]) -> None:
    """uv fails where pip only warns: folders and files that do not exist are not handed over."""
    gone = {
        "PIP_FIND_LINKS": "/no/such",
        "PIP_EXTRA_INDEX_URL": "file:///no/such",
        "PIP_CERT": "/no",
        "PIP_CONSTRAINT": "/n",
    }
    assert uv_environment(bare | gone) == {}


@pytest.mark.parametrize("own", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_uvs_own_variables_win(bare: dict[str, str], own: str) -> None:
    """Whoever told uv is not overruled."""
    told = {"PIP_INDEX_URL": "https://pip.example/simple", own: "https://uv.example/simple"}
    assert uv_environment(bare | told) == {}


def test_files_count_in_pips_order(tmp_path: Path) -> None:
    """Global, then the user's, then the one that is named, then variables; [install] before [global]."""
    for folder, text in {
        "xdg/pip": "[global]\nindex-url = https://global.example\nextra-index-url = https://extra.example\n",
        ".config/pip": "[global]\nindex_url = https://user.example\n[install]\nindex-url = https://install.example\n",
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pip.conf").write_text(text)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
    assert uv_environment(environ)["UV_DEFAULT_INDEX"] == "https://install.example"
    assert "https://extra.example" in uv_environment(environ)["UV_INDEX"]
    (tmp_path / "named").write_text("[global]\nindex-url = https://named.example\n")
    named = environ | {"PIP_CONFIG_FILE": str(tmp_path / "named")}
    assert uv_environment(named)["UV_DEFAULT_INDEX"] == "https://named.example"
    assert uv_environment(named | {"PIP_INDEX_URL": "https://env.example"})["UV_DEFAULT_INDEX"] == "https://env.example"


def test_it_runs_alone_and_prints_for_a_shell(bare: dict[str, str], tmp_path: Path) -> None:
    """The set-up calls it before anything is installed; a shell reads quotes and blanks as they are meant."""
    (tmp_path / "it's").mkdir()
    script = Path(worker.runtimes.package_sources.__file__)
    env = bare | {"PIP_FIND_LINKS": f"{tmp_path}/it's"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(script)], env=env, capture_output=True, text=True, check=True
    )
    shell = subprocess.run(
        ["/bin/sh", "-c", done.stdout + 'printf %s "$UV_FIND_LINKS"'], capture_output=True, text=True, check=True
    )
    assert shell.stdout == f"{tmp_path}/it's"
