"""Which places of packages ask for a password or a certificate, by uv's variables and configuration files, and the same
settings without them.

A build backend is a tree's own code and inherits uv's environment, so what is in there is given away. What is found
here is put in the hands of a gate (``index_gate.py``), and uv is told the gate's address instead.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from worker.isolation.owned import fresh_file, real_folder
from worker.runtimes.package_sources import config_files, uv_environment

_URL = re.compile(r"https?://[^\s,\"'<>\]]+")
_WITH_PASSWORD = re.compile(r"https?://[^\s/\"']+@")
_SECRET = re.compile(r"UV_.*_(TOKEN|PASSWORD|USERNAME)$|SSL_CLIENT_CERT$")
_PASSWORD_OF = "UV_INDEX_{}_{}"  # noqa: S105 - a variable's name

Credentials = tuple[str, str]


@dataclass(frozen=True)
class Source:
    """A place of packages, and how to be let in there: its address without user and password, and these."""

    url: str
    user: str = ""
    password: str = ""


@dataclass(frozen=True)
class _Config:
    """A configuration file of uv, and the variable that leads uv to another one in its stead."""

    variable: str
    path: Path
    text: str


@dataclass(frozen=True)
class _Asks:
    """Which places ask for anything: by names' own variables, by a certificate of the worker's, by a keyring."""

    named: Mapping[str, Credentials]
    certified: bool
    keyring: bool

    def source(self, url: str) -> Source | None:
        """The place at an address; nothing where uv may go there by itself, or has to ask its keyring."""
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        bare = parts._replace(netloc=host).geturl()
        name, _, password = user.partition(":")
        if at and (password or not self.keyring):
            return Source(bare, unquote(name), unquote(password))
        if url in self.named:
            return Source(bare, *self.named[url])
        return Source(bare) if self.certified and not at and parts.scheme == "https" else None


def without_credentials(env: Mapping[str, str], gate: Callable[[Source], str], folder: Path) -> dict[str, str]:
    """The variables of uv without what only its operator may know. ``gate`` gives the address that stands for a place;
    configuration files that hold a password are copied without it to ``folder``."""
    configs = list(_configs(env))
    named = _named(env, configs)
    asks = _Asks(named, bool(env.get("SSL_CLIENT_CERT")), env.get("UV_KEYRING_PROVIDER") == "subprocess")

    def instead(match: re.Match[str]) -> str:
        source = asks.source(match[0])
        return gate(source) if source else match[0]

    told = {key: _URL.sub(instead, value) if key.startswith("UV_") else value for key, value in env.items()}
    for config in configs:
        if (text := _URL.sub(instead, config.text)) != config.text:
            told[config.variable] = _kept(folder, config, text)
    return {key: value for key, value in told.items() if not _SECRET.match(key)}


def secret_files(env: Mapping[str, str]) -> list[Path]:
    """The files of pip's and uv's settings that no tree's code may see: those that hold an address with a password, and
    the certificate of who asks."""
    configs = [*config_files(env), *(config.path for config in _configs(env))]
    certificates = {source.get("SSL_CLIENT_CERT", "") for source in (env, uv_environment(env))} - {""}
    held = [path for path in configs if _WITH_PASSWORD.search(_read(path))]
    return [path.absolute() for path in [*held, *map(Path, sorted(certificates))]]


def _system_config(env: Mapping[str, str]) -> Path | None:
    """The machine's own configuration file of uv, if there is one."""
    folders = [Path(word) / "uv" for word in env.get("XDG_CONFIG_DIRS", "").split(":") if word]
    places = [folder / "uv.toml" for folder in [*folders, Path("/etc/uv")]]
    return next((path for path in places if path.is_file()), None)


def _named(env: Mapping[str, str], configs: list[_Config]) -> dict[str, Credentials]:
    """The addresses whose name has a user or a password in variables of its own."""
    words = f"{env.get('UV_INDEX', '')} {env.get('UV_DEFAULT_INDEX', '')}".split()
    pairs = [(name, url) for name, _, url in (word.partition("=") for word in words) if url and "://" not in name]
    for config in configs:
        pairs += _indexes(config.text)
    found = {}
    for name, url in pairs:
        plain = re.sub(r"[^A-Z0-9]", "_", name.upper())
        user, password = (env.get(_PASSWORD_OF.format(plain, what), "") for what in ("USERNAME", "PASSWORD"))
        if user or password:
            found[url] = (user, password)
    return found


def _indexes(text: str) -> Iterator[tuple[str, str]]:
    """Name and address of each index of a configuration file; nothing of one that uv will refuse itself."""
    try:
        listed = tomllib.loads(text).get("index", [])
    except tomllib.TOMLDecodeError:
        return
    for index in listed if isinstance(listed, list) else []:
        if isinstance(index, dict) and "name" in index and "url" in index:
            yield str(index["name"]), str(index["url"])


def _configs(env: Mapping[str, str]) -> Iterator[_Config]:
    """The configuration files that uv reads beside the tree's own."""
    if named := env.get("UV_CONFIG_FILE"):
        yield _Config("UV_CONFIG_FILE", Path(named), _read(Path(named)))
        return
    user = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config") / "uv" / "uv.toml"
    yield _Config("XDG_CONFIG_HOME", user, _read(user))
    if system := _system_config(env):
        yield _Config("XDG_CONFIG_DIRS", system, _read(system))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kept(folder: Path, config: _Config, text: str) -> str:
    """Write a configuration, and give the variable's value that leads there."""
    place = folder / config.variable.lower() / "uv"
    for path in (folder, place.parent, place):
        real_folder(path)
    with fresh_file(place / "uv.toml") as stream:
        stream.write(text.encode())
    return str(place / "uv.toml" if config.variable == "UV_CONFIG_FILE" else place.parent)
