"""Renders every error, once, as a problem document (RFC 9457)."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match, compile_path

from service.body_limit import CallRefused
from service.dependencies import COOKIE
from service.errors import (
    NO_ROOM,
    BodyUnreadable,
    DatabaseUnavailable,
    DiskFull,
    MediaTypeRefused,
    MethodRefused,
    PathUnknown,
    ServiceError,
    TooLarge,
    ValueRefused,
)
from service.pages.render import page, root
from service.words import number

log = structlog.get_logger()

SECRET = frozenset({"credential", "secret"})
"""Keys whose values no answer repeats."""

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

MOST_ERRORS = 20
"""Errors of one request that are told; a batch of thousands of events can have as many."""


def problem(status: int, code: str, title: str, detail: str, **extra: Any) -> JSONResponse:
    """A problem document. ``code`` is stable and for machines, ``detail`` is for people."""
    body = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, **extra}
    return JSONResponse(body, status, media_type="application/problem+json")


def _service_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)  # noqa: S101 -- registered for this class alone
    answer = problem(error.status, error.code, error.title, error.detail, **error.extra)
    answer.headers.update(error.headers)
    return answer


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- registered for this class alone
    if any(item["loc"] == ("body",) and isinstance(item["input"], bytes) for item in error.errors()):
        return _service_error(request, _not_json(request))
    errors = [_told(item) for item in error.errors()[:MOST_ERRORS]]
    detail = "; ".join(
        f"{item['key']}: {item['message']}" + (f", got {item['value']}" if item["value"] else "") for item in errors
    )
    return problem(422, "invalid-request", "The request is not understood", detail, errors=errors)


def _told(item: dict[str, Any]) -> dict[str, str]:
    if item["type"] == "json_invalid":  # the place is a number of characters, and there is no value yet
        why = f"is not JSON: {item['ctx']['error']} after {number(item['loc'][1], 'character')}"
        return {"key": "body", "message": _printable(why), "value": ""}
    return {
        "key": _printable(".".join(map(str, item["loc"]))),
        "message": _printable(item["msg"]),
        "value": _shown(item),
    }


def _printable(text: str) -> str:
    """A caller's own key may hold half a character, which no answer can carry."""
    return text.encode(errors="backslashreplace").decode()


def _shown(item: dict[str, Any]) -> str:
    value = item["input"]
    if isinstance(value, dict):  # its values may be secrets, and what is wrong is a key
        return f"an object with {', '.join(sorted(map(repr, map(str, value))))}"[:200] if value else "an empty object"
    if not SECRET.isdisjoint(item["loc"]):
        return "what is not shown"
    return repr(value[:200] if isinstance(value, (str, bytes, list)) else value)[:200]


def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, CallRefused):
        return _service_error(request, error.error)
    assert isinstance(error, HTTPException)  # noqa: S101 -- registered for this class alone
    told = _told_by_framework(request, error)
    if told is None:
        return problem(error.status_code, f"http-{error.status_code}", str(error.detail), str(error.detail))
    if not _wants_page(request):
        return _service_error(request, told)
    missing = isinstance(told, PathUnknown)
    what, detail = (
        ("There is no such page", f"The address is {_path(request)}.") if missing else (told.title, told.detail)
    )
    answer = page(request, "error.html", told.status, title=what, detail=detail)
    answer.headers.update(told.headers)
    return answer


def _told_by_framework(request: Request, error: HTTPException) -> ServiceError | None:
    """What Starlette and FastAPI refuse by themselves, in our words; nothing where they are not known to."""
    method, path = request.method, _path(request)
    if error.status_code == 404:
        return PathUnknown(f"there is no {method} {path} here; {root(request)}/openapi.json has every path and method")
    if error.status_code == 405:
        allowed = _allowed(request)
        return MethodRefused(f"{method} is not allowed at {path}; use {' or '.join(allowed)}", allowed)
    if error.status_code == 400:
        return BodyUnreadable(f"{_unreadable(error)}; send what {root(request)}/openapi.json describes, in UTF-8")
    return TooLarge(str(error.detail)) if error.status_code == 413 else None


