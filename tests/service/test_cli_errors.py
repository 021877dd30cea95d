"""What a user can put right ends in one clear message and exit code 2, never in a traceback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import embedded, repository, running_service
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, broker_url: str) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("service")
    url = f"sqlite:///{folder / 'replaybench.db'}"
    with running_service.running(folder / "data", url, broker_url, sweep_s=0.2, lease_s=20) as it:
        yield it


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory, service: RunningService) -> GitRepository:
    made = repository.make(tmp_path_factory.mktemp("errors") / "repo")
    service.post("/repositories", {"name": "demo", "url": str(made.path)}, 201)
    return made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("submit", "--suite", "nope"), "suite-unknown"),
        (("submit", "--tree", "nope"), "commit-unreachable"),
        (("submit", "--repository", "nope"), "repository-unknown"),
        (("submit", "--runtime", "3.11"), "runtime-invalid"),
        (("submit", "--include", "zz*"), "pattern-unmatched"),
        (("submit", "--priority", "1000"), "--priority 1000"),
        (("submit", "--work-package", "x y"), "--work-package 'x y'"),
        (("submit", "--probe", "gone.patch"), "--probe 'gone.patch' cannot be read: No such file"),
        (("submit", "--probe", "replaybench.toml"), "probe-refused"),
        (("submit", "--with-plain"), "--with-plain goes with --probe"),
        (("submit", "--tree", "HEAD~99"), "HEAD~99"),
        (("watch", "99"), "not-found"),
        (("table", "99", "--format", "csv"), "not-found"),
        (("rerun", "99"), "not-found"),
        (("rerun", "1", "--cell", "-1"), "cell"),
        (("repos", "add", "A B", "/x"), "name 'A B'"),
        (("jobs", "--url", "http://127.0.0.1:1"), "no service answers at http://127.0.0.1:1"),
        (("jobs", "--url", "127.0.0.1"), "give it as http://HOST:PORT"),
    ],
)
def test_what_a_user_can_put_right_is_one_message_and_exit_2(
    service: RunningService, repo: GitRepository, arguments: tuple[str, ...], message: str
) -> None:
    done = embedded.command(
        *arguments,
        cwd=repo.path,
        REPLAYBENCH_URL=service.url,
        REPLAYBENCH_DATA_DIR=str(service.settings.data_dir),
    )
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("replaybench: ")
    assert message in last


def test_a_user_name_that_is_too_long_is_said(service: RunningService) -> None:
    """Who approves is read from the machine."""
    done = embedded.command("approve", "1", REPLAYBENCH_URL=service.url, LOGNAME="x" * 201)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_a_wrong_token_is_refused_with_the_way_out(service: RunningService) -> None:
    done = embedded.command("jobs", REPLAYBENCH_URL=service.url, REPLAYBENCH_TOKEN="wrong")
    assert (done.returncode, "set REPLAYBENCH_TOKEN" in done.stderr) == (2, True)
