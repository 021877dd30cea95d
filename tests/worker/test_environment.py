"""What a test process sees of the worker's environment: nothing that was not allowed."""

from __future__ import annotations

from pathlib import Path

from worker.isolation.environment import for_build, for_tests
from worker.sources.git import environment as for_git

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


def test_a_build_learns_where_packages_come_from_and_not_how_to_upload_some() -> None:
    """Build backends, which are the tree's own code, run in uv's environment."""
    index = {"UV_INDEX": "https://index.example/simple", "UV_INDEX_MINE_PASSWORD": "for reading"}
    env = for_build(WORKERS | index | {"UV_PUBLISH_TOKEN": "t", "UV_PUBLISH_PASSWORD": "p"}, {})
    assert index.items() <= env.items()
    assert not [key for key in env if key.startswith("UV_PUBLISH_")]


def test_git_gets_none_of_its_own_variables() -> None:
    """Nor a prompt, nor anybody's configuration."""
    env = for_git(WORKERS)
    assert env.keys() & {"GIT_DIR", "BROKER_URL", "REPLAYBENCH_WORKER_TOKEN"} == set()
    assert (env["GIT_CONFIG_NOSYSTEM"], env["GIT_ATTR_NOSYSTEM"], env["GIT_TERMINAL_PROMPT"]) == ("1", "1", "0")
    assert Path(env["GIT_CONFIG_GLOBAL"]).read_text().count("directory = *") == 1


def test_how_a_machines_own_libraries_are_set_up_reaches_the_tests() -> None:
    """An image's MPI ends the process without its own settings; what an operator switched off in NCCL stays off."""
    machine = {"OMPI_MCA_plm": "isolated", "PMIX_MCA_gds": "hash", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}
    env = for_tests(WORKERS | machine, folder=Path("/a"), bins=[], suite_env={}, mounts={}, devices=[])
    assert machine.items() <= env.items()


def test_an_operator_lets_further_variables_through_and_never_the_workers_own() -> None:
    """Patterns name them; the worker's settings and the device lease stay its own, whatever the pattern."""
    env = for_tests(
        WORKERS | {"HF_HOME": "/hub"},
        passed=["HF_*", "*"],
        folder=Path("/a"),
        bins=[],
        suite_env={},
        mounts={},
        devices=[],
    )
    assert env["HF_HOME"] == "/hub"
    assert env.keys() & {"BROKER_URL", "REPLAYBENCH_WORKER_TOKEN"} == set()
    assert env["CUDA_VISIBLE_DEVICES"] == ""


def test_proxies_reach_a_suite_that_needs_the_network() -> None:
    """And no other."""
    proxy = {"https_proxy": "http://proxy:3128", "NO_PROXY": "localhost"}
    for network in (True, False):
        env = for_tests(
            WORKERS | proxy, folder=Path("/a"), bins=[], suite_env={}, network=network, mounts={}, devices=[]
        )
        assert (proxy.items() <= env.items()) is network
