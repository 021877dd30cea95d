"""Submitting a job: refs pinned, configuration and probe read at the commit, each error with its code."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service import errors
from service.models import Job
from tests.support import repository, running_service
from tests.support.fixtures import sqlite_url as database_url
from tests.support.repository import CONFIG, PYTHON, GitRepository
from tests.support.running_service import RunningService
from worker.gitaccess.address import AddressRefused, check

__all__ = ["database_url"]


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, broker_url: str
) -> Iterator[RunningService]:
    """One service for all requests that it refuses, with a repository ``demo``."""
    folder = tmp_path_factory.mktemp("shared")
    url = f"sqlite:///{shutil.copy(sqlite_template, folder / 'replaybench.db')}"
    repo = repository.make(folder / "repo")
    with running_service.running(folder / "data", url, broker_url) as it:
        it.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        yield it


def probe(patch: bytes) -> str:
    """A patch as a request carries it."""
    return base64.b64encode(patch).decode()


def plan(service: RunningService, *trees: dict[str, Any], **body: Any) -> Any:
    """A dry run's answer."""
    return service.post("/jobs", {"repository": "demo", "trees": list(trees), "dry_run": True, **body})


def refused(service: RunningService, **body: Any) -> tuple[int, str, str]:
    """Status, code and text of a submission that is refused; nothing is stored by it."""
    content = json.dumps({"repository": "demo", "trees": [{"ref": "main"}], **body})
    answer = service.http.post("/api/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    document = answer.json()
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert (document["status"], document["type"]) == (answer.status_code, "about:blank")
    assert service.get("/jobs")["items"] == []
    return answer.status_code, document["code"], document["detail"]


def test_a_dry_run_answers_the_cells_and_stores_nothing(service: RunningService, registered: GitRepository) -> None:
    """Its cells are those that the same request would queue."""
    head = registered.git("rev-parse", "HEAD").strip()
    found = plan(service, {"ref": "main"}, suites=["unit", "other"])
    assert [cell["name"] for cell in found["cells"]] == [f"{head[:7]}/{PYTHON}/{suite}" for suite in ("unit", "other")]
    tree = registered.git("rev-parse", "HEAD^{tree}").strip()
    assert found["trees"] == [{"name": head[:7], "commit": head, "probe_digest": None, "digest": tree}]
    assert service.get("/jobs")["items"] == []
    assert service.driver().claim() is None


def test_what_is_null_is_what_is_left_out(service: RunningService, registered: GitRepository) -> None:
    """The command line says every key; the schema tells clients that a probe is base64."""
    keys = ("runtimes", "suites", "label", "work_package", "requested_by", "reason")
    found = plan(service, {"ref": "main", "probe": None}, **dict.fromkeys(keys))
    assert [cell["suite"] for cell in found["cells"]] == ["unit"]
    schema = service.http.get("/openapi.json").json()["components"]["schemas"]["TreeInput"]["properties"]["probe"]
    assert {"type": "string", "maxLength": 16 * 2**20, "contentEncoding": "base64"}.items() <= schema["anyOf"][
        0
    ].items()


def test_what_is_left_out_comes_from_the_commits_own_file(service: RunningService, registered: GitRepository) -> None:
    """An older commit is read with its own file, and a probe that changes the file changes nothing of the matrix."""
    old = registered.git("rev-parse", "HEAD").strip()
    registered.commit("more", replaybench_dot_toml=CONFIG.replace('["unit"]', '["unit", "other"]'))
    (registered.path / "replaybench.toml").write_text("schema = 99\n")
    patch = registered.diff()
    found = plan(service, {"ref": old}, {"ref": "main", "probe": probe(patch)})
    assert [cell["suite"] for cell in found["cells"]] == ["unit", "unit", "other"]
    assert (
        found["trees"][1]["name"] == f"{found['trees'][1]['commit'][:7]}+probe:{found['trees'][1]['probe_digest'][:6]}"
    )


def test_branches_and_tags_are_pinned_and_follow_the_repository(
    service: RunningService, registered: GitRepository
) -> None:
    """Each submission asks anew; an annotated tag stands for its commit, a short SHA for the full one."""
    first = registered.git("rev-parse", "HEAD").strip()
    registered.git("tag", "-a", "v1", "-m", "one")
    registered.git("branch", "feature/x")
    for ref in ("main", "v1", "feature/x", "refs/tags/v1", first, first[:8]):
        assert plan(service, {"ref": ref})["trees"][0]["commit"] == first
    second = registered.commit("second")
    assert plan(service, {"ref": "main"})["trees"][0]["commit"] == second
    assert plan(service, {"ref": "v1"})["trees"][0]["commit"] == first


def test_a_commit_that_no_branch_holds_is_found_by_its_sha(service: RunningService, registered: GitRepository) -> None:
    """One that was forced away is found still, whether the mirror saw it before or not."""
    seen = registered.commit("seen")
    assert plan(service, {"ref": "main"})["trees"][0]["commit"] == seen
    registered.git("reset", "--quiet", "--hard", "HEAD~1")
    unseen = registered.commit("never seen")
    registered.git("reset", "--quiet", "--hard", "HEAD~1")
    registered.commit("third")
    registered.git("config", "uploadpack.allowAnySHA1InWant", "true")
    for sha in (seen, unseen):
        assert plan(service, {"ref": sha})["trees"][0]["commit"] == sha
    registered.git("config", "uploadpack.allowAnySHA1InWant", "false")
    registered.git("update-ref", "refs/changes/1", unseen)
    assert plan(service, {"ref": unseen})["trees"][0]["commit"] == unseen


def test_two_refs_of_one_commit_are_one_tree(service: RunningService, registered: GitRepository) -> None:
    """With a probe it is another tree, and the same probe twice is one again."""
    registered.git("branch", "same")
    (registered.path / "new.txt").write_text("x\n")
    patch = probe(registered.diff())
    found = plan(
        service, {"ref": "main"}, {"ref": "same"}, {"ref": "main", "probe": patch}, {"ref": "same", "probe": patch}
    )
    assert len(found["trees"]) == len(found["cells"]) == 2
    assert found["trees"][0]["digest"] != found["trees"][1]["digest"]


def test_each_ref_is_kept_with_its_own_tree(service: RunningService, registered: GitRepository) -> None:
    """Where two of three are one tree, the third one's stays its own."""
    first = registered.git("rev-parse", "HEAD").strip()
    registered.git("tag", "same")
    registered.git("checkout", "--quiet", "-b", "topic")
    other = registered.commit("other")
    job = service.submit("demo", "main", "same", "topic")["id"]
    with service.database.read() as session:
        request = session.get_one(Job, job).request
    assert request["trees"] == [
        {"ref": "main", "tree": first[:7]},
        {"ref": "same", "tree": first[:7]},
        {"ref": "topic", "tree": other[:7]},
    ]


@pytest.mark.parametrize("content", [b"a\r\nb\r\n", b"\0\x01\xff" * 100], ids=["crlf", "binary"])
def test_a_probes_bytes_are_kept_and_its_tree_is_gits(
    service: RunningService, registered: GitRepository, content: bytes
) -> None:
    """The worker gets the very bytes, and the digest is that of the tree which git itself makes of them."""
    registered.commit("base", data_dot_bin=content)
    (registered.path / "data.bin").write_bytes(content + b"c\r\n")
    registered.git("add", "--all")
    tree = registered.git("write-tree").strip()
    patch = registered.git_bytes("diff", "--cached", "--binary", "--full-index")
    registered.git("reset", "--quiet", "--hard")
    service.post("/jobs", {"repository": "demo", "trees": [{"ref": "main", "probe": probe(patch)}]}, 201)
    cell = service.driver().must_claim().assignment.cell
    assert base64.b64decode(cell.probe or "") == patch
    assert cell.tree == tree


def test_a_probe_that_does_not_apply_is_refused_with_gits_own_reason(
    service: RunningService, registered: GitRepository
) -> None:
    """So is one that is no patch, one that is empty, and one that would write outside of the tree."""
    (registered.path / "tests/test_cases.py").write_text("other\n")
    patch = registered.diff()
    registered.commit("moved on", tests__test_cases_dot_py="quite different\n")
    cases = {
        "patch does not apply": patch,
        "No valid patches in input": b"hello\n",
        "invalid path": b"--- /dev/null\n+++ b/../out.txt\n@@ -0,0 +1 @@\n+x\n",
    }
    for reason, content in cases.items():
        status, code, detail = refused(service, trees=[{"ref": "main", "probe": probe(content)}])
        assert (status, code) == (422, "probe-refused")
        assert reason in detail
    assert refused(service, trees=[{"ref": "main", "probe": ""}])[1] == "probe-refused"


@pytest.mark.parametrize(
    "ref", ["--upload-pack=touch /tmp/x", "-h", "a..b", "main~1", "HEAD^{/x}", "@{-1}", "a b", "a\nb", "x.lock", "a:b"]
)
def test_a_ref_that_git_could_read_otherwise_is_refused(shared: RunningService, ref: str) -> None:
    """Options, ranges and expressions are no names."""
    assert refused(shared, trees=[{"ref": ref}])[:2] == (422, "ref-refused")


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        ({"repository": "other"}, 404, "repository-unknown", "replaybench repos add other"),
        ({"trees": [{"ref": "gone"}]}, 422, "commit-unreachable", "'gone' is no commit, branch or tag"),
        ({"trees": [{"ref": "0" * 40}]}, 422, "commit-unreachable", "push it"),
        ({"trees": [{"ref": "HEAD"}]}, 422, "commit-unreachable", "'HEAD'"),
        ({"suites": ["no"]}, 422, "suite-unknown", "it has unit, other"),
        ({"runtimes": ["python3"]}, 422, "runtime-invalid", "'python3' is not of the form"),
        ({"include": ["no*"]}, 422, "pattern-unmatched", "'no*'"),
        ({"exclude": ["*"]}, 422, "matrix-empty", "exclude less"),
        ({"runtimes": []}, 422, "matrix-empty", "name runtimes"),
        ({"suites": []}, 422, "matrix-empty", "suites"),
        ({"trees": []}, 422, "invalid-request", "body.trees"),
        ({"trees": [{"ref": ""}]}, 422, "invalid-request", "body.trees.0.ref"),
        ({"sweets": []}, 422, "invalid-request", "body.sweets: Extra inputs are not permitted"),
        ({"trees": [{"ref": "main", "x": 1}]}, 422, "invalid-request", "body.trees.0.x"),
        ({"trees": [{"ref": "main", "probe": "!!!!"}]}, 422, "invalid-request", "body.trees.0.probe"),
        ({"trees": [{"ref": "main", "probe": "YWJj?YWJj"}]}, 422, "invalid-request", "not base64"),
        ({"trees": [{"ref": "main", "probe": "\ud800"}]}, 422, "invalid-request", "body.trees.0.probe"),
        ({"trees": [{"ref": "main", "probe": 5}]}, 422, "invalid-request", "body.trees.0.probe"),
        ({"priority": 101}, 422, "invalid-request", "body.priority"),
        ({"priority": 10**400}, 422, "invalid-request", "body.priority"),
        ({"work_package": "WP 1"}, 422, "invalid-request", "body.work_package"),
        ({"label": "a\0b"}, 422, "invalid-request", "body.label: Value error, no database stores the NUL"),
        ({"reason": "\ud800"}, 422, "invalid-request", "body.reason"),
        ({"repository": "a\0b"}, 422, "invalid-request", "body.repository"),
        ({"include": ["a\0b"]}, 422, "invalid-request", "body.include"),
        ({"trees": [{"ref": "a\0b"}]}, 422, "invalid-request", "body.trees.0.ref"),
        ({"\ud800": 1}, 422, "invalid-request", "body"),
        ({"runtimes": ["py3.11"] * 201}, 422, "invalid-request", "body.runtimes"),
    ],
)  # fmt: skip
def test_every_refusal_has_its_code_and_says_why(
    shared: RunningService, body: dict[str, Any], status: int, code: str, said: str
) -> None:
    """A problem document with a stable code, the key and the value; never a 500, and nothing stored."""
    found = refused(shared, **body)
    assert found[:2] == (status, code), found
    assert said in found[2]


