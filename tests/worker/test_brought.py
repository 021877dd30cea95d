"""A torch or Lightning of the install lines is the one that tests import: recorded where it may be, refused else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.wheels import torch_wheel, wheel
from tests.worker.support import PYTHON
from worker.errors import EnvironmentFault
from worker.isolation.process import FREE
from worker.messages import RuntimeSpec
from worker.observing.output_log import OutputLog
from worker.runtimes.brought import as_tests_see_it
from worker.runtimes.overlay import Overlay, make_overlay
from worker.runtimes.runtime import Tools
from worker.runtimes.runtime_facts import Runtime

NEVER = threading.Event()
CU129 = RuntimeSpec(PYTHON, "2.9.1", "cu129")
OPEN_BUILD = RuntimeSpec(PYTHON, "2.9.1")
WITH_LIGHTNING = RuntimeSpec(PYTHON, "2.9.1", "cu129", "2.6.6")
NO_TORCH = RuntimeSpec(PYTHON)

Lines = Callable[..., tuple[Runtime, Overlay]]


@pytest.fixture
def lines(tmp_path: Path, uv: str) -> Lines:
    """What install lines make of a runtime: of the spec's torch and of Lightning 2.6.6, or with neither."""

    def make(spec: RuntimeSpec, *install: str) -> tuple[Runtime, Overlay]:
        site = tmp_path / "site"
        packages = {}
        if spec.torch:
            packages = {"torch": "2.9.1", "lightning": "2.6.6", "pytorch-lightning": "2.6.6"}
            (site / "torch").mkdir(parents=True)
            (site / "torch" / "__init__.py").write_text("from torch import version\n__version__ = '2.9.1+cu129'\n")
            (site / "torch" / "version.py").write_text("cuda = '12.9'\n")
        torch = ("2.9.1+cu129", "12.9", "2.6.6") if spec.torch else (None, None, None)
        version = ".".join(map(str, sys.version_info[:3]))
        runtime = Runtime(Path(sys.executable), version, (str(site),), packages, *torch, "host")
        tools = Tools(uv, tmp_path, 60.0)
        log = OutputLog(1 << 20, 1 << 20)
        folder = tmp_path / "overlay"
        return runtime, make_overlay(folder, runtime, install, tree=tmp_path, tools=tools, log=log, stop=NEVER)

    return make


def look(runtime: Runtime, overlay: Overlay, spec: RuntimeSpec) -> Runtime:
    return as_tests_see_it(
        runtime, overlay, spec, env=dict(os.environ), stop=NEVER, looking=lambda: contextlib.nullcontext(FREE)
    )


@pytest.mark.parametrize("spec", [CU129, OPEN_BUILD])
@pytest.mark.parametrize(
    ("version", "says", "cuda", "told", "way_out"),
    [
        ("2.8.0+cu126", "", "12.6", r"2\.8\.0\+cu126 \(CUDA 12\.6\)", r"torch2\.8\.0-cu126"),
        ("2.9.1+cpu", "", None, r"2\.9\.1\+cpu \(no CUDA\)", r"torch2\.9\.1-cpu"),
        ("2.9.1", "2.9.1+cu128", "12.8", r"2\.9\.1\+cu128 \(CUDA 12\.8\)", r"torch2\.9\.1-cu128"),
        ("2.9.0a0+git1", "", "12.9", r"2\.9\.0a0\+git1 \(CUDA 12\.9\)", ""),
    ],
    ids=["version", "cpu", "same-package-version", "no-name"],
)
def test_another_torch_than_the_runtimes_is_refused(
    lines: Lines, tmp_path: Path, spec: RuntimeSpec, version: str, says: str, cuda: str | None, told: str, way_out: str
) -> None:
    """By its own word, with both versions and the runtime that has it, where there can be a name of one."""
    torch_wheel(tmp_path / "w", version, cuda, says)
    named = rf": py{PYTHON}-{way_out}" if way_out else ""
    complaint = (
        rf"{spec.id} names: torch {told}, and the runtime has 2\.9\.1\+cu129 \(CUDA 12\.9\)\. Take torch .*{named}$"
    )
    with pytest.raises(EnvironmentFault, match=complaint):
        look(*lines(spec, f"./w/torch-{version}-py3-none-any.whl"), spec)


