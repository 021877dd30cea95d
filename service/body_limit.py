"""Bounds every request's body while it is read: FastAPI takes a JSON body in before it looks at the token."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.gate import Gate
from service.dependencies import address_of, token_of
from service.errors import ServiceError

UNPROVEN = 2**20
"""Bytes of a body that are read of somebody who has shown no good token."""
HOOKS = "/hooks/"
"""Where forges call, who have a signature over the whole body and no token. The endpoint has a cap of its own."""


class CallRefused(HTTPException):
    """Breaks off the reading of a body by an error of ours: FastAPI lets only an ``HTTPException`` through there."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(error.status, error.detail)
        self.error = error


class BodyLimit:
    """Middleware that ends the reading of a body beyond ``cap`` bytes with 413, and beyond ``UNPROVEN`` bytes also that
    of whoever has no good token.
    """

    def __init__(self, app: ASGIApp, cap: int) -> None:
        self._app, self._cap = app, cap

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands the request on, counting what is read of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size, trusted = 0, scope["path"].startswith(HOOKS)

        async def counted() -> Message:
            nonlocal size, trusted
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._cap:
                raise HTTPException(413, f"the body is larger than {self._cap} bytes; send less at once")
            if size > UNPROVEN and not trusted:  # only now: almost all bodies are small, and the endpoint looks anyway
                await run_in_threadpool(_prove, Request(scope))
                trusted = True
            return message

        await self._app(scope, counted, send)


def _prove(request: Request) -> None:
    """Lets through who has a good token, whatever it is good for: that is the endpoint's to say.

    Raises:
        HTTPException: there is none.
        CallRefused: the token is refused, or too many were.
    """
    gate: Gate = request.app.state.gate
    token, address = token_of(request), address_of(request)
    try:
        if token is not None:
            gate.identify(token, address)
            return
        gate.count(address)
    except ServiceError as error:
        raise CallRefused(error) from error
    raise HTTPException(
        413, f"without a token a body may have {UNPROVEN} bytes; send less, or 'Authorization: Bearer <token>' with it"
    )
