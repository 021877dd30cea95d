"""Where packages come from: what pip is configured with, said in uv's variables.

uv reads none of pip's settings. Whoever configured pip for an index mirror or a wheelhouse means uv too, so both the
set-up and the worker start uv with ``uv_environment``. What the user set for uv itself wins. Standard library only:
``python3 worker/runtimes/package_sources.py`` runs before anything is installed, and prints lines for a shell.

pip merges all its indexes and takes the best version of any; uv stops at the first index that has the name. Where pip
has extra indexes, uv is therefore told ``unsafe-best-match``, which is pip's own meaning.
"""

from __future__ import annotations

import configparser
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

_KEYS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "cert",
    "client-cert",
    "constraint",
    "trusted-host",
    "proxy",
    "timeout",
)
_OURS_LOSE_TO = {
    "UV_DEFAULT_INDEX": ("UV_INDEX_URL",),
    "UV_INDEX": ("UV_EXTRA_INDEX_URL",),
    "HTTPS_PROXY": ("https_proxy", "ALL_PROXY", "all_proxy"),
}


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that make uv use pip's sources; empty where pip has none or the user told uv already."""
    return {
        key: value
        for key, value in _translate(_pip_settings(environ)).items()
        if value and not any(environ.get(name) for name in (key, *_OURS_LOSE_TO.get(key, ())))
    }


def _translate(pip: Mapping[str, str]) -> dict[str, str]:
    extra = [url for url in pip.get("extra-index-url", "").split() if _is_there(url)]
    links = [place for place in pip.get("find-links", "").split() if _is_there(place)]
    index = pip.get("index-url", "").strip()
    # uv has no variable for "no index"; where all wheelhouses are local, staying offline is the same.
    no_index = pip.get("no-index", "").strip().lower() in {"1", "true", "yes", "on"}
    return {
        "UV_DEFAULT_INDEX": index if _is_there(index) else "",
        "UV_INDEX": " ".join(extra),
        "UV_INDEX_STRATEGY": "unsafe-best-match" if extra else "",
        "UV_FIND_LINKS": ",".join(links),
        "UV_OFFLINE": "1" if no_index and all(urlsplit(place).scheme in ("", "file") for place in links) else "",
        "UV_CONSTRAINT": " ".join(path for path in pip.get("constraint", "").split() if _is_there(path)),
        "UV_INSECURE_HOST": pip.get("trusted-host", "").strip(),
        "UV_HTTP_TIMEOUT": _whole_seconds(pip.get("timeout", "")),
        "SSL_CERT_FILE": _existing(pip.get("cert", "")),
        "SSL_CLIENT_CERT": _existing(pip.get("client-cert", "")),
        "HTTPS_PROXY": pip.get("proxy", "").strip(),
    }


def _is_there(place: str) -> bool:
    """Whether a local place exists; what lies on the network is taken at its word. uv fails on a folder that is
    missing, where pip only warns."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).exists()
    return bool(parts.scheme) or (bool(place) and Path(place).expanduser().exists())


def _existing(path: str) -> str:
    return path.strip() if path.strip() and Path(path.strip()).exists() else ""


def _whole_seconds(text: str) -> str:
    try:
        return str(int(float(text)))
    except ValueError:
        return ""


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What pip is set to: its files in pip's order of precedence, then its variables."""
    settings: dict[str, str] = {}
    for path in config_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            print(f"{path}: not read as pip configuration ({error})", file=sys.stderr)  # noqa: T201 - no logger yet
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update((key.replace("_", "-"), value) for key, value in parser.items(section))
    for key in _KEYS:
        name = "PIP_" + key.upper().replace("-", "_")
        if environ.get(name):
            settings[key] = environ[name]
    return settings


def config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The configuration files of pip, the weakest first: global, user, site, then the one in PIP_CONFIG_FILE."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    for folder in reversed((environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)):
        yield Path(folder) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield home / "Library" / "Application Support" / "pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if named:
        yield Path(named)


def main() -> None:
    """Print the variables as lines for a POSIX shell to evaluate."""
    for key, value in uv_environment(os.environ).items():
        sys.stdout.write(f"export {key}={shlex.quote(value)}\n")


if __name__ == "__main__":
    main()
