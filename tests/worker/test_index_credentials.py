"""What uv is configured with, without what only its operator may know."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.runtimes.index_credentials import Source, secret_files, without_credentials


def told(env: dict[str, str], folder: Path) -> tuple[dict[str, str], list[Source]]:
    """uv's variables, and the places that a gate was asked for."""
    asked: list[Source] = []

    def gate(source: Source) -> str:
        asked.append(source)
        return f"gate:{source.url}"

    return without_credentials(
        {"HOME": str(folder / "home"), "XDG_CONFIG_DIRS": str(folder), **env}, gate, folder
    ), asked


@pytest.mark.parametrize(
    ("env", "key", "value", "source"),
    [
        ({"UV_DEFAULT_INDEX": "https://me:p%40ss@i.example/simple"}, "UV_DEFAULT_INDEX",
         "gate:https://i.example/simple", Source("https://i.example/simple", "me", "p@ss")),
        ({"UV_INDEX": "https://a.example/s corp=https://tok@i.example:8443/s"}, "UV_INDEX",
         "https://a.example/s corp=gate:https://i.example:8443/s", Source("https://i.example:8443/s", "tok", "")),
        ({"UV_FIND_LINKS": "/wheels,https://me:x@i.example/w.html"}, "UV_FIND_LINKS",
         "/wheels,gate:https://i.example/w.html", Source("https://i.example/w.html", "me", "x")),
        ({"UV_INDEX": "a-corp=https://i.example/s", "UV_INDEX_A_CORP_PASSWORD": "x"}, "UV_INDEX",
         "a-corp=gate:https://i.example/s", Source("https://i.example/s", "", "x")),
        ({"UV_EXTRA_INDEX_URL": "https://i.example/s", "SSL_CLIENT_CERT": "/me.pem"}, "UV_EXTRA_INDEX_URL",
         "gate:https://i.example/s", Source("https://i.example/s")),
    ],
    ids=["address", "token", "links", "name", "certificate"],
)  # fmt: skip
def test_a_place_that_asks_for_something_is_reached_by_the_gate(
    tmp_path: Path, env: dict[str, str], key: str, value: str, source: Source
) -> None:
    """The others are left as they are."""
    variables, asked = told(env, tmp_path)
    assert variables[key] == value
    assert asked == [source]


@pytest.mark.parametrize(
    "env",
    [
        {"UV_INDEX": "https://a.example/s file:///s", "UV_FIND_LINKS": "/wheels", "HTTPS_PROXY": "http://p:3128"},
        {"UV_INDEX": "https://oauth@a.example/s", "UV_KEYRING_PROVIDER": "subprocess"},
    ],
    ids=["open", "keyring"],
)
def test_what_asks_for_nothing_is_left_alone(tmp_path: Path, env: dict[str, str]) -> None:
    """So is a user whose password uv asks a keyring for."""
    variables, asked = told(env, tmp_path)
    assert {key: variables[key] for key in env} == env
    assert asked == []


def test_variables_that_are_secrets_are_left_out(tmp_path: Path) -> None:
    """Whether any index has that name or not: a tree may name one so and be sent the password."""
    secrets = {"UV_INDEX_CORP_USERNAME": "me", "UV_INDEX_CORP_PASSWORD": "x", "UV_GITHUB_TOKEN": "t"}
    variables, _ = told(secrets | {"SSL_CLIENT_CERT": "/me.pem", "UV_OFFLINE": "1"}, tmp_path)
    assert variables.keys() & (secrets.keys() | {"SSL_CLIENT_CERT"}) == set()
    assert variables["UV_OFFLINE"] == "1"


CONFIG = """
[[index]]
name = "corp"
url = "https://i.example/s"
[pip]
extra-index-url = ["https://me:x@j.example/s", "https://open.example/s"]
"""


@pytest.mark.parametrize("where", ["user", "machine", "named"])
def test_a_configuration_file_is_copied_without_its_passwords(tmp_path: Path, where: str) -> None:
    """The user's, the machine's or the one that is named; uv is led to the copy."""
    path = {"user": "home/.config/uv/uv.toml", "machine": "uv/uv.toml", "named": "mine.toml"}[where]
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(CONFIG)
    (tmp_path / "copies").mkdir()
    env = {"UV_INDEX_CORP_USERNAME": "me", "UV_INDEX_CORP_PASSWORD": "y", "XDG_CONFIG_DIRS": str(tmp_path)}
    env |= {"HOME": str(tmp_path / "home")} | ({"UV_CONFIG_FILE": str(tmp_path / path)} if where == "named" else {})
    asked: list[Source] = []

    def gate(source: Source) -> str:
        asked.append(source)
        return f"gate:{source.url}"

    variables = without_credentials(env, gate, tmp_path / "copies")
    variable = {"user": "XDG_CONFIG_HOME", "machine": "XDG_CONFIG_DIRS", "named": "UV_CONFIG_FILE"}[where]
    copy = Path(variables[variable]) / ("" if where == "named" else "uv/uv.toml")
    expected = CONFIG.replace("https://i.", "gate:https://i.").replace("https://me:x@j.", "gate:https://j.")
    assert copy.read_text() == expected
    assert asked == [Source("https://i.example/s", "me", "y"), Source("https://j.example/s", "me", "x")]


def test_a_configuration_file_without_passwords_stays(tmp_path: Path) -> None:
    """Nor does one that uv cannot read stop anything: uv will say so."""
    path = tmp_path / "home" / ".config" / "uv" / "uv.toml"
    path.parent.mkdir(parents=True)
    path.write_text('index-url = "https://open.example/s"\n[[nonsense')
    variables, asked = told({}, tmp_path)
    assert "XDG_CONFIG_HOME" not in variables
    assert asked == []


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("[global]\nindex-url = https://me:x@i.example/simple\n", True),
        ("[global]\nindex-url = https://i.example/simple/@scope\n", False),
        ("[global]\n", False),
    ],
    ids=["password", "none", "empty"],
)
@pytest.mark.parametrize("name", ["pip/pip.conf", "uv/uv.toml"])
def test_files_that_hold_a_password_are_known(tmp_path: Path, name: str, text: str, secret: bool) -> None:
    """So that a sandbox does not show them."""
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)
    env = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path)}
    assert ((tmp_path / name) in secret_files(env)) is secret


def test_the_certificate_of_who_asks_is_secret(tmp_path: Path) -> None:
    """Whether uv is told of it or pip."""
    (tmp_path / "pip.pem").touch()
    env = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), "PIP_CLIENT_CERT": str(tmp_path / "pip.pem")}
    assert secret_files(env) == [tmp_path / "pip.pem"]
    assert Path("/uv.pem") in secret_files(env | {"SSL_CLIENT_CERT": "/uv.pem"})
