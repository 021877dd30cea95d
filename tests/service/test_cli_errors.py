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


WORDED = [
    (("repos", "add", "A B", "/x"), "NAME 'A B': give small letters, digits"),
    (("repos", "add", "demo", ""), "GIT-URL '': give one that is not empty"),
    (("repos", "statuses", "x" * 500), "NAME '"),
    (("repos", "credential", "demo", "--token", "env:X", "--user", "a b"), "--user 'a b': give 1 to 200 ASCII"),
    (("webhooks", "add", ""), "TARGET-URL '': give one that is not empty"),
    (("webhooks", "add", "https://x.test", "--event", "z"), "--event 'z': give 'job.started' or 'job.ended'"),
    (("webhooks", "rotate", "1", "--overlap", "9999999"), "--overlap 9999999: give 2592000 or less"),
    (("webhooks", "remove", "9" * 20), f"WEBHOOK '{'9' * 20}': give {2**63 - 1} or less"),
    (("tokens", "create", "", "--scope", "read"), "NAME '': give 1 to 100 characters in one line"),
    (("workers", "enroll", ""), "NAME '': give 1 to 80 characters in one line"),
    (("submit", "--tree", ""), "--tree '': give one that is not empty"),
    (("submit", "--baseline", ""), "--baseline '': give one that is not empty"),
    (("submit", "--case", ""), "--case '': give one that is not empty"),
    (("submit", "--repository", ""), "--repository '': give one that is not empty"),
    (("submit", "-k", "x" * 1001), "-k 'xxx"),
    (("submit", "--label", "\udcff"), "--label '\\udcff': give text that is UTF-8"),
    (("table", "9" * 26), f"JOB '{'9' * 26}': give {2**63 - 1} or less"),
    (("junit", "1", "--attempt", "-5"), "--attempt '-5': give 1 or more"),
    (("jobs", "--before", "0"), "--before '0': give 1 or more"),
    (("compare", "--job", "9" * 26), f"--job '{'9' * 26}': give {2**63 - 1} or less"),
    (("history", ""), "NODE_ID '': give one that is not empty"),
]
"""What each option and argument is called, and what it takes: each row starts the command anew."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("submit", "--suite", "nope"), "suite-unknown"),
        (("submit", "--tree", "nope"), "commit-unreachable"),
        (("submit", "--repository", "nope"), "repository-unknown"),
        (("submit", "--runtime", "3.11"), "runtime-invalid"),
        (("submit", "--include", "zz*"), "pattern-unmatched"),
        (("submit", "--priority", "1000"), "--priority 1000: give 100 or less"),
        (("submit", "--work-package", "x y"), "--work-package 'x y': give letters, a dash, then digits or letters"),
        (("submit", "--probe", "gone.patch"), "--probe 'gone.patch' cannot be read: No such file"),
        (("submit", "--probe", "replaybench.toml"), "probe-refused"),
        (("submit", "--with-plain"), "--with-plain goes with --probe"),
        (("submit", "--tree", "HEAD~99"), "HEAD~99"),
        (("watch", "99"), "not-found"),
        (("table", "99", "--format", "csv"), "not-found"),
        (("rerun", "99"), "not-found"),
        (("rerun", "1", "--cell", "-1"), "--cell -1: give 1 or more"),
        *(pytest.param(*row, marks=pytest.mark.long) for row in WORDED),
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
    assert " should " not in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table", "0"), "'JOB': '0': give 1 or more"),
        (("table", "one"), "'JOB': 'one': give a whole number"),
        (("jobs", "--limit", "1000"), "'--limit': '1000': give 200 or less"),
        (("submit", "--repeat", "0"), "'--repeat': '0': give 1 or more"),
        (("history", "x", "--before", "0"), "'--before': '0': give 1 or more"),
    ],
)
def test_a_value_that_fits_no_option_is_said_with_what_is_allowed(arguments: tuple[str, ...], message: str) -> None:
    """Before any service is asked."""
    done = embedded.command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Invalid value for {message}" in " ".join(done.stderr.replace("│", " ").split())


def test_a_user_name_that_is_too_long_is_said(service: RunningService) -> None:
    """Who approves is read from the machine."""
    done = embedded.command("approve", "1", REPLAYBENCH_URL=service.url, LOGNAME="x" * 201)
    assert done.returncode == 2
    assert done.stderr.startswith("replaybench: your user name 'xxx")
    assert done.stderr.endswith(": give 200 characters or less\n")


def test_a_wrong_token_is_refused_with_the_way_out(service: RunningService) -> None:
    done = embedded.command("jobs", REPLAYBENCH_URL=service.url, REPLAYBENCH_TOKEN="wrong")
    assert (done.returncode, "set REPLAYBENCH_TOKEN" in done.stderr) == (2, True)
