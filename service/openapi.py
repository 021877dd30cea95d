"""The OpenAPI document: FastAPI's own, with every error as the problem document that is really sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from service import errors
from service.errors import ServiceError

MEDIA = "application/problem+json"
NAMING = {"/api/v1/compare", "/api/v1/history"}
"""Lists whose query names something that may not be there."""
PLANNED = ("/api/v1/jobs", "/api/v1/imports")
"""Where a commit is looked up in its repository, which may not answer."""
METHODS = ("get", "put", "post", "delete", "patch")


def install(app: FastAPI) -> None:
    """Has the application give this document."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = told(plain())
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def told(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the errors of each operation."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    kinds = _by_status()
    schemas["Problem"] = _schema()
    components["responses"] = {f"Problem{status}": _response(found) for status, found in sorted(kinds.items())}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                named = {str(status): {"$ref": f"#/components/responses/Problem{status}"}
                         for status in _statuses(path, method, operation) if status in kinds}  # fmt: skip
                operation["responses"] = {**operation["responses"], **named}
    return document


def _statuses(path: str, method: str, operation: dict[str, Any]) -> Iterator[int]:
    if path.endswith("/health"):
        yield 503
        return
    yield from (401, 422, 500, 503)
    if method != "get" or "{" in path or path in NAMING:
        yield 404
    if "416" in operation["responses"]:
        yield 416
    if method != "get":
        yield from (400, 409, 413)
    if "application/json" in operation.get("requestBody", {}).get("content", {}):
        yield 415
    if path in PLANNED and method == "post":
        yield 502
    yield from (status for status in (403, 429) if any(kind.status == status for kind in _kinds()))


def _kinds(base: type[ServiceError] = ServiceError) -> Iterator[type[ServiceError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


def _by_status() -> dict[int, list[type[ServiceError]]]:
    found: defaultdict[int, list[type[ServiceError]]] = defaultdict(list)
    for kind in _kinds():
        if kind.__module__ == errors.__name__ and kind.code not in {other.code for other in found[kind.status]}:
            found[kind.status].append(kind)
    return dict(found)


def _schema() -> dict[str, Any]:
    codes = sorted({kind.code for kind in _kinds() if kind.__module__ == errors.__name__})
    text = {"type": "string"}
    return {
        "title": "Problem",
        "description": "An error (RFC 9457). `code` is stable and meant for programs, `detail` for people.",
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "code": {"type": "string", "enum": codes},
            "detail": text,
        },
    }


def _response(kinds: list[type[ServiceError]]) -> dict[str, Any]:
    said = {kind.code: " ".join((kind.__doc__ or "").split()) for kind in kinds}
    examples = {
        kind.code: {
            "summary": kind.title,
            "value": {"type": "about:blank", "title": kind.title, "status": kind.status, "code": kind.code,
                      "detail": said[kind.code]},
        }
        for kind in kinds
    }  # fmt: skip
    return {
        "description": "\n".join(f"- `{code}`: {text}" for code, text in said.items()),
        "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}},
    }
