"""Forges as their public documentation describes them: payloads, headers and signatures, written by us."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import httpx

SECRET = "a-secret-of-the-tests"
ZERO = "0" * 40


def push(url: str, ref: str, before: str, after: str, message: str = "change") -> dict[str, Any]:
    """GitHub's and Gitea's push."""
    deleted = after == ZERO
    return {
        "ref": ref,
        "before": before,
        "after": after,
        "created": before == ZERO,
        "deleted": deleted,
        "forced": False,
        "head_commit": None if deleted else {"id": after, "message": f"{message}\n\nmore", "added": [], "removed": []},
        "commits": [],
        "pusher": {"name": "m.keller", "email": "m.keller@example.org"},
        "repository": {"id": 7, "name": "demo", "full_name": "team/demo", "clone_url": url, "default_branch": "main"},
        "sender": {"login": "m.keller", "id": 1},
    }


def pull_request(
    url: str, head: str, base: str, *, action: str = "synchronize", number: int = 12, fork: str | None = "team/demo"
) -> dict[str, Any]:
    """GitHub's and Gitea's pull request; ``fork`` is the full name of the repository that it comes from."""
    return {
        "action": action,
        "number": number,
        "pull_request": {
            "number": number,
            "title": "Copy earlier",
            "state": "open",
            "user": {"login": "a.nowak"},
            "head": {"ref": "topic", "sha": head, "repo": {"full_name": fork} if fork else None},
            "base": {"ref": "main", "sha": base, "repo": {"full_name": "team/demo"}},
        },
        "repository": {"full_name": "team/demo", "clone_url": url},
        "sender": {"login": "a.nowak"},
    }


def merge_group(url: str, head: str, base: str) -> dict[str, Any]:
    """GitHub's merge queue asks for checks."""
    return {
        "action": "checks_requested",
        "merge_group": {
            "head_sha": head,
            "head_ref": "refs/heads/gh-readonly-queue/main/pr-12-abc",
            "base_sha": base,
            "base_ref": "refs/heads/main",
            "head_commit": {"id": head, "message": "Merge pull request #12"},
        },
        "repository": {"full_name": "team/demo", "clone_url": url},
        "sender": {"login": "m.keller"},
    }


def gitlab_push(url: str, ref: str, before: str, after: str, kind: str = "push") -> dict[str, Any]:
    """GitLab's push, and with ``tag_push`` its tag."""
    return {
        "object_kind": kind,
        "ref": ref,
        "before": before,
        "after": after,
        "checkout_sha": None if after == ZERO else after,
        "user_username": "m.keller",
        "project_id": 15,
        "project": {"id": 15, "path_with_namespace": "team/demo", "git_http_url": url, "default_branch": "main"},
        "commits": [{"id": after, "message": "change\n"}],
    }


def gitlab_merge_request(url: str, head: str, action: str = "open", source: int = 15, **more: Any) -> dict[str, Any]:
    """GitLab's merge request; ``source`` is the project that it comes from."""
    return {
        "object_kind": "merge_request",
        "user": {"username": "a.nowak"},
        "project": {"id": 15, "path_with_namespace": "team/demo", "git_http_url": url},
        "object_attributes": {
            "iid": 3,
            "title": "Copy earlier",
            "action": action,
            "source_branch": "topic",
            "target_branch": "main",
            "source_project_id": source,
            "target_project_id": 15,
            "last_commit": {"id": head, "message": "change"},
            **more,
        },
    }


def post(
    url: str,
    provider: str,
    event: str,
    payload: Any,
    *,
    secret: str = SECRET,
    delivery: str | None = None,
    form: bool = False,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Delivers a payload as the forge does."""
    text = json.dumps(payload)
    body = (urlencode({"payload": text}) if form else text).encode()
    # Of a form GitHub signs the body, Gitea and Forgejo the field.
    signed = text.encode() if form and provider in {"gitea", "forgejo"} else body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    number = delivery or str(uuid4())
    told = {
        "github": {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": number,
            "X-Hub-Signature-256": f"sha256={digest}",
        },
        "gitlab": {"X-Gitlab-Event": event, "Idempotency-Key": number, "X-Gitlab-Token": secret},
        "gitea": {"X-Gitea-Event": event, "X-Gitea-Delivery": number, "X-Gitea-Signature": digest},
        "forgejo": {"X-Forgejo-Event": event, "X-Forgejo-Delivery": number, "X-Forgejo-Signature": digest},
    }[provider]
    kind = "application/x-www-form-urlencoded" if form else "application/json"
    return httpx.post(
        f"{url}/hooks/{provider}", content=body, headers={"Content-Type": kind, **told, **(headers or {})}, timeout=30
    )
