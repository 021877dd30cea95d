"""Real git repositories for the tests, with a ``replaybench.toml`` and a few pytest cases."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PYTHON = f"py{sys.version_info.major}.{sys.version_info.minor}"

CONFIG = f"""\
schema = 1
[matrix]
runtimes = ["{PYTHON}"]
suites = ["unit"]
[suites.unit]
paths = ["tests"]
[suites.other]
paths = ["tests"]
keyword = "one"
"""

CASES = """\
import pytest
def test_one(): pass
def test_two(): assert 1 == 2, "one is not two"
@pytest.mark.skip(reason="not today")
def test_three(): pass
"""


@dataclass(frozen=True)
class GitRepository:
    """A repository with a working tree."""

    path: Path

    def git(self, *arguments: str, stdin: bytes = b"") -> str:
        """What git prints when run in it, by none of the machine's own configuration."""
        return self.git_bytes(*arguments, stdin=stdin).decode()

    def git_bytes(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """The same, to the byte."""
        env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        who = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "init.defaultBranch=main")
        done = subprocess.run(
            ["git", *who, *arguments], cwd=self.path, input=stdin, capture_output=True, check=False, env=env
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def commit(self, message: str = "change", **files: str | bytes) -> str:
        """Writes files (``__`` in a name stands for ``/``, ``_dot_`` for ``.``), commits all and gives the SHA."""
        for name, content in files.items():
            file = self.path / name.replace("__", "/").replace("_dot_", ".")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").strip()

    def diff(self) -> bytes:
        """The working tree's changes as a patch; they are taken back."""
        self.git("add", "--all")
        patch = self.git_bytes("diff", "--cached", "--binary", "--full-index")
        self.git("reset", "--quiet", "--hard")
        return patch


def make(path: Path, config: str = CONFIG, cases: str = CASES) -> GitRepository:
    """A repository of one commit on ``main``."""
    path.mkdir(parents=True)
    repository = GitRepository(path)
    repository.git("init", "--quiet")
    repository.commit("first", replaybench_dot_toml=config, tests__test_cases_dot_py=cases)
    return repository