def _path(request: Request) -> str:
    return _printable(request.url.path)[:200]


def _allowed(request: Request) -> list[str]:
    """The methods that a path is served for: those of the OpenAPI document, whose most literal template of the path
    counts as in routing; of a page those of all its routes. Starlette tells those of the first route alone.
    """
    path = request.url.path.removeprefix(root(request))
    paths = {template: item for template, item in request.app.openapi()["paths"].items() if _fits(template, path)}
    if paths:
        least = min(template.count("{") for template in paths)
        return sorted(
            {method.upper() for template, item in paths.items() if template.count("{") == least for method in item}
        )
    kept = {key: request.scope[key] for key in ("type", "path", "root_path", "headers")}
    routes = request.app.router.routes
    return [
        method for method in METHODS if any(one.matches({**kept, "method": method})[0] is Match.FULL for one in routes)
    ]


def _fits(template: str, path: str) -> bool:
    return compile_path(template)[0].match(path) is not None


def _unreadable(error: HTTPException) -> str:
    cause = error.__cause__
    if isinstance(cause, UnicodeDecodeError):
        byte = cause.object[cause.start]
        where = f"byte {byte:#04x} after {number(cause.start, 'byte')}"
        return f"the body is not {cause.encoding.upper()}: {where}, {cause.reason}"
    if isinstance(cause, RecursionError):
        return "the body is nested too deeply"
    return f"the body cannot be read: {_printable(str(cause or error.detail))[:300]}"


def _not_json(request: Request) -> MediaTypeRefused:
    told = request.headers.get("content-type")
    got = f"Content-Type {_printable(told)[:200]!r}" if told else "no Content-Type"
    return MediaTypeRefused(
        f"{request.method} {_path(request)} takes JSON, and the body came with {got}; "
        "send it with 'Content-Type: application/json'"
    )


def _wants_page(request: Request) -> bool:
    """Whether somebody looks at an address with a browser, and not at the API. Who is signed in by the cookie does."""
    path, accept = request.url.path.removeprefix(root(request)), request.headers.get("accept", "")
    return not path.startswith("/api/") and (
        "text/html" in accept or (COOKIE in request.cookies and "json" not in accept)
    )


def _database_error(request: Request, error: Exception) -> JSONResponse:
    log.error("database-unavailable", path=request.url.path, error=str(error))
    unavailable = DatabaseUnavailable("The database does not answer; nothing was stored. Try again in a moment.")
    return _service_error(request, unavailable)


def _data_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DataError)  # noqa: S101 -- registered for this class alone
    text = f"The database takes one of the values not: {str(error.orig)[:300]}. Nothing was stored; send it shorter."
    return _service_error(request, ValueRefused(text))


def _os_error(request: Request, error: Exception) -> JSONResponse:
    """A disk that is full is no fault of ours, whichever file it was. Any other error is."""
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        raise error
    log.error("disk-full", path=request.url.path, error=str(error)[:500])
    full = DiskFull("No room on a disk of the service; its log says for which file. Make room, and send it again.")
    return _service_error(request, full)


def _fault(request: Request, error: Exception) -> JSONResponse:
    """A fault of ours. Its traceback goes to the log, since the server logs it behind this answer."""
    log.error("fault", method=request.method, path=request.url.path, error=repr(error)[:500])
    text = "The service has a fault here; its log has the traceback. Report it with the address and the time."
    return _service_error(request, ServiceError(text))


def install(app: FastAPI) -> None:
    """Registers the handlers."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(DataError, _data_error)
    app.add_exception_handler(OSError, _os_error)
    app.add_exception_handler(Exception, _fault)
    for unavailable in (OperationalError, InterfaceError, PoolTimeout):
        app.add_exception_handler(unavailable, _database_error)
