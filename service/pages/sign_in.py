"""Signing a browser in: the submit token goes into a cookie that no script and no other site can use."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from service import tokens
from service.dependencies import COOKIE, SettingsDep
from service.errors import TooLarge
from service.pages.render import HEADERS, page, root
from service.pages.route import PageRoute
from service.settings import Settings
from service.tokens import Scope, Tokens

router = APIRouter(route_class=PageRoute, include_in_schema=False)
DAYS_S = 30 * 24 * 3600
BODY_CAP = 16 * 1024

# Browsers drop tabs and newlines and read "\" as "/", so "/\t/evil" and "/\evil" would lead to another site.
_OWN_PATH = re.compile(r"/(?:[^/\\\x00-\x20\x7f][^\\\x00-\x20\x7f]*)?")


def own_path(wanted: str, fallback: str) -> str:
    """``wanted`` if it is a path of this site, else ``fallback``."""
    return wanted if _OWN_PATH.fullmatch(wanted) else fallback


@router.get("/sign-in")
def ask(
    request: Request,
    settings: SettingsDep,
    token: Annotated[str | None, Query(max_length=500)] = None,
    wanted: Annotated[str, Query(alias="next", max_length=4000)] = "",
) -> Response:
    """The form; with a token in the address, as ``replaybench up`` prints it, signs in at once."""
    if token is None:
        return _form(request, settings, wanted)
    return _sign_in(request, settings, token, wanted)


@router.post("/sign-in")
async def take(request: Request, settings: SettingsDep) -> Response:
    """Takes the form."""
    form = parse_qs((await _body(request)).decode(errors="replace"), keep_blank_values=True)
    return _sign_in(request, settings, form.get("token", [""])[0].strip(), form.get("next", [""])[0])


@router.post("/sign-out")
def leave(request: Request) -> Response:
    """Forgets the token in this browser."""
    answer = RedirectResponse(f"{root(request)}/sign-in", 303, headers=dict(HEADERS))
    answer.delete_cookie(COOKIE, path=root(request) or "/", httponly=True, samesite="strict")
    return answer


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_CAP:
            raise TooLarge(f"The form is larger than {BODY_CAP} bytes.")
    return body


def _sign_in(request: Request, settings: Settings, token: str, wanted: str) -> Response:
    known: Tokens = request.app.state.tokens
    scope = known.scope_of(token)
    if scope is not Scope.SUBMIT:
        return _form(request, settings, wanted, _why(scope))
    answer = RedirectResponse(own_path(wanted, f"{root(request)}/"), 303, headers=dict(HEADERS))
    answer.set_cookie(
        COOKIE,
        token,
        max_age=DAYS_S,
        path=root(request) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


def _why(scope: Scope | None) -> str:
    if scope is Scope.WORKER:
        return "This is the worker token. Pages take the submit token, from the file named below."
    return "This is not the submit token of this service. Copy it again from the file named below."


def _form(request: Request, settings: Settings, wanted: str, problem: str = "") -> Response:
    file = tokens.path(settings.data_dir, Scope.SUBMIT)
    wanted = own_path(wanted, f"{root(request)}/")
    return page(request, "sign_in.html", 401 if problem else 200, next=wanted, problem=problem, token_file=str(file))
