"""What is read of a JUnit report's XML, and what is refused."""

from __future__ import annotations

import pytest

from service.imports.cases import cases
from service.imports.nodes import Nodes
from service.imports.reading import MOST_DEPTH, MOST_OBSERVATIONS, ReportUnreadable, read

BOMB = """<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><testsuites><testsuite name="&b;"/></testsuites>"""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (BOMB.encode(), "document type"),
        (b'<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd"><testsuites/>', "document type"),
        (b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><testsuites>&e;</testsuites>', "document type"),
        (b"<testsuites>&e;</testsuites>", "line 1, column"),
        (b"", "no element found"),
        (b"no xml", "line 1, column 1"),
        (b"<testsuites><testsuite>", "no element found"),
        (b"<testsuites/><testsuites/>", "junk"),
        (b"<testsuites>\n\x00</testsuites>", "line 2"),
        (b'<testsuites a="&#0;"/>', "reference to invalid character"),
        (b"<testsuites>\x1b[31m</testsuites>", "invalid token"),
        (b"<testsuites>\xff\xfe</testsuites>", "invalid token"),
        (b"<testsuites>&#xD800;</testsuites>", "invalid character"),
        (b'<?xml version="1.0" encoding="no-such"?><testsuites/>', "encoding"),
        (b'<?xml version="1.0" encoding="rot13"?><testsuites/>', "encoding"),
        (b"<html/>", "the root is <html>"),
        (b"<testsuites><testsuite><testcase><testcase/></testcase></testsuite></testsuites>", "inside another"),
        (b"<testsuites>" + b"<testsuite>" * MOST_DEPTH, "nested more than"),
        (b"<testsuite><testcase>" + b"<flakyError/>" * MOST_OBSERVATIONS, "import it in parts"),
        (b"<testsuite>" + b"<testcase/>" * (MOST_OBSERVATIONS + 2), "import it in parts"),
    ],
    ids=range(20),
)
def test_what_is_no_report_or_means_harm_is_refused(content: bytes, says: str) -> None:
    """With the line, and never with what it wanted read."""
    with pytest.raises(ReportUnreadable, match=says) as caught:
        read(content)
    assert "root:" not in str(caught.value)  # as /etc/passwd would have it


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "windows-1252"])
def test_other_encodings_are_read(encoding: str) -> None:
    """As the document declares them."""
    text = f'<?xml version="1.0" encoding="{encoding}"?><testsuite><testcase name="é"/></testsuite>'
    (case,) = cases(read(text.encode(encoding)), Nodes()).last
    assert case.node_id == "é"


def test_a_name_space_changes_nothing() -> None:
    """Neither a default one nor a prefix."""
    for start, end in (('testsuite xmlns="urn:x"', "testsuite"), ('j:testsuite xmlns:j="urn:x"', "j:testsuite")):
        assert len(read(f"<{start}><testcase/></{end}>".encode()).cases) == 1
