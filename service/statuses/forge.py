"""How each forge is told the status of a commit, and what its answers mean. Pure."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from service.forges import Forge
from service.outgoing.retry import RETRIED, UNTOLD_S, Again, Answer, Never, Step, Taken, wait_asked
from service.states import CommitState

CAPPED = "maximum number of statuses"
"""GitHub takes 1,000 statuses for one commit and context, and then answers 422 with these words."""

_GITHUB: Mapping[CommitState, str] = {
    CommitState.PENDING: "pending",
    CommitState.RUNNING: "pending",
    CommitState.SUCCESS: "success",
    CommitState.FAILURE: "failure",
    CommitState.ERROR: "error",
    CommitState.CANCELLED: "error",
}
_GITLAB: Mapping[CommitState, str] = {
    CommitState.PENDING: "pending",
    CommitState.RUNNING: "running",
    CommitState.SUCCESS: "success",
    CommitState.FAILURE: "failed",
    CommitState.ERROR: "failed",
    CommitState.CANCELLED: "canceled",
}
_API: Mapping[Forge, str] = {
    Forge.GITHUB: "/api/v3",
    Forge.GITLAB: "/api/v4",
    Forge.GITEA: "/api/v1",
    Forge.FORGEJO: "/api/v1",
}


class Unguessable(ValueError):
    """The git URL does not tell what the forge needs to know. The text says which field to give."""


@dataclass(frozen=True)
class Told:
    """What a commit's status is to say."""

    commit: str
    context: str
    state: CommitState
    text: str
    url: str | None


def api_of(forge: Forge, git_url: str) -> str:
    """The usual address of the API of the forge that a repository is at.

    Raises:
        Unguessable: the URL names no host.
    """
    host, _ = _split(git_url)
    if not host:
        raise Unguessable(f"url {git_url!r} names no host, so api_url cannot be guessed; give it")
    if forge is Forge.GITHUB and host in {"github.com", "ssh.github.com"}:
        return "https://api.github.com"
    return f"https://{host}{_API[forge]}"


def project_of(forge: Forge, git_url: str, api_url: str) -> str:
    """A repository's name at its forge: ``team/graphreplay``.

    Raises:
        Unguessable: the URL has no such name in it.
    """
    host, path = _split(git_url)
    # A forge under a path of its host has that path before the API's own and before every repository's.
    prefix = urlsplit(api_url).path.rstrip("/").removesuffix(_API[forge]).strip("/")
    name = path.strip("/").removesuffix(".git")
    if prefix and name.startswith(f"{prefix}/"):
        name = name.removeprefix(f"{prefix}/")
    if not host or name.count("/") < 1 or (forge is not Forge.GITLAB and name.count("/") != 1):
        raise Unguessable(
            f"url {git_url!r} does not tell the repository's name at the forge; give project as OWNER/NAME"
        )
    return name


def _split(git_url: str) -> tuple[str, str]:
    if "://" not in git_url and ":" in git_url.partition("/")[0]:  # git@host:path
        host, _, path = git_url.partition(":")
        return host.rpartition("@")[2].lower(), path
    parts = urlsplit(git_url)
    return (parts.hostname or "").lower() if parts.scheme != "file" else "", parts.path


def request_of(forge: Forge, api_url: str, project: str, token: str, told: Told) -> tuple[str, dict[str, str], bytes]:
    """URL, headers and body of the call that sets the status."""
    body: dict[str, str] = {
        "state": (_GITLAB if forge is Forge.GITLAB else _GITHUB)[told.state],
        "description": told.text,
        "name" if forge is Forge.GITLAB else "context": told.context,
    }
    if told.url is not None:
        body["target_url"] = told.url
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if forge is Forge.GITLAB:
        path = f"/projects/{quote(project, safe='')}/statuses/{told.commit}"
        headers["PRIVATE-TOKEN"] = token
    else:
        path = f"/repos/{quote(project)}/statuses/{told.commit}"
        headers["Authorization"] = f"Bearer {token}" if forge is Forge.GITHUB else f"token {token}"
    if forge is Forge.GITHUB:
        headers |= {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    return f"{api_url.rstrip('/')}{path}", headers, json.dumps(body, ensure_ascii=False).encode()


def read(forge: Forge, state: CommitState, answer: Answer, now: datetime.datetime) -> Step:
    """What follows from a forge's answer."""
    said = f"{answer.status} {message(answer)}".strip()
    if 200 <= answer.status < 300:
        return Taken()
    asked = wait_asked(answer, now)
    if answer.status == 429 or (answer.status == 403 and (asked is not None or _limited(answer))):
        return Again(f"rate limit: {said}", UNTOLD_S if asked is None else asked)
    if answer.status >= 500 or answer.status in RETRIED:
        return Again(said, asked)
    if forge is Forge.GITLAB and answer.status == 400 and "Cannot transition status" in message(answer):
        # It takes no state twice in a row, and not `pending` behind `running`.
        if not state.final or message(answer).partition(" (")[0].endswith(f"from :{_GITLAB[state]}"):
            return Taken("GitLab shows as much already")
        return Again(said)
    return Never(f"{said}{_advice(answer)}")


def _limited(answer: Answer) -> bool:
    text = message(answer).lower()
    return "rate limit" in text or "abuse detection" in text


def _advice(answer: Answer) -> str:
    if 300 <= answer.status < 400:
        return f" (moved to {answer.headers.get('location', 'another address')[:200]}; register the new address)"
    if CAPPED in message(answer):
        return " (the forge takes no more for this commit and context)"
    return {
        401: " (the credential is refused; set another with `replaybench repos forge`)",
        403: " (the credential may not write statuses)",
        404: " (the forge has no such project or commit, or hides it from this credential)",
    }.get(answer.status, "")


def message(answer: Answer) -> str:
    """The forge's own words, out of the JSON that they come in."""
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return answer.text
    if not isinstance(body, dict):
        return answer.text
    said = [body.get("message"), body.get("errors"), body.get("error"), body.get("error_description")]
    return " ".join(" ".join(_flat(part) for part in said if part).split())[:300]


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_flat(part)}" for key, part in list(value.items())[:10])
    if isinstance(value, list):
        return "; ".join(_flat(part) for part in value[:10])
    return str(value)
