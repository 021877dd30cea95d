"""What pages do where the API answers with a problem document: lead to the sign-in, or say it as a page."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from service.errors import ServiceError, TokenExpired, TokenMissing, TokenRefused
from service.pages.render import page, root

NUMBER = "it must be a whole number"
UNREAD = frozenset({"int_parsing", "int_parsing_size", "int_from_float"})
"""Errors of pydantic's that say at length that something is no whole number."""


class PageRoute(APIRoute):
    """A route whose errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, its errors caught."""
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handle(request)
            except (TokenMissing, TokenRefused, TokenExpired):
                return _to_sign_in(request)
            except ServiceError as error:
                answer = page(request, "error.html", error.status, title=error.title, detail=error.detail)
                answer.headers.update(error.headers)
                return answer
            except RequestValidationError as error:
                return self._not_understood(request, error.errors())

        return shown

    def _not_understood(self, request: Request, errors: Sequence[dict[str, Any]]) -> Response:
        """No such page where the path cannot be one; else the page is there, and its query is wrong."""
        missing = any(item["loc"][0] == "path" for item in errors)
        status, title = (404, "There is no such page") if missing else (422, "The address is not understood")
        detail = " ".join(self._told(request.url.path, item) for item in errors)
        return page(request, "error.html", status, title=title, detail=detail)

    def _told(self, path: str, item: dict[str, Any]) -> str:
        place, name = item["loc"][0], str(item["loc"][-1])
        query = next((one.field_info for one in self.dependant.query_params if one.alias == name), None)
        if item["type"] == "missing":
            what = query.description if query else None
            return f"{path[:200]} needs {name}= behind a question mark{f': {what}' if what else ''}."
        must = NUMBER if item["type"] in UNREAD else item["msg"].replace("Input should", "it must")
        value = repr(str(item["input"])[:200])
        if place == "path":
            return f"In {path[:200]} the {name.removesuffix('_id')} is {value}; {must}."
        needed = query is None or query.is_required()
        return f"{name}= is {value}; {must}{'' if needed else ', or leave it out'}."


def _to_sign_in(request: Request) -> Response:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{root(request)}/sign-in?next={quote(wanted, safe='')}", 303)
