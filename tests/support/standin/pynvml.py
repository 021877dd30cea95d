"""The binding nvidia-ml-py as it is installed, over the tests' stand-in for the driver's library."""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_here = str(Path(__file__).parent)
_installed = PathFinder.find_spec("pynvml", [part for part in sys.path if part != _here])
assert _installed is not None
assert _installed.origin is not None
exec(compile(Path(_installed.origin).read_text(), _installed.origin, "exec"), globals())  # noqa: S102 - it is to be this very module

from tests.support.nvml import VARIABLE, Library  # noqa: E402 - found only now

nvmlLib = Library(Path(os.environ[VARIABLE]))  # noqa: N816 - the binding's own name
