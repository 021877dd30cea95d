"""The library's suites: they need torch, lightning and pytest, and run against the installed graphreplay."""

from __future__ import annotations

import gc

import pytest
import torch

# What lightning and torch warn of among themselves. Each line names the message, so that anything new still fails.
THIRD_PARTY_WARNINGS = (
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:The '.*_dataloader' does not have many workers",
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    # Python 3.12 and later, wherever a loader forks its workers beside CUDA's threads. They touch no GPU.
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    # Fits on the CPU, on a machine with a GPU.
    "ignore:GPU available but not used",
    # torch's watch of waits for the GPU says so once a process.
    "ignore:Synchronization debug mode is a prototype feature",
    # A skipped optimizer step under GradScaler is followed by a scheduler step; the suites compare exactly that.
    "ignore:Detected call of `lr_scheduler.step\\(\\)` before `optimizer.step\\(\\)`",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "long: over a few seconds, or heavy")
    config.addinivalue_line("markers", "data: draws scenes as a fit does, in worker processes or pinned memory")
    config.addinivalue_line("markers", "parity: the parity scenario of the four tasks, a table of its own")
    config.addinivalue_line("markers", "overfit: trains a task on the CPU until it finds its objects, minutes each")
    for line in THIRD_PARTY_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A fit that steps every batch is long where it is rehearsed on a CPU: one that accumulates shows there as much."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if (parameters.get("accelerator"), parameters.get("window")) == ("rehearsed", 1):
            item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    # Each recording collects garbage first; what is imported by now stays, and need not be walked every time.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def deterministic_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native must equal native before replay can be compared with it."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    torch.manual_seed(0)