def test_the_runtimes_own_torch_once_more_is_fine(lines: Lines, tmp_path: Path) -> None:
    """Whatever the package is called: its version may lack the build. It is no torch that was looked at before."""
    torch_wheel(tmp_path / "w", "2.9.1", "12.9", "2.9.1+cu129")
    runtime, overlay = lines(CU129, "./w/torch-2.9.1-py3-none-any.whl")
    assert overlay.brings_torch
    assert look(runtime, overlay, CU129) == runtime


def test_a_torch_without_a_package_of_its_name_is_found(lines: Lines, tmp_path: Path) -> None:
    wheel(tmp_path / "w", "pytorch_fork", "1.0", {"torch.py": "class version: cuda = None\n__version__ = '2.9.1'\n"})
    with pytest.raises(EnvironmentFault, match=r"torch 2\.9\.1 \(no CUDA\), and the runtime has 2\.9\.1\+cu129"):
        look(*lines(CU129, "./w/pytorch_fork-1.0-py3-none-any.whl"), CU129)


@pytest.mark.parametrize("code", ["raise ImportError('libcudart.so.12')", "print('libcudart.so.12'); raise SystemExit"])
def test_a_torch_that_cannot_be_imported_is_refused(lines: Lines, tmp_path: Path, code: str) -> None:
    """As one that came without its libraries, since install lines bring no dependencies."""
    wheel(tmp_path / "w", "torch", "2.8.0", {"torch/__init__.py": code})
    with pytest.raises(EnvironmentFault, match=r"(?s)torch 2\.8\.0, which cannot be imported.*libcudart\.so\.12"):
        look(*lines(CU129, "./w/torch-2.8.0-py3-none-any.whl"), CU129)


@pytest.mark.parametrize("name", ["lightning", "pytorch_lightning"])
def test_another_lightning_than_the_named_one_is_refused(lines: Lines, tmp_path: Path, name: str) -> None:
    """Either of its two packages. Where the runtime's name has none, it is recorded."""
    wheel(tmp_path / "w", name, "2.5.0", {f"{name}.py": ""})
    runtime, overlay = lines(WITH_LIGHTNING, f"./w/{name}-2.5.0-py3-none-any.whl")
    package = name.replace("_", "-")
    complaint = rf"{package} 2\.5\.0, and the runtime has 2\.6\.6\. Take .*: py{PYTHON}-torch2\.9\.1-cu129-pl2\.5\.0$"
    with pytest.raises(EnvironmentFault, match=complaint):
        look(runtime, overlay, WITH_LIGHTNING)
    assert look(runtime, overlay, CU129).lightning == "2.5.0"
    assert look(runtime, overlay, CU129).torch == "2.9.1+cu129"


def test_the_named_lightning_once_more_is_fine(lines: Lines, tmp_path: Path) -> None:
    wheel(tmp_path / "w", "lightning", "2.6.6", {"lightning.py": ""})
    runtime, overlay = lines(WITH_LIGHTNING, "./w/lightning-2.6.6-py3-none-any.whl")
    assert look(runtime, overlay, WITH_LIGHTNING) == runtime


def test_a_torch_for_a_runtime_that_names_none_is_what_is_recorded(lines: Lines, tmp_path: Path) -> None:
    """It is the one that tests import."""
    torch_wheel(tmp_path / "w", "2.8.0+cu126", "12.6")
    runtime, overlay = lines(NO_TORCH, "./w/torch-2.8.0+cu126-py3-none-any.whl")
    seen = look(runtime, overlay, NO_TORCH)
    done = subprocess.run(
        [str(overlay.python), "-c", "import torch; print(torch.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (seen.torch, seen.cuda) == (done.stdout.strip(), "12.6") == ("2.8.0+cu126", "12.6")