def test_what_is_no_json_is_a_422(shared: RunningService) -> None:
    """Broken JSON, another type and endless nesting are the caller's mistakes."""
    for content in (b"{", b"[1]", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"a":' * 100_000):
        answer = shared.http.post("/api/v1/jobs", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), content[:20]


def test_more_cells_than_a_job_may_have(service: RunningService, registered: GitRepository) -> None:
    """A thousand are planned, one more is refused."""
    suites = "".join(f"[suites.s{n}]\n" for n in range(11))
    registered.commit("many", replaybench_dot_toml=f"schema = 1\n{suites}")
    runtimes = [f"py3.{n}" for n in range(100)]
    ten = [f"s{n}" for n in range(10)]
    assert len(plan(service, {"ref": "main"}, runtimes=runtimes, suites=ten)["cells"]) == 1000
    status, code, detail = refused(service, runtimes=[*runtimes, "py4.0"], suites=ten)
    assert (status, code) == (422, "matrix-too-large")
    assert "1010 cells" in detail


def test_a_tree_without_a_usable_file(service: RunningService, registered: GitRepository) -> None:
    """Missing, wrong, and a directory of that name."""
    registered.commit("wrong", replaybench_dot_toml="schema = 7\n")
    assert refused(service)[1] == "configuration-invalid"
    registered.git("rm", "--quiet", "replaybench.toml")
    registered.commit("missing")
    assert refused(service)[1] == "configuration-missing"
    registered.commit("folder", replaybench_dot_toml__x="y")
    assert refused(service)[1] == "configuration-missing"


def test_a_repository_that_does_not_answer(service: RunningService, tmp_path: Path) -> None:
    """The reason is git's, and the status says that the fault is not the caller's."""
    service.post("/repositories", {"name": "demo", "url": str(tmp_path / "nowhere")}, 201)
    status, code, detail = refused(service)
    assert (status, code) == (502, "mirror-failed")
    assert "nowhere" in detail


@pytest.mark.parametrize(
    "url",
    ["ext::sh -c touch% /tmp/x", "https://user:secret@host/x.git", "https://secret@host/x.git",
      "fd::17", "--upload-pack=x", "-oProxyCommand=x@host:y", "ssh://-oProxyCommand=x/y",
     "host-without-user:path", "ftp://host/x", "https://host/a b", "https://host/a\0b", "u@-h:x", "../x", "/a\nb"],
)  # fmt: skip
def test_a_url_that_git_would_run_a_program_for_is_refused(shared: RunningService, url: str) -> None:
    """So is one that could be read as an option, and what no database stores."""
    answer = shared.http.post("/api/v1/repositories", json={"name": "demo", "url": url})
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] in ("url-refused", "invalid-request")


