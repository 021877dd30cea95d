"""What a test process sees of the worker's environment: nothing that was not allowed."""

from __future__ import annotations

from pathlib import Path

from worker.environment import for_build, for_tests
from worker.git import environment as for_git

WORKERS = {
    "PATH": "/usr/bin",
    "LC_ALL": "C.UTF-8",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_HOME": "/usr/local/cuda",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "HOME": "/root",
    "BROKER_URL": "redis://:secret@host/0",
    "REPLAYBENCH_WORKER_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "UV_INDEX": "https://user:secret@index.example/simple",
    "PYTHONPATH": "/worker",
    "GIT_DIR": "/somewhere",
}


def test_tests_get_an_allow_list_and_what_their_suite_names() -> None:
    """No secret, a home and a temporary folder of their own, their devices alone."""
    env = for_tests(
        WORKERS,
        folder=Path("/attempt"),
        bins=[Path("/overlay/bin")],
        suite_env={"MODE": "full", "PYTHONPATH": "src"},
        mounts={"coco-2017": Path("/data")},
        devices=["GPU-a", "GPU-b"],
    )
    assert "secret" not in str(env)
    assert env.keys() & {"BROKER_URL", "UV_INDEX", "GIT_DIR", "AWS_SECRET_ACCESS_KEY"} == set()
    assert (env["HOME"], env["TMPDIR"]) == ("/attempt/home", "/attempt/tmp")
    assert env["PATH"] == "/overlay/bin:/usr/bin"
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert (env["CUDA_HOME"], env["MODE"]) == ("/usr/local/cuda", "full")
    assert env["REPLAYBENCH_MOUNT_COCO_2017"] == "/data"
    assert env["PYTHONPATH"].split(":")[1:] == ["src"]


def test_without_a_lease_no_device_is_visible() -> None:
    """Also where the worker itself sees some."""
    env = for_tests(WORKERS, folder=Path("/a"), bins=[], suite_env={}, mounts={}, devices=[])
    assert env["CUDA_VISIBLE_DEVICES"] == ""


def test_uv_gets_its_sources_and_no_token() -> None:
    """uv's own variables win over what pip's say."""
    env = for_build(WORKERS, {"UV_INDEX": "https://pip.example", "UV_FIND_LINKS": "/wheels"})
    assert env["UV_INDEX"] == WORKERS["UV_INDEX"]
    assert env["UV_FIND_LINKS"] == "/wheels"
    assert env.keys() & {"BROKER_URL", "REPLAYBENCH_WORKER_TOKEN", "PYTHONPATH"} == set()


def test_git_gets_none_of_its_own_variables() -> None:
    """Nor a prompt, nor anybody's configuration."""
    env = for_git(WORKERS)
    assert env.keys() & {"GIT_DIR", "BROKER_URL", "REPLAYBENCH_WORKER_TOKEN"} == set()
    assert (env["GIT_CONFIG_GLOBAL"], env["GIT_TERMINAL_PROMPT"]) == ("/dev/null", "0")
