"""Says what an interpreter holds, as one JSON line: run by that interpreter itself, standard library only.

``python probe.py``: its version, its packages, where they lie, and torch's own word on its version and CUDA.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata


def _torch() -> dict[str, str | None]:
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - importing it is the question
    except ImportError as error:
        return {"version": None, "cuda": None, "error": str(error)[:2000]}
    return {"version": str(torch.__version__), "cuda": torch.version.cuda, "error": ""}


def main() -> None:
    """Print the line."""
    names: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            names.setdefault(name.lower().replace("_", "-"), distribution.version)
    found = {
        "python": platform.python_version(),
        "paths": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
        "packages": names,
        "lightning": names.get("lightning") or names.get("pytorch-lightning"),
        "torch": _torch() if "torch" in names else None,
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