@pytest.mark.parametrize(
    "url",
    ["https://münchen.example/x.git", "https://host:99999/x.git", "https://host:0/x.git", "ssh://git@host:x/y",
     "https://ho*st/x", "https://host?x", "git://host\\@other/x", "file://host/x", "user@host::x", "u@[::1/x"],
)  # fmt: skip
def test_a_url_that_no_worker_would_fetch_is_refused(shared: RunningService, url: str) -> None:
    """At registration, and not by the first job's cells."""
    with pytest.raises(AddressRefused):
        check(url)
    answer = shared.http.post("/api/v1/repositories", json={"name": "odd", "url": url})
    assert (answer.status_code, answer.json()["code"]) == (422, "url-refused")


@pytest.mark.parametrize(
    "url",
    [
        "https://xn--mnchen-3ya.example:8443/x.git",
        "ssh://git@[::1]:2222/x",
        "git@host:x/y.git",
        "file:///srv/ä",
        "/x y",
    ],
)
def test_a_url_that_workers_fetch_is_taken(shared: RunningService, url: str) -> None:
    """Internationalized hosts in their ASCII form, IPv6, and any local path."""
    check(url)
    shared.post("/repositories", {"name": f"taken-{hashlib.sha256(url.encode()).hexdigest()[:8]}", "url": url}, 201)


