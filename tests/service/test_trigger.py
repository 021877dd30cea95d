"""``[trigger]`` and cron lines: what starts which suites, and what a wrong line is told."""

from __future__ import annotations

import datetime
import itertools
import re

import pytest

from service.matrix import config, cron
from service.matrix.config import ConfigError
from service.matrix.trigger import Rule, TriggerEvent, Triggers, matches

HEAD = "schema = 1\n[suites.unit]\n[suites.gpu]\n"


def read(text: str) -> Triggers:
    """The triggers of a file with two suites."""
    return config.parse((HEAD + text).encode()).triggers


@pytest.mark.parametrize(
    ("patterns", "name", "fits"),
    [
        (["main"], "main", True),
        (["main"], "maintain", False),
        (["release/*"], "release/1.0", True),
        (["release/*"], "release/1/0", False),
        (["release/**"], "release/1/0", True),
        (["**/*.py"], "a.py", True),
        (["**/*.py"], "a/b/c.py", True),
        (["docs/**", "!docs/log/**"], "docs/log/WP-1.md", False),
        (["docs/**", "!docs/log/**"], "docs/a.md", True),
        (["!docs/**"], "service/app.py", True),
        (["!docs/**"], "docs/a.md", False),
        (["a.c"], "abc", False),
        (["v?"], "v1", True),
        (["[ab]"], "a", False),
        (["*"], "odd\nname", True),
    ],
)
def test_patterns(patterns: list[str], name: str, fits: bool) -> None:
    """One star stays within a part of the name, two cross parts, and ``!`` takes out."""
    assert matches(patterns, name) is fits


def test_a_pattern_means_what_its_regular_expression_means() -> None:
    """All patterns of a few tokens over all names of a few letters."""
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "a": "a", "/": "/"}
    names = ["".join(letters) for length in range(5) for letters in itertools.product("ab/", repeat=length)]
    for length in range(4):
        for tokens in itertools.product(meaning, repeat=length):
            pattern = "".join(tokens)
            expected = re.compile("".join(meaning[token] for token in re.findall(r"\*\*/|\*\*|.", pattern)), re.DOTALL)
            for name in names:
                assert matches([pattern], name) is bool(expected.fullmatch(name)), (pattern, name)


def test_a_pattern_that_means_harm_is_read_once() -> None:
    """As a regular expression these would take years."""
    for pattern in ("**a" * 60 + "**b", "*a" * 90 + "b", "**/" * 60 + "b", "?*" * 90 + "/b"):
        assert not matches([pattern], "a" * 3000)
        assert not matches([pattern], "a/" * 1500)


def test_the_first_rule_that_fits_counts() -> None:
    """A rule names refs and paths; what it leaves out is the tree's own default."""
    triggers = read("""
        [[trigger.push]]
        refs = ["main"]
        paths = ["library/**"]
        suites = ["gpu"]
        runtimes = ["py3.11"]
        [[trigger.push]]
        refs = ["main", "release/*"]
        suites = ["unit"]
        [trigger.tag]
    """)
    push = TriggerEvent.PUSH
    assert triggers.choose(push, "main", {"library/a.py", "x"}) == Rule(
        ("main",), ("library/**",), ("gpu",), ("py3.11",)
    )
    for ref, changed in (("main", {"docs/a.md"}), ("release/1", {"library/a.py"})):
        rule = triggers.choose(push, ref, changed)
        assert rule is not None
        assert rule.suites == ("unit",)
    assert triggers.choose(push, "topic", None) is None
    assert triggers.choose(TriggerEvent.TAG, "v1", None) == Rule()
    assert triggers.choose(TriggerEvent.PULL_REQUEST, "main", None) is None


