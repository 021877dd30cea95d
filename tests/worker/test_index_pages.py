"""The links of an index's pages, led elsewhere."""

from __future__ import annotations

import json

import pytest

from worker.runtimes.index_pages import is_page, led

HTML, JSON = "text/html; charset=UTF-8", "application/vnd.pypi.simple.v1+json"
PAGE = "https://i.example/root/simple/torch/"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<a href="../../f/a.whl#sha256=1">a</a>', '<a href="[https://i.example/root/f/a.whl#sha256=1]">a</a>'),
        ("<A data-x='1' HREF='/f/a.whl?b=1&amp;c=2'>", "<A data-x='1' HREF='[https://i.example/f/a.whl?b=1&amp;c=2]'>"),
        ('<a href="https://files.example/a.whl">', '<a href="[https://files.example/a.whl]">'),
        ('<base href="https://b.example/x/"><a href="a.whl">', '<a href="[https://b.example/x/a.whl]">'),
        ('<link href="style.css"><p>href="x"</p>', '<link href="style.css"><p>href="x"</p>'),
    ],
    ids=["relative", "escaped", "elsewhere", "base", "none"],
)
def test_each_link_of_a_page_is_led(text: str, expected: str) -> None:
    """Relative, absolute, escaped, of whatever case; with its fragment, and nothing else."""
    assert led(HTML, text, PAGE, lambda link: f"[{link}]") == expected


def test_each_file_of_a_json_page_is_led() -> None:
    """The rest of it stays."""
    page = {"name": "torch", "files": [{"filename": "a.whl", "url": "../../f/a.whl", "hashes": {}}]}
    found = json.loads(led(JSON, json.dumps(page), PAGE, lambda link: f"[{link}]"))
    assert found == page | {"files": [page["files"][0] | {"url": "[https://i.example/root/f/a.whl]"}]}  # type: ignore[dict-item]


@pytest.mark.parametrize("text", ["[]", '{"files": [1]}', '{"files": [{}]}', "<a>", '{"files": 1}'])
def test_a_json_page_that_is_none_is_refused(text: str) -> None:
    """And not handed on with whatever is in it."""
    with pytest.raises(ValueError, match=r"no page of an index|Expecting value"):
        led(JSON, text, PAGE, str)


def test_pages_are_told_from_files() -> None:
    """By their type."""
    assert all(map(is_page, (HTML, JSON, "application/vnd.pypi.simple.v1+html")))
    assert not any(map(is_page, ("application/octet-stream", "", "application/json")))
