"""Expressions of ``-k``: what pytest takes is taken, all else is refused before anything is built."""

from __future__ import annotations

import json
import random
import re

import pytest
from _pytest.mark.expression import Expression

from service.matrix import config, keyword
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService

PARTS = ["a", "not", "and", "or", "(", ")", " ", "Not", "t::x[1-2]", "a.b", r"c\d", "é", "'", "=", ",", "\n", "&"]


def taken_by_pytest(expression: str) -> bool:
    try:
        Expression.compile(expression)
    except SyntaxError:
        return False
    return True


def test_what_pytest_takes_is_taken_and_nothing_else() -> None:
    """Twenty thousand expressions, some five in a hundred of them right ones."""
    chance = random.Random(7)  # noqa: S311 -- no secret
    taken = 0
    for _ in range(20_000):
        words = chance.choices(PARTS, weights=[8, 3, 3, 3, 3, 3, 6] + [1] * 10, k=chance.randint(1, 9))
        expression = chance.choice(["", " "]).join(words)
        right = taken_by_pytest(expression) and bool(expression.strip())
        assert (keyword.fault(expression) == "") == right, (expression, keyword.fault(expression))
        taken += right
    assert taken > 500


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("adam and", "it ends where a name should stand"),
        ("adam sgd", "'and', 'or' or the end should stand at character 6, not 'sgd'"),
        ("and adam", "a name, 'not' or '(' should stand at character 1, not 'and'"),
        ("(adam", "a '(' is not closed"),
        ("adam) or (sgd", "the ')' at character 5 closes nothing"),
        ("'adam'", '"\'" at character 1 is no character of a name'),
        ("adam(x)", "'and', 'or' or the end should stand at character 5, not '('"),
        ("()", "a name, 'not' or '(' should stand at character 2, not ')'"),
        ("  ", "it ends where a name should stand"),
        ("(" * 60 + "a" + ")" * 60, "more than 50 '(' and 'not' stand within each other at character 51"),
        ("not " * 60 + "a", "more than 50 '(' and 'not' stand within each other at character 201"),
    ],
)
def test_a_fault_is_named_with_its_place(expression: str, fault: str) -> None:
    assert keyword.fault(expression) == fault


def test_a_job_cannot_leave_the_suites_own_expression(service: RunningService, registered: GitRepository) -> None:
    """Suite ``other`` runs what fits ``one``: with the ')' taken as it is, its cells would have run all else too."""
    wish = {"repository": "demo", "trees": [{"ref": "main"}], "suites": ["other"], "keyword": "one) or (two"}
    refused = service.post("/jobs", wish, 422)
    (problem,) = refused["errors"]
    assert problem["key"].endswith("keyword")
    assert "the ')' at character 4 closes nothing" in problem["message"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-q", "-k", "one"], "suites.other.args has '-k': write suites.other.keyword"),
        (["-kone"], "suites.other.args has '-kone': write suites.other.keyword"),
        (["-m", "slow"], "suites.other.args has '-m': write suites.other.markers"),
    ],
)
def test_no_second_expression_hides_in_a_suites_arguments(args: list[str], said: str) -> None:
    """pytest takes the last one, so that what a job asks for would be undone in silence."""
    with pytest.raises(config.ConfigError, match=re.escape(said)):
        config.parse(f'schema = 1\n[suites.other]\npaths = ["tests"]\nargs = {json.dumps(args)}\n'.encode())


def test_a_suites_expression_is_read_when_it_is_planned(service: RunningService, registered: GitRepository) -> None:
    config = (registered.path / "replaybench.toml").read_text().replace('keyword = "one"', 'keyword = "one two"')
    registered.commit("mistyped", replaybench_dot_toml=config)
    refused = service.post("/jobs", {"repository": "demo", "trees": [{"ref": "main"}]}, 422)
    assert "suites.other.keyword = 'one two': 'and', 'or' or the end should stand at character 5" in refused["detail"]
