"""What pages do where the API answers with a problem document: lead to the sign-in, or say it as a page."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from service.errors import ServiceError, TokenExpired, TokenMissing, TokenRefused
from service.pages.render import page, root


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
                where = ", ".join(str(item["loc"][-1]) for item in error.errors())
                detail = f"The address is not understood: {where}."
                return page(request, "error.html", 404, title="There is no such page", detail=detail)

        return shown


def _to_sign_in(request: Request) -> Response:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{root(request)}/sign-in?next={quote(wanted, safe='')}", 303)
