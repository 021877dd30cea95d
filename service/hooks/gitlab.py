"""GitLab's deliveries. Pure: no database, no framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.hooks.events import (
    Happened,
    Heard,
    Nothing,
    at,
    checked,
    cut,
    first_line,
    key,
    maybe,
    maybe_commit,
    number_at,
    pushed,
    text_at,
)
from service.matrix.trigger import TriggerEvent

ADDRESSES = ("git_http_url", "git_ssh_url", "http_url", "ssh_url", "web_url")


def addresses(payload: Mapping[str, Any]) -> list[str]:
    """The addresses under which the forge knows the repository. A merge request's ``project`` is its target."""
    return [found for key in ADDRESSES if (found := maybe(payload, f"project.{key}"))]


def read(event: str, payload: Mapping[str, Any]) -> Heard:
    """What a delivery comes to; ``event`` is the header's, such as ``Push Hook``.

    Raises:
        Malformed: it lacks what the forge promises.
    """
    match event:
        case "Push Hook" | "Tag Push Hook":
            return pushed(
                text_at(payload, "ref"),
                text_at(payload, "before"),
                text_at(payload, "after"),
                commit=maybe(payload, "checkout_sha"),
                who=maybe(payload, "user_username") or maybe(payload, "user_name"),
                title=_subject(payload),
            )
        case "Merge Request Hook":
            return _merge_request(payload)
    return Nothing(f"event {cut(event)[:60]!r} starts nothing")


def _subject(payload: Mapping[str, Any]) -> str | None:
    commits = payload.get("commits")
    for commit in commits if isinstance(commits, list) else []:
        if at(commit, "id") == payload.get("after"):
            return maybe(commit, "message")
    return None


def _merge_request(payload: Mapping[str, Any]) -> Heard:
    action = cut(maybe(payload, "object_attributes.action"))
    # An update without `oldrev` changed the title, a label or the like.
    if action not in {"open", "reopen"} and not (action == "update" and maybe(payload, "object_attributes.oldrev")):
        return Nothing(f"merge request {action} brings no commit")
    number, before = number_at(payload, "object_attributes.iid"), maybe_commit(payload, "object_attributes.oldrev")
    target = text_at(payload, "object_attributes.target_branch")
    return Happened(
        TriggerEvent.PULL_REQUEST,
        checked(text_at(payload, "object_attributes.last_commit.id"), "object_attributes.last_commit.id"),
        target,
        key("pull_request", str(number), (before or "")[:12]),
        key("pull_request", str(number)),
        base=target,  # the payload has no SHA of it
        before=before,
        since_fork=True,
        # A fork that is gone has no project.
        from_fork=at(payload, "object_attributes.source_project_id")
        != number_at(payload, "object_attributes.target_project_id"),
        who=cut(maybe(payload, "user.username")),
        title=first_line(maybe(payload, "object_attributes.title")),
    )
