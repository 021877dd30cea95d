"""GitHub's deliveries, and Gitea's and Forgejo's, which are shaped alike. Pure: no database, no framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.hooks.events import (
    BRANCH,
    Again,
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

NEW_COMMITS = frozenset({"opened", "reopened", "synchronize", "synchronized"})
"""Actions of a pull request that bring a commit to look at. GitHub says ``synchronize``, Gitea ``synchronized``."""

ADDRESSES = ("clone_url", "ssh_url", "html_url", "git_url")


def addresses(payload: Mapping[str, Any]) -> list[str]:
    """The addresses under which the forge knows the repository."""
    return [found for key in ADDRESSES if (found := maybe(payload, f"repository.{key}"))]


def read(event: str, payload: Mapping[str, Any]) -> Heard:
    """What a delivery comes to.

    Raises:
        Malformed: it lacks what the forge promises.
    """
    match event:
        case "ping":
            return Nothing("ping: the hook reaches this service")
        case "push":
            return _push(payload)
        case "pull_request" | "pull_request_sync":
            return _pull_request(payload)
        case "merge_group":
            return _merge_group(payload)
        case "check_suite" | "check_run" if payload.get("action") == "rerequested":
            return Again(checked(text_at(payload, f"{event}.head_sha"), f"{event}.head_sha"))
    return Nothing(f"event {cut(event)[:60]!r} starts nothing")


def _push(payload: Mapping[str, Any]) -> Heard:
    return pushed(
        text_at(payload, "ref"),
        text_at(payload, "before"),
        text_at(payload, "after"),
        commit=maybe(payload, "head_commit.id"),  # of an annotated tag, `after` is the tag and this its commit
        who=maybe(payload, "pusher.name") or maybe(payload, "pusher.login") or maybe(payload, "sender.login"),
        title=maybe(payload, "head_commit.message"),
    )


def _pull_request(payload: Mapping[str, Any]) -> Heard:
    action = cut(maybe(payload, "action"))
    if action not in NEW_COMMITS:
        return Nothing(f"pull_request {action} brings no commit")
    number, before = number_at(payload, "pull_request.number"), maybe_commit(payload, "before")
    head, base = at(payload, "pull_request.head.repo.full_name"), at(payload, "pull_request.base.repo.full_name")
    return Happened(
        TriggerEvent.PULL_REQUEST,
        checked(text_at(payload, "pull_request.head.sha"), "pull_request.head.sha"),
        text_at(payload, "pull_request.base.ref"),
        key("pull_request", str(number), (before or "")[:12]),
        key("pull_request", str(number)),
        base=checked(text_at(payload, "pull_request.base.sha"), "pull_request.base.sha"),
        before=before,
        since_fork=True,
        from_fork=head is None or head != base,  # a fork that is gone has no repo
        who=cut(maybe(payload, "pull_request.user.login")),
        title=first_line(maybe(payload, "pull_request.title")),
    )


def _merge_group(payload: Mapping[str, Any]) -> Heard:
    if payload.get("action") != "checks_requested":
        return Nothing(f"merge_group {cut(maybe(payload, 'action'))} starts nothing")
    return Happened(
        TriggerEvent.MERGE_GROUP,
        checked(text_at(payload, "merge_group.head_sha"), "merge_group.head_sha"),
        text_at(payload, "merge_group.base_ref").removeprefix(BRANCH),
        key("merge_group", text_at(payload, "merge_group.head_ref")),
        None,
        base=checked(text_at(payload, "merge_group.base_sha"), "merge_group.base_sha"),
        since_fork=True,
        who=cut(maybe(payload, "sender.login")),
        title=first_line(maybe(payload, "merge_group.head_commit.message")),
    )
