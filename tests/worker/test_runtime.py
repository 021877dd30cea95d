"""Runtimes built by a real uv: published once, asserted after the install, failures shared."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.wheels import torch_wheel, wheel
from tests.worker.support import PYTHON
from worker.errors import EnvironmentFault, InfrastructureFault, Stopped, build_fault
from worker.messages import RuntimeSpec
from worker.observing.output_log import OutputLog
from worker.runtimes.host_runtime import probe_hosts
from worker.runtimes.overlay import make_overlay
from worker.runtimes.runtime import Tools, built_runtime
from worker.runtimes.runtime_facts import Runtime, assert_is, expected_cuda, specs_of

NEVER = threading.Event()


def log() -> OutputLog:
    return OutputLog(1 << 20, 1 << 20)


def build(spec: RuntimeSpec, tools: Tools) -> Runtime:
    return built_runtime(spec, tools, log(), NEVER)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheelhouse that is all the world: tiny stand-ins for what a torch runtime holds."""
    folder = tmp_path / "wheels"
    for name in ("pytest", "numpy"):
        wheel(folder, name, "1.0", {f"{name}/__init__.py": ""})
    for version in ("2.5.4", "2.6.6"):
        wheel(folder, "lightning", version, {"lightning/__init__.py": ""})
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    for name in ("UV_TORCH_BACKEND", "UV_INDEX", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def tools(tmp_path: Path, uv: str) -> Tools:
    (tmp_path / "cache").mkdir()
    return Tools(uv, tmp_path / "cache", 120.0)


def test_a_plain_runtime_is_built_once(shared_cache: Path, uv: str) -> None:
    """It has pytest, and the second asker takes what is published."""
    tools = Tools(uv, shared_cache, 120.0)
    first_log = log()
    first = built_runtime(RuntimeSpec(PYTHON), tools, first_log, NEVER)
    second_log = log()
    assert built_runtime(RuntimeSpec(PYTHON), tools, second_log, NEVER) == first
    assert "pytest" in first.packages
    assert first.torch is None
    assert first.interpreter.is_relative_to(shared_cache)
    assert second_log.total == 0


def test_the_exact_build_is_taken_from_the_wheelhouse(tools: Tools, wheels: Path) -> None:
    """Version, CUDA and lightning are what the name says; lightning did not bring another torch."""
    torch_wheel(wheels, "2.9.1+cu129", "12.9")
    torch_wheel(wheels, "2.10.0+cu130", "13.0")
    runtime = build(RuntimeSpec(PYTHON, "2.9.1", "cu129", "2.5.4"), tools)
    assert (runtime.torch, runtime.cuda, runtime.lightning) == ("2.9.1+cu129", "12.9", "2.5.4")


def test_a_plain_version_accepts_any_build(tools: Tools, wheels: Path) -> None:
    """Where the job does not name the build."""
    torch_wheel(wheels, "2.9.1+cpu", None)
    assert build(RuntimeSpec(PYTHON, "2.9.1"), tools).torch == "2.9.1+cpu"


@pytest.mark.parametrize(
    ("version", "cuda", "says", "complaint"),
    [
        ("2.9.1+cu129", "12.8", "", "torch.version.cuda expected 12.9, got 12.8"),
        ("2.9.1+cu129", None, "", "torch.version.cuda expected 12.9, got None"),
        ("2.9.1+cu129", "12.9", "2.9.1+cu128", "torch.__version__ expected 2.9.1+cu129, got 2.9.1+cu128"),
        ("2.9.1", None, "", "torch.__version__ expected 2.9.1+cu129, got 2.9.1"),
    ],
)
def test_a_wrong_build_is_refused(
    tools: Tools, wheels: Path, version: str, cuda: str | None, says: str, complaint: str
) -> None:
    """Asserted after the install, with what was expected and what came; nothing is published."""
    torch_wheel(wheels, version, cuda, says)
    with pytest.raises(EnvironmentFault) as error:
        build(RuntimeSpec(PYTHON, "2.9.1", "cu129"), tools)
    assert complaint in str(error.value)
    assert not list((tools.cache / "runtimes").glob("*/ready.json"))


@pytest.fixture
def plain_torch(wheels: Path) -> None:
    """A torch as PyPI has it: no local version in its name, CUDA 12.8 in its requirements."""
    wheel(wheels, "nvidia_cuda_runtime_cu12", "12.8.90", {"nvidia/__init__.py": ""})
    torch_wheel(wheels, "2.9.1", "12.8", "2.9.1+cu128", "nvidia-cuda-runtime-cu12==12.8.90")


@pytest.mark.parametrize("build_name", ["cu129", "cpu"])
def test_a_plain_version_of_another_cuda_is_not_even_fetched(tools: Tools, plain_torch: None, build_name: str) -> None:
    """Its requirements tell, before gigabytes have come."""
    said = log()
    with pytest.raises(EnvironmentFault, match=rf"a build for CUDA 12\.8, not {build_name}: it was not fetched"):
        built_runtime(RuntimeSpec(PYTHON, "2.9.1", build_name), tools, said, NEVER)
    assert b"installing torch==2.9.1 " not in said.content()


def test_a_plain_version_of_the_right_cuda_is_taken(tools: Tools, plain_torch: None) -> None:
    """An index without local versions in its names still serves."""
    assert build(RuntimeSpec(PYTHON, "2.9.1", "cu128"), tools).torch == "2.9.1+cu128"


def test_what_cannot_be_had_says_uvs_words(tools: Tools, wheels: Path) -> None:
    """Each rung's reason is there."""
    with pytest.raises(EnvironmentFault, match=r"(?s)cannot be built.*torch==2\.9\.1\+cu129.*then: .*torch"):
        build(RuntimeSpec(PYTHON, "2.9.1", "cu129"), tools)


def test_a_half_built_runtime_is_built_anew(tools: Tools, wheels: Path) -> None:
    """A folder without its marker is what a kill left."""
    torch_wheel(wheels, "2.9.1+cpu", None)
    spec = RuntimeSpec(PYTHON, "2.9.1", "cpu")
    home = build(spec, tools).interpreter.parent.parent
    (home / "ready.json").unlink()
    (home / "bin" / "python").unlink()
    assert build(spec, tools).interpreter.exists()


@pytest.mark.parametrize("marker", ["", '{"python": "3', "[]", "{}"])
def test_a_marker_that_lost_its_content_is_none(tools: Tools, wheels: Path, marker: str) -> None:
    """A machine that lost power may leave an empty file under the right name."""
    spec = RuntimeSpec(PYTHON)
    home = build(spec, tools).interpreter.parent.parent
    (home / "ready.json").write_text(marker)
    assert "pytest" in build(spec, tools).packages


def test_a_runtime_whose_interpreter_is_gone_is_built_anew(tools: Tools, wheels: Path) -> None:
    """The Python that it was made from was removed from the machine."""
    spec = RuntimeSpec(PYTHON)
    python = build(spec, tools).interpreter
    python.unlink()
    python.symlink_to("/no/such/python")
    assert build(spec, tools).interpreter.exists()


def test_a_full_disk_is_no_fault_of_the_runtime(tools: Tools, tmp_path: Path) -> None:
    """It is the worker's, and no other worker is told that this runtime cannot be built."""
    (tmp_path / "uv").write_text("#!/bin/sh\necho 'error: failed: No space left on device (os error 28)'\nexit 2\n")
    (tmp_path / "uv").chmod(0o755)
    with pytest.raises(InfrastructureFault, match="No space left on device"):
        build(RuntimeSpec(PYTHON), Tools(str(tmp_path / "uv"), tools.cache, 60.0))
    assert not list((tools.cache / "runtimes").glob("*.failed"))


def test_concurrent_askers_build_once(tools: Tools, wheels: Path) -> None:
    """The second waits for the first, and shares its failure too."""
    torch_wheel(wheels, "2.9.1+cpu", None)
    for spec, ok in ((RuntimeSpec(PYTHON, "2.9.1", "cpu"), True), (RuntimeSpec(PYTHON, "2.9.1", "cu118"), False)):
        logs, results = [log() for _ in range(3)], []

        def ask(one: OutputLog, spec: RuntimeSpec = spec, results: list[str] = results) -> None:
            try:
                results.append(str(built_runtime(spec, tools, one, NEVER)))
            except EnvironmentFault as error:
                results.append(str(error))

        threads = [threading.Thread(target=ask, args=(one,)) for one in logs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(results)) == 1
        assert results[0].startswith("Runtime(") is ok
        said = [one.content() for one in logs]
        assert sum(b"installing" in text and b"for another cell" not in text for text in said) == 1
        assert sum(b"is being built for another cell: waiting for it" in text for text in said) == 2
        # Whoever waited for a build that failed sees what was printed, too.
        assert all(b"installing" in text for text in said) is not ok


def test_a_stop_ends_a_build(tools: Tools, wheels: Path) -> None:
    """The attempt does not wait for it."""
    torch_wheel(wheels, "2.9.1+cpu", None)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        built_runtime(RuntimeSpec(PYTHON, "2.9.1", "cpu"), _Sleeping(tools.cache, 60.0), log(), stop)


class _Sleeping(Tools):
    """A uv that takes its time."""

    def __init__(self, cache: Path, timeout_s: float) -> None:
        script = cache / "uv"
        script.write_text("#!/bin/sh\nexec sleep 60\n")
        script.chmod(0o755)
        super().__init__(str(script), cache, timeout_s)


def test_a_worker_that_builds_none_says_so(tmp_path: Path) -> None:
    """With the setting's name."""
    with pytest.raises(EnvironmentFault, match="REPLAYBENCH_BUILDS"):
        build(RuntimeSpec("3.11"), Tools("uv", tmp_path, 1.0, builds=False))


def test_the_cuda_of_a_build() -> None:
    """The last digit is the minor version."""
    assert [expected_cuda(build) for build in ("cu129", "cu118", "cu130", "cpu")] == ["12.9", "11.8", "13.0", None]


def test_a_host_runtime_answers_to_every_name_that_fits() -> None:
    """A job may leave build or lightning open."""
    host = Runtime(Path("p"), "3.12.3", (), {}, "2.11.0+cu130", "13.0", "2.6.6", "host")
    names = ["-cu130-pl2.6.6", "-cu130", "-pl2.6.6", ""]
    assert [spec.id for spec in specs_of(host)] == [f"py3.12-torch2.11.0{name}" for name in names]
    for spec in specs_of(host):
        assert_is(host, spec)
    with pytest.raises(EnvironmentFault, match=r"lightning expected 2\.5\.4, got 2\.6\.6"):
        assert_is(host, RuntimeSpec("3.12", "2.11.0", None, "2.5.4"))


def test_an_interpreter_in_an_environment_serves_as_host(tmp_path: Path, uv: str) -> None:
    """An overlay on it sees its packages, those of its own ``.pth`` files too; a broken one is left out."""
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "linked_module.py").write_text("VALUE = 7\n")
    hosts = probe_hosts([Path(sys.executable), Path("/no/such/python"), Path("/bin/true")])
    assert list(hosts) == [RuntimeSpec(PYTHON)]
    runtime = hosts[RuntimeSpec(PYTHON)]
    assert runtime.interpreter == Path(sys.executable)
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "more.pth").write_text(str(tmp_path / "linked") + "\n")
    layered = Runtime(
        runtime.interpreter, runtime.python, (*runtime.paths, str(site)), {"a": "1"}, None, None, None, "host"
    )
    (tmp_path / "thing").mkdir()
    wheel(tmp_path / "thing", "thing", "0.3", {"thing.py": "VALUE = 1\n"})
    overlay = make_overlay(
        tmp_path / "overlay",
        layered,
        ["./thing/thing-0.3-py3-none-any.whl"],
        tree=tmp_path,
        tools=Tools(uv, tmp_path, 60.0),
        log=log(),
        stop=NEVER,
    )
    assert overlay.packages == {"a": "1", "thing": "0.3"}
    code = "import sys, pytest, linked_module, thing; print(sys.prefix)"
    done = subprocess.run([str(overlay.python), "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "overlay")


def test_the_first_line_of_a_failure_says_why(tools: Tools, wheels: Path, tmp_path: Path) -> None:
    """Of a runtime and of an install line; uv's greeting stands behind it, with all else that it printed."""
    with pytest.raises(EnvironmentFault) as runtime:
        build(RuntimeSpec(PYTHON, "9.9.9"), tools)
    first, *rest = str(runtime.value).splitlines()
    assert first.startswith(f"runtime py{PYTHON}-torch9.9.9 cannot be built: uv pip failed: No solution found")
    assert "torch==9.9.9" in first
    assert "requirements are unsatisfiable" in first
    assert not set("\u00d7╰─▶") & set(first)
    assert any("Using Python" in line for line in rest)
    greeting = "Using Python 3.11.7 environment at: /x\n"
    framed = "  \u00d7 Failed to build `x`\n  ├─▶ The backend\n  │   said no\n  ╰─▶ exit status: 1\n\n  [stderr]\n  y"
    for said, why in (
        (framed, "Failed to build `x` The backend said no exit status: 1"),
        (
            "error: Failed to fetch: `u`\n  Caused by: dns error\n\nhint: z",
            "Failed to fetch: `u` Caused by: dns error",
        ),
    ):
        assert str(build_fault("uv pip failed: ", greeting + said)) == f"uv pip failed: {why}\n{greeting}{said}"
    assert str(build_fault("failed: ", "no word of uv's\n")) == "failed: no word of uv's"


def test_an_install_line_that_fails_says_uvs_words(tmp_path: Path, uv: str) -> None:
    """With the line."""
    runtime = probe_hosts([Path(sys.executable)])[RuntimeSpec(PYTHON)]
    with pytest.raises(EnvironmentFault, match=r"install line './nothing' failed: "):
        make_overlay(
            tmp_path / "overlay",
            runtime,
            ["./nothing"],
            tree=tmp_path,
            tools=Tools(uv, tmp_path, 60.0),
            log=log(),
            stop=NEVER,
        )
