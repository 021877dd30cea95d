"""What this machine can hold tests with, and marks for the tests that need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.isolation.cgroup import find_cgroups
from worker.isolation.sandbox import find_sandbox

SANDBOX = find_sandbox((Path.home(),))
CGROUPS = find_cgroups()

needs_sandbox = pytest.mark.skipif(SANDBOX.sandbox is None, reason="needs bubblewrap that works here")
needs_cgroup = pytest.mark.skipif(CGROUPS is None, reason="needs a cgroup that can be written to")
