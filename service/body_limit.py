"""Bounds every request's body while it is read: FastAPI takes a JSON body in before it looks at the token."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Middleware that ends the reading of a body beyond ``cap`` bytes with 413."""

    def __init__(self, app: ASGIApp, cap: int) -> None:
        self._app, self._cap = app, cap

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands the request on, counting what is read of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._cap:
                raise HTTPException(413, f"the body is larger than {self._cap} bytes; send less at once")
            return message

        await self._app(scope, counted, send)
