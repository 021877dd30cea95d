"""The environment variables of what a worker starts: an allow-list, so that none of its secrets goes along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

_NAMES = frozenset({"PATH", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"})
# How the machine's own libraries are set up. Without an image's OMPI_MCA_ and PMIX_MCA_ variables its MPI, which
# lightning asks whether it is there, ends the process; without its NCCL_, NVSHMEM_ and TORCH_ ones a machine's operator
# loses what was switched off there on purpose.
_PREFIXES = ("LC_", "NVIDIA_", "CUDA_", "NCCL_", "NVSHMEM_", "TORCH_", "OMPI_MCA_", "PMIX_MCA_")
_BUILD_NAMES = frozenset({"SSL_CLIENT_CERT", "CC", "CXX"})
_BUILD_PREFIXES = ("UV_",)
_PUBLISHING = "UV_PUBLISH_"  # What uploads packages is no business of one who installs some.
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})
_NEVER = frozenset({"CUDA_VISIBLE_DEVICES"})
_OURS = ("REPLAYBENCH_", "BROKER_URL", "DATABASE_URL")


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """What any started process may see of the worker's own environment."""
    return {
        key: value
        for key, value in environ.items()
        if (key in _NAMES or key.startswith(_PREFIXES)) and key not in _NEVER
    }


def for_build(environ: Mapping[str, str], sources: Mapping[str, str]) -> dict[str, str]:
    """For uv: the allow-list, where packages come from, and how to reach the network."""
    more = {
        key: value
        for key, value in environ.items()
        if (key in _BUILD_NAMES or key.startswith(_BUILD_PREFIXES) or key.lower() in _PROXIES)
        and not key.startswith(_PUBLISHING)
    }
    home = {"HOME": environ["HOME"]} if "HOME" in environ else {}
    cache = {"XDG_CACHE_HOME": environ["XDG_CACHE_HOME"]} if "XDG_CACHE_HOME" in environ else {}
    return allowed(environ) | home | cache | dict(sources) | more | {"UV_NO_PROGRESS": "1"}


def for_tests(
    environ: Mapping[str, str],
    *,
    passed: Sequence[str] = (),
    folder: Path,
    bins: Sequence[Path],
    suite_env: Mapping[str, str],
    network: bool = False,
    mounts: Mapping[str, Path],
    devices: Sequence[str],
) -> dict[str, str]:
    """For pytest: the allow-list, a home and a temporary folder of its own, its devices, and what the suite names; the
    machine's proxies where the suite needs the network.

    ``passed`` are the patterns of further variables that the worker's operator lets through.
    """
    plugin = str(Path(__file__).parent.with_name("plugin"))
    env = allowed(environ)
    env |= {key: value for key, value in environ.items() if network and key.lower() in _PROXIES}
    env |= {
        key: value
        for key, value in environ.items()
        if any(fnmatchcase(key, pattern) for pattern in passed) and not key.startswith(_OURS) and key not in _NEVER
    }
    env["PATH"] = ":".join([*map(str, bins), env.get("PATH", "/usr/bin:/bin")])
    env |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONUNBUFFERED": "1"}
    env |= {f"REPLAYBENCH_MOUNT_{name.upper().replace('-', '_')}": str(path) for name, path in mounts.items()}
    env |= suite_env
    env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    more = suite_env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{plugin}:{more}" if more else plugin
    return env
