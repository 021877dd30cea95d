"""Entity tags: who has the newest answer already is told so, by 304 and no body (RFC 9110, 8.8.3 and 13.1.2)."""

from __future__ import annotations

import re
from importlib.metadata import version

from fastapi import Request, Response

_TAG = re.compile(r'(?:W/)?"([^"]*)"')
RELEASE = version("replaybench")


def of_job(job: int, revision: int, variant: str) -> str:
    """The tag of what is shown of a job. Weak: it promises the same facts, and not the same bytes."""
    return f'W/"{RELEASE}.{job}.{revision}.{variant}"'


def of_bytes(sha256: str) -> str:
    """The tag of bytes that never change."""
    return f'"{sha256}"'


def unchanged(request: Request, tag: str, **headers: str) -> Response | None:
    """The answer 304 where the caller's `If-None-Match` names the tag or is `*`."""
    named = request.headers.get("if-none-match", "")
    if named.strip() != "*" and _TAG.findall(tag)[0] not in _TAG.findall(named):
        return None
    return Response(status_code=304, headers={**fresh(tag), **headers})


def fresh(tag: str) -> dict[str, str]:
    """The headers of an answer with a tag: it may be kept by its reader, who asks each time whether it still holds."""
    return {"ETag": tag, "Cache-Control": "private, no-cache"}
