"""What a sandboxed command sees of this machine, as bubblewrap's arguments. Reads the file system, changes nothing.

The view is an allow-list: the system's own folders, what the command is given, and nothing else. Mounts are made from
the root downwards, so that what is named more closely wins.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/sys",
    "/nix/store",
    "/gnu/store",
)
_NEVER = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/ssh", "/etc/sudoers", "/etc/sudoers.d",
          "/etc/ssl/private", "/etc/krb5.keytab", "/etc/kubernetes", "/etc/docker", "/etc/replaybench")  # fmt: skip
"""What lies in the system's folders and is no business of a test: a worker that runs as root could read it."""

_NAMED_BY = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that reach a test and name places which they are no use without."""

_GPU_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps",
              "nvidia-caps-imex-channels")  # fmt: skip
_GPU_SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
_GPU_FACTS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class View:
    """What one command is given: places to write to, places to read, devices by UUID, and whether the network."""

    writable: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    temporary: Path | None = None
    """A folder that stands for ``/tmp`` and ``/var/tmp``; else they are empty and in memory."""
    devices: tuple[str, ...] = ()
    network: bool = False


@dataclass(frozen=True)
class _Mount:
    target: Path
    words: tuple[str, ...]


def arguments(view: View, hidden: Iterable[Path], env: Mapping[str, str]) -> list[str]:
    """The words for bubblewrap that make the file system. ``hidden`` is never seen, wherever it lies, but for what the
    command is given of it."""
    concealed = set(_both([*map(Path, _NEVER), *hidden]))
    private = {mount.target: mount for mount in _temporary(view.temporary)}
    shown = {path: _bind("--ro-bind", path) for path in map(Path, _SYSTEM) if path.exists()}
    for path in sorted(_both([*view.readable, *_named(env), *_resolver(view)])):
        if not _is_shown(path, shown.keys(), concealed | private.keys()):
            shown[path] = _link(path) if path.is_symlink() else _bind("--ro-bind", path)
    masks = {path: _mask(path) for path in concealed if any(above in shown for above in path.parents)}
    mounts = masks | private | shown | {path: _bind("--bind", path) for path in _both(view.writable)}
    # A path's own mount comes before those below it, and what is given wins over what is concealed.
    ordered = sorted(mounts.values(), key=lambda mount: len(mount.target.parts))
    words = ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]  # noqa: S108 - its mount
    words += ["--tmpfs", "/run", *(word for mount in ordered for word in mount.words)]
    words += [word for path in _nodes(view) for word in ("--dev-bind-try", str(path), str(path))]
    return [*words, "--remount-ro", "/"]


def _bind(how: str, path: Path) -> _Mount:
    return _Mount(path, (how, str(path), str(path)))


def _link(path: Path) -> _Mount:
    return _Mount(path, ("--symlink", str(path.readlink()), str(path)))


def _is_shown(path: Path, shown: Collection[Path], concealed: Collection[Path]) -> bool:
    """Whether a path is there already: of the folders above it that are shown or concealed, the nearest is shown."""
    return next((above in shown for above in (path, *path.parents) if above in shown or above in concealed), False)


def _mask(path: Path) -> _Mount:
    words = ("--tmpfs", str(path)) if path.is_dir() else ("--ro-bind", os.devnull, str(path))
    return _Mount(path, words)


def _temporary(folder: Path | None) -> list[_Mount]:
    places = [Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - replaced by private ones
    if folder is None:
        return [_Mount(place, ("--perms", "1777", "--tmpfs", str(place))) for place in places]
    return [_Mount(place, ("--bind", str(folder), str(place))) for place in places]


def _both(paths: Iterable[Path]) -> Iterator[Path]:
    """Each path that exists, under its name and where that leads."""
    for path in paths:
        if path.exists():
            yield path
            if (real := path.resolve()) != path:
                yield real


def _named(env: Mapping[str, str]) -> list[Path]:
    words = [word for name in _NAMED_BY for word in env.get(name, "").split(":")]
    return [Path(word) for word in words if word.startswith("/") and not _in_system(Path(word))]


def _in_system(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in _SYSTEM)


def _resolver(view: View) -> list[Path]:
    """The network's names are often looked up by a file of ``/run`` that ``/etc/resolv.conf`` links to."""
    place = Path("/etc/resolv.conf").resolve()
    return [place] if view.network and not _in_system(place) else []


def _nodes(view: View) -> list[Path]:
    """The device files of the leased cards, and those that every card needs."""
    if not view.devices:
        return []
    minors = _minors(view.devices)
    cards = [Path(f"/dev/nvidia{minor}") for minor in minors] or sorted(Path("/dev").glob("nvidia[0-9]*"))
    return [*cards, *(Path("/dev", name) for name in _GPU_NODES), *map(Path, _GPU_SOCKETS)]


def _minors(uuids: Sequence[str]) -> list[str]:
    """The numbers of the cards' device files, as the driver tells them; nothing where it does not tell all."""
    found: dict[str, str] = {}
    for path in _GPU_FACTS.glob("*/information"):
        facts = dict(line.split(":", 1) for line in path.read_text(errors="replace").splitlines() if ":" in line)
        facts = {key.strip(): value.strip() for key, value in facts.items()}
        found[facts.get("GPU UUID", "")] = facts.get("Device Minor", "")
    minors = [found.get(uuid, "") for uuid in uuids]
    return minors if all(minors) else []