def test_where_paths_cannot_be_known_a_rule_fits() -> None:
    """A new branch has nothing to be compared with: better run once too often."""
    assert Rule(paths=("library/**",)).fits("main", None)
    assert not Rule(paths=("library/**",)).fits("main", ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trigger = 1", "trigger = 1: expected a table"),
        ("[trigger.pushed]", "trigger.pushed is not a key; there are merge_group, pull_request, push, schedule, tag"),
        ("[trigger.push]\nref = ['main']", "trigger.push.ref is not a key"),
        ("[trigger]\npush = 3", "trigger.push: expected a table"),
        ("[trigger.push]\nsuites = ['no']", "trigger.push.suites names 'no', which is not declared"),
        ("[[trigger.push]]\nrefs = 'main'", "trigger.push[0].refs = 'main': expected a list"),
        (f"[trigger.push]\nrefs = ['{'a' * 201}']", "aaa'...: 200 letters at most"),
        (f"[trigger.push]\npaths = {['a'] * 51}", "trigger.push has more than 50 patterns"),
        ("[trigger.tag]\nruntimes = ['py3']", "trigger.tag.runtimes: runtime 'py3'"),
        ("[trigger.schedule]\ncron = '* * *'", "trigger.schedule.cron = '* * *': '* * *' has 3 fields"),
        ("[trigger.schedule]\ncron = '60 * * * *'", "minute '60' is out of range; write 0 to 59"),
        ("[trigger.schedule]\ncron = '0 0 30 2 *'", "never comes"),
        ("[trigger.schedule]\ncron = '0 9-5 * * *'", "hour '9-5': a range goes from low to high"),
        ("[trigger.schedule]\ncron = '*/0 * * * *'", "a step is 1 or more"),
        ("[trigger.schedule]\ncron = '*/00 * * * *'", "a step is 1 or more"),
        (f"[trigger.schedule]\ncron = '*/{'9' * 5000} * * * *'", "is not understood"),
        (f"[trigger.schedule]\ncron = '{'1' * 5000} * * * *'", "is not understood"),
        ("[[trigger.schedule]]\ncron = '0 1 * * *'\n" * 2, "trigger.schedule[1].cron = '0 1 * * *' is there twice"),
        ("[trigger.schedule]\ncron = '0 0 * * mo-fr'", "weekday 'mo' is out of range"),
        ("[trigger.schedule]\ncron = '@daily'", "has 1 fields"),
        ("[trigger.schedule]\nrefs = ['main']", "trigger.schedule.refs is not a key"),
    ],
)
def test_a_wrong_trigger_is_refused_with_key_and_value(text: str, said: str) -> None:
    """Each error names the key, the value and what is expected."""
    head = text + "\n" + HEAD if text.startswith("trigger =") else HEAD + text
    with pytest.raises(ConfigError) as caught:
        config.parse(head.encode())
    assert said in str(caught.value)


def at(text: str) -> datetime.datetime:
    """A moment in UTC."""
    return datetime.datetime.fromisoformat(f"{text}+00:00")


@pytest.mark.parametrize(
    ("line", "after", "then"),
    [
        ("* * * * *", "2026-11-30T04:59:59", "2026-11-30T05:00"),
        ("30 2 * * *", "2026-11-30T02:30:00", "2026-12-01T02:30"),
        ("0 0 1 1 *", "2026-11-30T02:30", "2027-01-01T00:00"),
        ("*/15 9-17 * * mon-fri", "2026-11-27T17:45", "2026-11-30T09:00"),
        ("0 0 * * 7", "2026-11-30T00:00", "2026-12-06T00:00"),
        ("0 0 13 * fri", "2026-11-01T00:00", "2026-11-06T00:00"),
        ("0 0 29 feb *", "2096-02-29T00:00", "2104-02-29T00:00"),
        ("5/20 1,3 * * *", "2026-11-30T01:06", "2026-11-30T01:25"),
    ],
)
def test_the_next_moment_of_a_cron_line(line: str, after: str, then: str) -> None:
    """Strictly later, in UTC; a day and a weekday that are both named are joined by "or"."""
    assert cron.parse(line).next_after(at(after)) == at(then)
