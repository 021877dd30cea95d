"""Signing a browser in: a token that may read goes into a cookie that no script and no other site can use."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from service import tokens
from service.access.gate import Gate
from service.access.scopes import Caller, Scope
from service.dependencies import COOKIE, SettingsDep, address_of
from service.errors import ServiceError, TokenExpired, TokenRefused, TooLarge
from service.pages.render import HEADERS, page, root
from service.pages.route import PageRoute
from service.settings import Settings

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
    wanted: Annotated[str, Query(alias="next", max_length=4000)] = "",
) -> Response:
    """The form. A token behind ``#``, as ``replaybench up`` prints it, is put in by the page's script.

    One in the query is not looked at: it would stand in the server's log, in proxies' and in the browser's history.
    """
    return _form(request, settings, wanted)


@router.post("/sign-in")
async def take(request: Request, settings: SettingsDep) -> Response:
    """Takes the form."""
    form = parse_qs((await _body(request)).decode(errors="replace"), keep_blank_values=True)
    token, wanted = form.get("token", [""])[0].strip(), form.get("next", [""])[0]
    return await run_in_threadpool(_sign_in, request, settings, token, wanted)


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
    gate: Gate = request.app.state.gate
    try:
        caller = gate.identify(token, address_of(request))
    except (TokenRefused, TokenExpired) as error:
        return _form(request, settings, wanted, _why(error))
    if not caller.may(Scope.READ):
        return _form(request, settings, wanted, "This is the worker token. Pages take a token that may read.")
    answer = RedirectResponse(own_path(wanted, f"{root(request)}/"), 303, headers=dict(HEADERS))
    answer.set_cookie(
        COOKIE,
        token,
        max_age=_lasts(caller),
        path=root(request) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


def _lasts(caller: Caller) -> int:
    return DAYS_S if caller.expires_in_s is None else min(DAYS_S, caller.expires_in_s)


def _why(error: ServiceError) -> str:
    return f"{error.detail} Copy one again, from the file named below or from whoever gave it to you."


def _form(request: Request, settings: Settings, wanted: str, problem: str = "") -> Response:
    file = tokens.path(settings.data_dir, Scope.SUBMIT)
    wanted = own_path(wanted, f"{root(request)}/")
    return page(
        request,
        "sign_in.html",
        401 if problem else 200,
        next=wanted,
        go_on=not settings.public_reading,
        problem=problem,
        token_file=str(file),
    )
