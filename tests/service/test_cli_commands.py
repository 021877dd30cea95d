"""The commands against a real service, each in a process of its own, as people run them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.compare.comparison import MEANING, Change
from tests.support import embedded, running_service
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.messages import Cause, Outcome

Done = subprocess.CompletedProcess[str]
Cli = Callable[..., Done]


@pytest.fixture
def service(tmp_path: Path, broker_url: str) -> Iterator[RunningService]:
    url = f"sqlite:///{tmp_path / 'replaybench.db'}"
    with running_service.running(tmp_path / "data", url, broker_url, sweep_s=0.2, lease_s=20) as it:
        yield it


@pytest.fixture
def cli(service: RunningService, repo: GitRepository) -> Cli:
    """Runs a command in the repository; the token is found in the data directory."""

    def run(*arguments: str) -> Done:
        done = embedded.command(
            *arguments,
            cwd=repo.path,
            REPLAYBENCH_URL=service.url,
            REPLAYBENCH_DATA_DIR=str(service.settings.data_dir),
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def test_starting_up_imports_nothing_heavy() -> None:
    ask = "import sys, service.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert not {"uvicorn", "sqlalchemy", "celery", "fastapi", "httpx", "pydantic"} & set(done.stdout.split())


def test_the_help_lists_every_command() -> None:
    words = embedded.command("--help").stdout.split()
    for name in (
        "up",
        "serve",
        "worker",
        "submit",
        "import",
        "watch",
        "table",
        "compare",
        "history",
        "cancel",
        "rerun",
        "jobs",
        "repos",
        "workers",
        "db",
    ):
        assert name in words


def test_the_workers_own_commands_are_in_its_help_and_each_has_one(tmp_path: Path) -> None:
    """And they reach the worker: what it knows of, the help names, and nothing else is taken."""
    told = embedded.command("worker", "--help").stdout
    for name in ("gpus", "clear", "spools", "deliver"):
        assert re.search(rf"│ {name} +\S", told), name
        own = embedded.command("worker", name, "--help").stdout
        assert f"worker {name} " in own
        assert "--enroll" not in own
    where = {"REPLAYBENCH_CACHE_DIR": str(tmp_path)}
    assert json.loads(embedded.command("worker", "gpus", **where).stdout) == []
    refused = embedded.command("worker", "clear", "no-card", **where)
    assert refused.returncode != 0
    assert "no-card" in refused.stderr
    for wrong in (("nothing",), ("clear",), ("--enroll", "x", "gpus")):
        done = embedded.command("worker", *wrong, **where)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_submitting_from_a_checkout_registers_it_and_tests_its_commit(cli: Cli, repo: GitRepository) -> None:
    (repo.path / "not committed").write_text("")
    done = cli("submit", "--label", "nightly", "--json")
    assert done.returncode == 0
    assert f"registered {repo.path} as repository 'repo'" in done.stderr
    assert "the checkout differs from its commit (not committed)" in done.stderr
    job = json.loads(done.stdout)
    assert (job["label"], job["trees"]) == ("nightly", [repo.git("rev-parse", "--short=7", "HEAD").strip()])
    again = cli("submit")
    assert "registered" not in again.stderr
    assert again.stdout.startswith("job 2: 1 cell, http"), again.stdout


def test_a_dry_run_shows_the_cells_and_stores_no_job(cli: Cli) -> None:
    done = cli("submit", "--suite", "unit", "--suite", "other", "--dry-run")
    assert done.stdout.count("/unit") == done.stdout.count("/other") == 1
    both = ("--suite", "unit", "--suite", "other")
    plan = json.loads(cli("submit", *both, "--exclude", "*/other", "--dry-run", "--json").stdout)
    assert [cell["suite"] for cell in plan["cells"]] == ["unit"]
    assert json.loads(cli("jobs", "--json").stdout) == []


def test_probes_go_on_each_tree_and_plain_ones_beside_them(cli: Cli, repo: GitRepository) -> None:
    (repo.path / "tests" / "test_cases.py").write_text("def test_one(): pass\n")
    (repo.path.parent / "fix.patch").write_bytes(repo.diff())
    probe = ("--probe", "../fix.patch", "--suite", "unit", "--dry-run", "--json")

    def trees(*more: str) -> list[bool]:
        return ["+probe:" in tree["name"] for tree in json.loads(cli("submit", *probe, *more).stdout)["trees"]]

    assert trees() == [True]
    assert trees("--with-plain") == [False, True]


def test_a_dirty_checkout_is_a_probe_and_a_baseline_goes_first(cli: Cli, repo: GitRepository) -> None:
    """The service takes the probe as it is, so an untracked file is tested."""
    repo.commit("second", more="x")
    (repo.path / "tests/test_new.py").write_text("def test_new(): pass\n")
    done = cli("submit", "--dirty", "--baseline", "HEAD~1", "--suite", "unit", "--json")
    assert done.returncode == 0, done.stderr
    assert "differs from its commit" not in done.stderr
    before, now = json.loads(done.stdout)["trees"]
    assert before == repo.git("rev-parse", "--short=7", "HEAD~1").strip()
    assert now.startswith(repo.git("rev-parse", "--short=7", "HEAD").strip() + "+probe:")
    assert repo.git("status", "--porcelain").strip() == "?? tests/test_new.py"
    assert "--dirty means this checkout" in cli("submit", "--dirty", "--tree", "main").stderr


@pytest.mark.parametrize("change", ["edit", "delete", "rename"])
def test_what_a_probe_changes_in_the_configuration_is_said_not_to_count(
    cli: Cli, repo: GitRepository, change: str
) -> None:
    """Of a checkout and of a patch; a file of that name elsewhere is another one. The refusal names the commit."""
    (repo.path / "tests/replaybench.toml").write_text("new = 1\n")
    assert "to have them used" not in cli("submit", "--dirty", "--suite", "unit", "--dry-run").stderr
    file = repo.path / "replaybench.toml"
    if change == "edit":
        file.write_text(file.read_text() + '\n[suites.fresh]\npaths = ["tests"]\n')
    elif change == "rename":
        repo.git("mv", file.name, "other.toml")
    else:
        file.unlink()
    done = cli("submit", "--dirty", "--suite", "unit", "--dry-run")
    assert done.returncode == 0
    assert "note: the checkout changes replaybench.toml, and suites, matrix and install lines" in done.stderr
    (repo.path.parent / "fix.patch").write_text(repo.git("diff", "HEAD", "-M"))
    probed = cli("submit", "--probe", "../fix.patch", "--suite", "unit", "--dry-run")
    assert "note: --probe '../fix.patch' changes replaybench.toml, " in probed.stderr
    refused = cli("submit", "--dirty", "--suite", "fresh")
    assert refused.returncode == 2
    assert f"commit {repo.git('rev-parse', '--short=7', 'HEAD').strip()} declares no suite 'fresh'" in refused.stderr


def test_a_part_of_a_suite_is_asked_for_and_the_table_says_so(
    cli: Cli, service: RunningService, registered: GitRepository
) -> None:
    done = cli("submit", "--suite", "unit", "-k", "one", "--case", "t::a", "--repeat", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout)["cells"].values()) == 2
    table = cli("table", "1").stdout
    assert "Run" in table
    assert "1 case, -k 'one'" in table
    assert "no case of that job" in cli("submit", "--only-failed-of", "1").stderr


def test_jobs_repositories_and_workers_are_listed(cli: Cli, service: RunningService, repo: GitRepository) -> None:
    assert cli("repos", "add", "demo", str(repo.path)).stdout == f"registered {repo.path} as demo\n"
    service.submit("demo", "main", suites=["unit"], label="[red]not markup")
    service.driver("bench-1").must_claim().run({"a": Outcome.PASSED})
    assert str(repo.path) in cli("repos", "list").stdout
    assert "[red]not markup" in cli("jobs").stdout
    assert "bench-1" in cli("workers").stdout


def test_a_table_in_every_form(cli: Cli, service: RunningService, registered: GitRepository) -> None:
    service.submit("demo", "main", suites=["unit"])
    service.driver().must_claim().run({"a": Outcome.PASSED, "b": Outcome.FAILED})
    for form in ("text", "markdown", "csv", "json"):
        assert "1 failed, 1 passed" in cli("table", "1", "--format", form).stdout, form
    assert "| Tree | Runtime | Result |" in cli("table", "1", "--format", "markdown").stdout
    assert json.loads(cli("table", "1", "--format", "json").stdout)["job"] == 1


def test_a_comparison_exits_with_what_became_of_the_cases(
    cli: Cli, service: RunningService, registered: GitRepository
) -> None:
    """1 when something broke, 0 when nothing did, 2 when not all could be compared; in every form."""
    one, two = registered.git("rev-parse", "HEAD").strip()[:7], registered.commit("second", more="x")[:7]
    service.submit("demo", one, two, suites=["unit"])
    assert cli("compare", one, two).returncode == 2
    service.driver().must_claim().run({"t::a": Outcome.PASSED, "t::b": Outcome.PASSED})
    service.driver().must_claim().run({"t::a": Outcome.FAILED, "t::b": Outcome.PASSED})
    done = cli("compare", one, two)
    assert done.returncode == 1
    assert f"{one} to {two}: 1 broken, 1 still passing" in done.stdout
    assert cli("compare", two, one, "--format", "markdown").returncode == 0
    assert json.loads(cli("compare", "--job", "1", "--format", "json").stdout)["counts"]["broken"] == 1
    assert "compare needs two trees, BASE and HEAD, or --job" in cli("compare", one).stderr
    half = cli("compare", one, "--job", "1")
    assert (half.returncode, "takes both trees" in half.stderr) == (2, True)


def test_a_comparison_takes_what_names_a_commit(cli: Cli, service: RunningService, registered: GitRepository) -> None:
    """Branches and tags of the repository, HEAD of the checkout, and each with a probe, as a submission does."""
    one = registered.git("rev-parse", "HEAD").strip()
    registered.git("tag", "v1")
    two = registered.commit("second", more="x")
    service.submit("demo", one, two, suites=["unit"])
    for _ in range(2):
        service.driver().must_claim().run({"t::a": Outcome.PASSED})
    for base, head in (("v1", "main"), ("HEAD~1", "HEAD"), ("@^", two[:9]), (one, "refs/heads/main")):
        done = cli("compare", base, head)
        assert f"{one[:7]} to {two[:7]}: 1 still passing" in done.stdout, (base, head, done.stderr)
    shown = service.http.get("/compare", params={"repository": "demo", "base": "v1", "head": "main"}).text
    assert f"<title>{one[:7]} to {two[:7]} ·" in shown
    assert f"base={one[:7]}&amp;head={two[:7]}" in shown, "its links go on to say the same"
    refused = cli("compare", "v1", "nowhere")
    assert (refused.returncode, "'nowhere' is no name of one; give a commit, branch" in refused.stderr) == (2, True)
    assert "+probe:abcd" in cli("compare", "v1", "main+probe:abcd").stderr
    single = cli("compare", "--job", str(service.submit("demo", one, suites=["unit"])["id"]))
    assert "has 1 tree, so head must be named: the tree that is compared with base" in single.stderr


@pytest.mark.parametrize(
    "now",
    [
        {"t::b": Outcome.PASSED},
        pytest.param({"t::a": Outcome.SKIPPED, "t::b": Outcome.PASSED}, marks=pytest.mark.long),
        {"t::a": Outcome.XFAILED, "t::b": Outcome.PASSED},
    ],
)
def test_a_comparison_that_lost_a_passing_case_does_not_exit_with_0(
    cli: Cli, service: RunningService, registered: GitRepository, now: dict[str, Outcome]
) -> None:
    """Gone, skipped, or marked as one that may fail: nobody saw it pass. The other way round nothing is lost."""
    one, two = registered.git("rev-parse", "HEAD").strip()[:7], registered.commit("second", more="x")[:7]
    service.submit("demo", one, two, suites=["unit"])
    service.driver().must_claim().run({"t::a": Outcome.PASSED, "t::b": Outcome.PASSED})
    service.driver().must_claim().run(now)
    done = cli("compare", one, two)
    assert done.returncode == 2
    assert "nothing broke, but not all could be compared" in done.stdout
    assert "passed in base, not seen to pass in head: 1" in done.stdout
    back = cli("compare", two, one)
    assert back.returncode == 0
    assert "but not all" not in back.stdout
    page = service.http.get("/compare", params={"repository": "demo", "base": one, "head": two}).text
    assert 'data-state="incomplete">nothing broke, but not all could be compared<' in page


def test_a_comparisons_words_are_explained_where_they_stand(
    cli: Cli, service: RunningService, registered: GitRepository
) -> None:
    """Those that occur below a comparison, all of them in the help and in the documentation."""
    one = registered.git("rev-parse", "HEAD").strip()
    service.submit("demo", one, registered.commit("second", more="x"), suites=["unit"])
    for _ in range(2):
        service.driver().must_claim().run({"t::a": Outcome.PASSED})
    shown = cli("compare", "--job", "1").stdout
    assert f"still passing: {MEANING[Change.STILL_PASSING]}" in shown
    assert MEANING[Change.BROKEN] not in shown
    told = " ".join(cli("compare", "--help").stdout.split())
    page = (Path(__file__).parents[2] / "docs/results.md").read_text(encoding="utf-8")
    for change, meaning in MEANING.items():
        assert f"{change.replace('-', ' ')}: {meaning}" in told
        assert f"| {change.replace('-', ' ')} | {meaning} |" in page


def test_a_cases_history_is_listed(cli: Cli, service: RunningService, registered: GitRepository) -> None:
    service.submit("demo", "main", suites=["unit"])
    service.driver().must_claim().run({"t::a": Outcome.FAILED})
    assert "failed" in cli("history", "t::a").stdout
    assert json.loads(cli("history", "t::a", "--json").stdout)[0]["job"] == 1
    assert "no deciding attempt has observed this case" in cli("history", "t::b").stderr


def test_cancel_and_rerun(cli: Cli, service: RunningService, registered: GitRepository) -> None:
    service.submit("demo", "main", suites=["unit"])
    assert cli("cancel", "1").stdout == "job 1 cancelled\n"
    assert json.loads(cli("rerun", "1", "--json").stdout)["state"] == "waiting"


def test_cancelling_what_runs_says_when_its_worker_is_told(
    cli: Cli, service: RunningService, registered: GitRepository
) -> None:
    """The job has not ended by then, so the answer is not its state; once it has, it is."""
    service.submit("demo", "main", suites=["unit", "other"])
    first, second = service.driver("one").must_claim(), service.driver("two").must_claim()
    first.start(1)
    done = cli("cancel", "1")
    assert done.returncode == 0
    assert done.stdout.startswith("job 1 is being cancelled: 2 cells still run, and their workers are told to stop ")
    assert " within 7 s; `replaybench watch 1` follows" in done.stdout, "a third of the lease of 20 s"
    second.end(0, cause=Cause.CANCELLED)
    assert "1 cell still runs, and its worker is told" in cli("cancel", "1").stdout
    first.end(1, cause=Cause.CANCELLED)
    assert "job 1 has ended as cancelled" in cli("cancel", "1").stderr


def test_a_setting_that_does_not_fit_is_named() -> None:
    done = embedded.command("jobs", REPLAYBENCH_PORT="many")
    assert done.returncode == 2
    assert "REPLAYBENCH_PORT='many'" in done.stderr


def test_the_database_is_brought_up_to_date(tmp_path: Path) -> None:
    for _ in range(2):
        done = embedded.command("db", "upgrade", DATABASE_URL=f"sqlite:///{tmp_path / 'x.db'}")
        assert (done.returncode, done.stdout) == (0, "the database is up to date\n"), done.stderr
    assert (tmp_path / "x.db").stat().st_size > 0


def test_a_job_as_junit(service: RunningService, registered: GitRepository, cli: Cli, tmp_path: Path) -> None:
    """On standard output or in a file; an attempt of another job is refused."""
    first, second = service.submit("demo", "main")["id"], service.submit("demo", "main")["id"]
    attempt = service.driver().must_claim()
    attempt.run({"t.py::test_ä": Outcome.FAILED})
    number = str(attempt.assignment.attempt)
    file = tmp_path / "out.xml"
    assert cli("junit", str(first), "--output", str(file)).returncode == 0
    assert 'name="test_ä"' in file.read_text(encoding="utf-8")
    assert cli("junit", str(first), "--attempt", number).stdout.startswith("<?xml")
    refused = cli("junit", str(second), "--attempt", number)
    assert refused.returncode == 2
    assert f"--attempt {number} is not one of job {second}" in refused.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (None, "1 row checked, 0 faults found"),
        (('"outcome": "failed"', '"outcome": "passed"'), "the digest is not that of the cases"),
        (('"failed": 1', '"failed": 2'), "the counts are not those of the cases"),
        (('"attempt": 1', '"attempt": 7'), "no attempt"),
        (
            ('"origin": "run",\n   "usage"', '"origin": "imported",\n   "usage"'),
            "the row says run, its attempt imported",
        ),
    ],
)
def test_exported_evidence_is_checked_without_the_service(
    cli: Cli,
    service: RunningService,
    registered: GitRepository,
    tmp_path: Path,
    tamper: tuple[str, str] | None,
    said: str,
) -> None:
    """It follows from its cases as it was exported, and each change is seen."""
    service.submit("demo", "main", suites=["unit"])
    service.driver().must_claim().run({"t::a": Outcome.PASSED, "t::b": Outcome.FAILED})
    file = tmp_path / "evidence.json"
    assert cli("export", "1", "--output", str(file)).returncode == 0
    text = file.read_text()
    if tamper:
        assert tamper[0] in text
        file.write_text(text.replace(*tamper))
    done = embedded.command("verify", str(file), REPLAYBENCH_URL="http://127.0.0.1:1")
    assert (done.returncode, said in done.stdout) == (1 if tamper else 0, True), done.stdout + done.stderr
    assert bool(json.loads(embedded.command("verify", str(file), "--json").stdout)["wrong"]) is bool(tamper)
    assert json.loads(text)["table"]["rows"][0]["digest"] in done.stdout


def test_evidence_of_what_could_not_be_run_is_proven_too(
    cli: Cli, service: RunningService, registered: GitRepository, tmp_path: Path
) -> None:
    """Its attempt has no record of an environment, and a digest all the same."""
    service.submit("demo", "main", suites=["unit"])
    service.driver().must_claim().end(0, cause=Cause.ENVIRONMENT, detail="no torch")
    file = tmp_path / "evidence.json"
    assert cli("export", "1", "--output", str(file)).returncode == 0
    done = cli("verify", str(file))
    assert (done.returncode, "environment: no torch" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), ("{}", "is no export: table"), ("x", "is no export")]
)
def test_what_is_no_export_is_said_to_be_none(tmp_path: Path, content: str | None, said: str) -> None:
    """With exit code 2, which is not that of evidence that is wrong."""
    file = tmp_path / "evidence.json"
    if content is not None:
        file.write_text(content)
    done = embedded.command("verify", str(file))
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


REPORT = '<testsuite time="2"><testcase classname="t.test_a" name="x"/>{}</testsuite>'
RUN_ELSEWHERE = ("--repository", "demo", "--commit", "HEAD", "--runtime", "py3.11", "--suite", "nightly")


@pytest.mark.parametrize(
    ("more", "code", "state", "why"),
    [
        ("", 0, "passed", ""),
        ('<testcase classname="t.test_a" name="y"><failure message="one is not two"/></testcase>', 1, "failed", ""),
        ('<testcase classname="replaybench" name="x"><error type="replaybench.fault"/></testcase>', 2, "broken",
         " (the report tells of a fault)"),
        ('<testcase name="y" time="-5"/>', 0, "passed",
         " (of 1 case the time is no length of time and counts as 0 s: '-5')"),
        ('</testsuite><testsuite tests="5"><testcase name="y"/>', 2, "broken",
         " (the report tells of 6 cases and has 2; import it whole)"),
    ],
)  # fmt: skip
def test_a_report_is_imported(
    service: RunningService,
    registered: GitRepository,
    cli: Cli,
    tmp_path: Path,
    more: str,
    code: int,
    state: str,
    why: str,
) -> None:
    """The exit code says what became of it; HEAD is the checkout's; the table and the last line say imported, and the
    line also what of the report could not be taken as it stands."""
    (tmp_path / "report.xml").write_text(f"<testsuites>{REPORT.format(more)}</testsuites>")
    done = cli("import", str(tmp_path / "report.xml"), *RUN_ELSEWHERE, "--gpu", "NVIDIA H200", "--label", "cluster")
    assert done.returncode == code, done.stderr
    assert f"job 1 {state} (imported){why}: " in done.stdout
    assert "Origin" in done.stdout
    assert "NVIDIA H200" in done.stdout
    assert ("::y in" in done.stdout) is (state == "failed")
    assert f"{state} (imported)" in cli("jobs").stdout
    again = cli("import", str(tmp_path / "report.xml"), *RUN_ELSEWHERE, "--json")
    assert (again.returncode, json.loads(again.stdout)["origin"]) == (code, "imported")


def test_the_history_of_an_imported_case_says_so(
    service: RunningService, registered: GitRepository, cli: Cli, tmp_path: Path
) -> None:
    """Beside our own runs of it, and in no table that holds those alone."""
    service.submit("demo", "main", suites=["unit"])
    service.driver().must_claim().run({"t/test_a.py::x": Outcome.PASSED})
    assert "Origin" not in cli("history", "t/test_a.py::x").stdout
    (tmp_path / "report.xml").write_text(
        '<testsuite><testcase file="t/test_a.py" classname="t.test_a" name="x"/></testsuite>'
    )
    assert cli("import", str(tmp_path / "report.xml"), *RUN_ELSEWHERE).returncode == 0
    assert "job 2 passed (imported)" in cli("watch", "2").stdout.splitlines()[0]
    shown = cli("history", "t/test_a.py::x").stdout
    assert (shown.count("imported"), "Origin" in shown) == (1, True)
    assert [one["origin"] for one in json.loads(cli("history", "t/test_a.py::x", "--json").stdout)] == [
        "imported",
        "run",
    ]


def test_what_cannot_be_imported_says_why(
    service: RunningService, registered: GitRepository, cli: Cli, tmp_path: Path
) -> None:
    """With exit code 2: a file that is not there or no report, an option that does not fit, a job to run again."""
    (tmp_path / "report.xml").write_text("<html/>")
    report = str(tmp_path / "report.xml")
    for arguments, said in (
        ((report, *RUN_ELSEWHERE), "the root is <html>"),
        ((str(tmp_path / "none.xml"), *RUN_ELSEWHERE), "No such file"),
        ((report, *RUN_ELSEWHERE[:-1], "a/b"), "--suite 'a/b'"),
        ((report, *RUN_ELSEWHERE[2:]), "--repository"),
    ):
        done = cli("import", *arguments)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    (tmp_path / "report.xml").write_text(REPORT.format(""))
    assert cli("import", report, *RUN_ELSEWHERE).returncode == 0
    refused = cli("rerun", "1")
    assert refused.returncode == 2
    assert "imported" in refused.stderr