def test_a_name_stands_for_one_url(service: RunningService, registered: GitRepository) -> None:
    """The same again is no error, another URL is; a name is a plain word."""
    service.post("/repositories", {"name": "demo", "url": str(registered.path)}, 201)
    assert service.post("/repositories", {"name": "demo", "url": "/other"}, 409)["code"] == "repository-exists"
    assert service.post("/repositories", {"name": "../x", "url": "/x"}, 422)["code"] == "invalid-request"
    assert [found["name"] for found in service.get("/repositories")] == ["demo"]


def test_nothing_of_the_machines_git_configuration_counts(
    service: RunningService, registered: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL rewritten by the operator's own configuration is still the one that was registered."""
    (tmp_path / "config").write_text('[url "/nowhere/"]\n\tinsteadOf = /\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert plan(service, {"ref": "main"})["cells"]


def test_every_code_is_its_own() -> None:
    """Codes are stable words, and only what is no different to a caller shares one."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ServiceError)]
    codes = [kind.code for kind in kinds if kind is not errors.ValueRefused]
    assert len(codes) == len(set(codes))
    assert "invalid-request" not in codes


@pytest.fixture
def no_broker(tmp_path: Path, database_url: str) -> Iterator[RunningService]:
    """A service whose broker is away."""
    with running_service.running(tmp_path / "data", database_url, "redis://127.0.0.1:1/0", sweep_s=0.1) as it:
        yield it


def test_a_broker_that_is_away_loses_no_submission(no_broker: RunningService, tmp_path: Path) -> None:
    """The job is stored and answered, the sweep goes on, and a worker that asks gets the cell."""
    repo = repository.make(tmp_path / "repo")
    no_broker.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
    job = no_broker.submit("demo", "main")
    assert job["state"] == "waiting"
    assert no_broker.driver().must_claim().assignment.cell.job == job["id"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "body: is not JSON: Expecting property name enclosed in double quotes after 1 character"),
        ("", "body: Field required"),
        ('{"repository": 1', "body: is not JSON: Expecting ',' delimiter after 16 characters"),
        ("{}", "body.repository: Field required, got an empty object"),
        ('{"trees": []}', "body.repository: Field required, got an object with 'trees'"),
        ("[]", "body: Input should be"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_as_its_sender_knows_it(
    service: RunningService, body: str, said: str
) -> None:
    """By the place in what was sent, and without lists that nobody wrote."""
    answer = service.http.post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert answer.json()["detail"].startswith(said), answer.json()["detail"]
