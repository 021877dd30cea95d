"""Pages of a package index (PEP 503 and PEP 691), with their links led elsewhere. Pure: no files, no clock."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from urllib.parse import urljoin

_HREF = re.compile(r"""(<a\b[^>]*?\bhref\s*=\s*)(["'])(.*?)\2""", re.IGNORECASE | re.DOTALL)
_BASE = re.compile(r"""<base\b[^>]*?\bhref\s*=\s*(["'])(.*?)\1[^>]*>""", re.IGNORECASE | re.DOTALL)
_HTML = ("text/html", "application/vnd.pypi.simple.v1+html")
_JSON = "application/vnd.pypi.simple.v1+json"


def is_page(content_type: str) -> bool:
    """Whether an answer is a page of links."""
    return content_type.partition(";")[0].strip().lower() in (*_HTML, _JSON)


def led(content_type: str, text: str, address: str, lead: Callable[[str], str]) -> str:
    """The page at an address with ``lead`` of each of its links' full addresses in that link's place.

    Raises:
        ValueError: it says that it is JSON, and is not what PEP 691 describes.
    """
    if content_type.partition(";")[0].strip().lower() == _JSON:
        return _led_json(text, address, lead)
    if base := _BASE.search(text):
        address = urljoin(address, html.unescape(base[2]))
        text = text[: base.start()] + text[base.end() :]

    def instead(match: re.Match[str]) -> str:
        link = lead(urljoin(address, html.unescape(match[3]).strip()))
        return f"{match[1]}{match[2]}{html.escape(link)}{match[2]}"

    return _HREF.sub(instead, text)


def _led_json(text: str, address: str, lead: Callable[[str], str]) -> str:
    page = json.loads(text)
    try:
        for file in page.get("files", []):
            file["url"] = lead(urljoin(address, file["url"]))
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError(f"{address} is no page of an index: {error}") from error
    return json.dumps(page)
