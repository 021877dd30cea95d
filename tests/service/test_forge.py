"""What forges are asked, and what their answers mean."""

from __future__ import annotations

import datetime
import json

import pytest

from service.forges import Forge
from service.outgoing.retry import UNTOLD_S, Again, Answer, Never, Taken
from service.states import CommitState
from service.statuses import forge, text
from service.statuses.forge import Told, Unguessable
from worker.messages import Verdict

NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "url", "api", "project"),
    [
        ("github", "https://github.com/team/demo.git", "https://api.github.com", "team/demo"),
        ("github", "git@github.com:team/demo", "https://api.github.com", "team/demo"),
        ("github", "ssh://git@hub.example.org:2222/team/demo", "https://hub.example.org/api/v3", "team/demo"),
        ("gitlab", "https://gitlab.com/a/b/demo.git/", "https://gitlab.com/api/v4", "a/b/demo"),
        ("gitea", "https://user@git.example.org/team/demo.git", "https://git.example.org/api/v1", "team/demo"),
        ("forgejo", "git@codeberg.org:team/demo.git", "https://codeberg.org/api/v1", "team/demo"),
    ],
)
def test_api_and_project_follow_from_the_url(kind: str, url: str, api: str, project: str) -> None:
    """However git fetches it."""
    assert forge.api_of(Forge(kind), url) == api
    assert forge.project_of(Forge(kind), url, api) == project


def test_a_forge_under_a_path_of_its_host() -> None:
    """Its path is no part of the project's name."""
    url, api = "https://example.org/git/a/demo.git", "https://example.org/git/api/v4"
    assert forge.project_of(Forge.GITLAB, url, api) == "a/demo"
    assert forge.project_of(Forge.GITEA, url, "https://example.org/git/api/v1/") == "a/demo"


@pytest.mark.parametrize("url", ["/srv/git/demo.git", "file:///srv/git/demo.git", "https://git.example.org/demo.git"])
def test_what_a_url_does_not_tell(url: str) -> None:
    """Is asked for by the name of the field."""
    with pytest.raises(Unguessable, match="give project as OWNER/NAME"):
        forge.project_of(Forge.GITEA, url, "https://git.example.org/api/v1")
    if not url.startswith("https"):
        with pytest.raises(Unguessable, match="api_url"):
            forge.api_of(Forge.GITEA, url)


def test_each_forge_is_asked_in_its_own_words() -> None:
    """Address, credential and states."""
    told = Told("ab" * 20, "replaybench/gate", CommitState.FAILURE, "1 failed", "https://b.example.org/jobs/1")
    url, headers, body = forge.request_of(Forge.GITHUB, "https://api.github.com", "t/d", "k", told)
    assert url == f"https://api.github.com/repos/t/d/statuses/{'ab' * 20}"
    assert headers["Authorization"] == "Bearer k"
    assert json.loads(body) == {
        "state": "failure",
        "context": "replaybench/gate",
        "description": "1 failed",
        "target_url": "https://b.example.org/jobs/1",
    }
    url, headers, body = forge.request_of(Forge.GITLAB, "https://gitlab.com/api/v4/", "a/b/d", "k", told)
    assert url == f"https://gitlab.com/api/v4/projects/a%2Fb%2Fd/statuses/{'ab' * 20}"
    assert (headers["PRIVATE-TOKEN"], json.loads(body)["state"]) == ("k", "failed")
    assert json.loads(body)["name"] == "replaybench/gate"
    unlinked = Told("ab" * 20, "c", CommitState.CANCELLED, "x", None)
    _, headers, body = forge.request_of(Forge.FORGEJO, "https://codeberg.org/api/v1", "t/d", "k", unlinked)
    assert headers["Authorization"] == "token k"
    assert json.loads(body) == {"state": "error", "context": "c", "description": "x"}


def read(
    status: int, body: object, state: CommitState = CommitState.SUCCESS, kind: Forge = Forge.GITHUB, **headers: str
) -> object:
    """What an answer means."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return forge.read(kind, state, Answer(status, named, json.dumps(body).encode()), NOW)


def test_a_rate_limit_is_told_from_a_refusal() -> None:
    """GitHub answers both with 403; a limit that says nothing of its end is waited for a minute."""
    secondary = {"message": "You have exceeded a secondary rate limit."}
    assert read(403, secondary, retry_after="7") == Again("rate limit: 403 " + secondary["message"], 7.0)
    assert read(403, secondary) == Again("rate limit: 403 " + secondary["message"], UNTOLD_S)
    reset = str(int(NOW.timestamp()) + 100)
    limited = read(403, {"message": "API rate limit exceeded"}, x_ratelimit_remaining="0", x_ratelimit_reset=reset)
    assert limited == Again("rate limit: 403 API rate limit exceeded", 100.0)
    assert isinstance(read(403, {"message": "Resource not accessible"}), Never)
    assert read(429, {"message": "Retry later"}, kind=Forge.GITLAB) == Again("rate limit: 429 Retry later", UNTOLD_S)


def test_gitlab_takes_no_state_twice() -> None:
    """What it refuses as shown already is delivered; a refused end is tried again."""
    refused = {"message": "Cannot transition status via :run from :running (Reason(s): ...)"}
    assert isinstance(read(400, refused, CommitState.RUNNING, Forge.GITLAB), Taken)
    refused = {"message": 'Cannot transition status via :drop from :failed (Reason(s): "drop")'}
    assert isinstance(read(400, refused, CommitState.FAILURE, Forge.GITLAB), Taken)
    assert isinstance(read(400, refused, CommitState.SUCCESS, Forge.GITLAB), Again)
    assert isinstance(read(400, {"error": "state does not have a valid value"}, kind=Forge.GITLAB), Never)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[1]", b'"x"', b"\xff\xfe", b"[" * 50_000, b'{"message": {"a": [1]}}']
)
def test_any_answer_is_understood(body: bytes) -> None:
    """An error's body may be anything."""
    step = forge.read(Forge.GITHUB, CommitState.SUCCESS, Answer(404, {}, body), NOW)
    assert isinstance(step, Never)
    assert step.reason.startswith("404")
    assert len(step.reason) < 500


def test_a_context_stays_the_same_and_says_what_ran() -> None:
    """Whatever the order of suites, and apart for a part of them."""
    assert text.context(["cuda", "gate", "cuda"], {}) == text.context(["gate", "cuda"], {}) == "replaybench/cuda+gate"
    assert text.context(["gate"], {"include": [], "exclude": ["x"]}) == "replaybench/gate (part)"
    assert text.context(["gate"], {"keyword": "adam"}) == "replaybench/gate (part)"
    many = text.context([f"suite-{number}" for number in range(40)], {})
    assert many.startswith("replaybench/40 suites ")
    assert len(many) < 60


def test_a_sentence_has_at_most_140_characters() -> None:
    """The counts come first, and what is cut is seen to be cut."""
    counts = {"failed": 18, "passed": 9}
    assert text.sentence(CommitState.FAILURE, counts, [Verdict.FAILED]) == "18 failed, 9 passed"
    verdicts = [Verdict.ENVIRONMENT, Verdict.ENVIRONMENT, Verdict.INCOMPLETE]
    said = text.sentence(CommitState.ERROR, {"passed": 9}, verdicts)
    assert said == "9 passed; 2 cells environment, 1 cell incomplete"
    assert text.sentence(CommitState.ERROR, {}, []) == "error"
    cut = text.shorten("x, " * 100)
    assert len(cut) <= text.LONGEST
    assert cut.endswith("x…")
