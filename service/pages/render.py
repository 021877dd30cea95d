"""Templates to answers: one place that escapes, makes controls visible, and says what a page may load."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from service import clock
from service.dependencies import known_caller
from service.pages import log, progress, text
from service.results.table import ORDER
from service.results.usage import cards_of
from service.words import brief, number

HERE = Path(__file__).parent
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def _shown(value: Any) -> Any:
    """Every value on its way into a page; Markup is a template's own."""
    return text.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _static() -> dict[str, tuple[bytes, str]]:
    files = sorted((HERE / "static").iterdir())
    return {file.name: (file.read_bytes(), hashlib.sha256(file.read_bytes()).hexdigest()[:12]) for file in files}


STATIC = _static()
"""The static files by name: bytes, and a digest for their address, so that a browser may keep them for good."""


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    helpers = (
        brief,
        text.ago,
        text.clip,
        text.elapsed,
        text.middle,
        text.moment,
        number,
        text.pretty,
        text.size,
        text.span,
    )
    made.filters.update({helper.__name__: helper for helper in helpers})
    made.filters["plain"] = log.plain
    made.filters["cards"] = cards_of
    made.globals["progress"] = progress
    made.filters["counts"] = progress.counts
    made.globals["outcomes"] = {outcome.value: word for outcome, word in ORDER.items()}
    made.globals["tones"] = {tone: list(words) for tone, words in progress.TONES.items()}
    return made


TEMPLATES = _environment()


def root(request: Request) -> str:
    """The path under which the service is reached: empty, or a prefix like ``/bench``."""
    prefix: str = request.scope.get("root_path", "")
    return prefix.rstrip("/")


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page made of a template."""
    prefix = root(request)

    def static(name: str) -> str:
        return f"{prefix}/static/{name}?v={STATIC[name][1]}"

    body = TEMPLATES.get_template(template).render(
        values,
        status=status,
        root=prefix,
        static=static,
        now=clock.now(),
        path=request.url.path.removeprefix(prefix),
        caller=known_caller(request),
    )
    return HTMLResponse(body, status, dict(HEADERS))
