"""Reads a tree's ``replaybench.toml``: its suites, its default matrix, its install lines, its failure rules,
and what starts by itself.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.matrix import cron
from service.matrix.trigger import Rule, Schedule, TriggerEvent, Triggers
from worker.messages import FailureClass, FailureRule, RuntimeSpec, SuiteSpec

FILE = "replaybench.toml"
SCHEMA = 1
MOST_SUITES = 200
MOST_RUNTIMES = 200
MOST_RULES = 50
LONGEST_PATTERN = 200
MOST_STARS = 4
LONGEST_RUNTIME = 200
KIND = re.compile(r"[a-z][a-z0-9_-]*(\.[1-9][0-9]?)?")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

SUITE_KEYS = frozenset({"paths", "markers", "keyword", "args", "kind", "env", "mounts", "network", "case_timeout_s",
                        "cell_timeout_s", "runtimes", "lfs_pointers"})  # fmt: skip
RULE_KEYS = frozenset({"refs", "paths", "suites", "runtimes"})


class ConfigError(ValueError):
    """The file cannot be used. The text names the key, its value and what it must be."""


@dataclass(frozen=True)
class TreeConfig:
    """What a tree declares. ``suite_runtimes`` holds the runtimes of suites that name their own."""

    runtimes: tuple[RuntimeSpec, ...]
    default_suites: tuple[str, ...]
    suites: Mapping[str, SuiteSpec]
    suite_runtimes: Mapping[str, tuple[RuntimeSpec, ...]]
    install: tuple[str, ...]
    failure_rules: tuple[FailureRule, ...]
    triggers: Triggers = field(default_factory=Triggers)


def parse(content: bytes) -> TreeConfig:
    """The declarations of a file's bytes.

    Raises:
        ConfigError: it is no TOML, or a key or value is not known.
    """
    try:
        data = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"not readable as TOML: {error}") from error
    _known(data, {"schema", "matrix", "install", "suites", "failure_rules", "trigger"}, "")
    if data.get("schema") != SCHEMA:
        raise ConfigError(f"schema = {data.get('schema')!r}: this service reads schema = {SCHEMA}")
    tables = _table(data, "suites", "")
    if not 0 < len(tables) <= MOST_SUITES:
        raise ConfigError(f"suites: {len(tables)} of them; declare 1 to {MOST_SUITES} as [suites.NAME]")
    suites = {name: _suite(name, _table(tables, name, "suites.")) for name in tables}
    matrix, install = _table(data, "matrix", ""), _table(data, "install", "")
    _known(matrix, {"runtimes", "suites"}, "matrix.")
    _known(install, {"lines"}, "install.")
    defaults = _texts(matrix, "suites", "matrix.")
    for name in defaults:
        if name not in suites:
            raise ConfigError(f"matrix.suites names {name!r}, which is not declared; there are {', '.join(suites)}")
    return TreeConfig(
        runtimes=_runtimes(matrix, "matrix."),
        default_suites=defaults or tuple(suites),
        suites=suites,
        suite_runtimes={
            name: _runtimes(tables[name], f"suites.{name}.") for name in tables if "runtimes" in tables[name]
        },
        install=_texts(install, "lines", "install."),
        failure_rules=_rules(data),
        triggers=_triggers(_table(data, "trigger", ""), suites),
    )


def _suite(name: str, table: Mapping[str, Any]) -> SuiteSpec:
    where = f"suites.{name}."
    if not NAME.fullmatch(name):
        raise ConfigError(f"suites.{name}: a suite's name has letters, digits, '_', '-' and '.', 64 at most")
    _known(table, SUITE_KEYS, where)
    kind = _text(table, "kind", where, "cpu")
    if not KIND.fullmatch(kind):
        raise ConfigError(f"{where}kind = {kind!r}: expected cpu, cuda, cuda.2 or a worker's label")
    paths = _texts(table, "paths", where)
    for path in paths:
        if path.startswith(("-", "/")) or ".." in path.split("/"):
            raise ConfigError(f"{where}paths has {path!r}: give paths inside the tree")
    return SuiteSpec(
        name=name,
        paths=paths,
        kind=kind,
        markers=_text(table, "markers", where, ""),
        keyword=_text(table, "keyword", where, ""),
        args=_texts(table, "args", where),
        env=_env(table, where),
        mounts=_texts(table, "mounts", where),
        network=_switch(table, "network", where),
        case_timeout_s=_seconds(table, "case_timeout_s", where, SuiteSpec.case_timeout_s),
        cell_timeout_s=_seconds(table, "cell_timeout_s", where, SuiteSpec.cell_timeout_s),
        lfs_pointers=_switch(table, "lfs_pointers", where),
    )


def _env(table: Mapping[str, Any], where: str) -> Mapping[str, str]:
    env = _table(table, "env", where)
    for key, value in env.items():
        if not ENV_NAME.fullmatch(key) or not isinstance(value, str) or "\0" in value:
            raise ConfigError(f"{where}env.{key} = {value!r}: expected a variable's name and a text")
        if key.upper().startswith(("REPLAYBENCH_", "LD_")) or key == "CUDA_VISIBLE_DEVICES":
            raise ConfigError(f"{where}env.{key}: this variable is the worker's to set; choose another name")
    return dict(env)


def _rules(data: Mapping[str, Any]) -> tuple[FailureRule, ...]:
    rules = []
    tables = data.get("failure_rules", [])
    if not isinstance(tables, list):
        raise ConfigError(f"failure_rules = {tables!r}: write each rule as [[failure_rules]]")
    for index, table in enumerate(tables):
        where = f"failure_rules[{index}]."
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where[:-1]} = {table!r}: expected a table with match and class")
        _known(table, {"match", "class"}, where)
        match, name = _text(table, "match", where, ""), _text(table, "class", where, "")
        try:
            re.compile(match)
        except re.error as error:
            raise ConfigError(f"{where}match = {match!r}: not a regular expression: {error}") from error
        if not match or name not in set(FailureClass):
            raise ConfigError(f"{where}class = {name!r}: expected one of {', '.join(FailureClass)}, and a match")
        rules.append(FailureRule(match, FailureClass(name)))
    return tuple(rules)


def _triggers(table: Mapping[str, Any], suites: Mapping[str, SuiteSpec]) -> Triggers:
    _known(table, set(TriggerEvent), "trigger.")
    rules: dict[TriggerEvent, tuple[Rule, ...]] = {
        event: tuple(
            _trigger_rule(rule, where, suites, RULE_KEYS) for where, rule in _tables(table, event.value, "trigger.")
        )
        for event in TriggerEvent
        if event in table and event is not TriggerEvent.SCHEDULE
    }
    schedules = []
    for where, entry in _tables(table, "schedule", "trigger."):
        rule = _trigger_rule(entry, where, suites, frozenset({"cron", "suites", "runtimes"}))
        line = _text(entry, "cron", where, "")
        try:
            schedules.append(Schedule(line, cron.parse(line), rule))
        except cron.CronError as error:
            raise ConfigError(f"{where}cron = {line!r}: {error}") from error
    return Triggers(rules, tuple(schedules))


def _trigger_rule(table: Mapping[str, Any], where: str, suites: Mapping[str, SuiteSpec], keys: frozenset[str]) -> Rule:
    _known(table, keys, where)
    names = _texts(table, "suites", where)
    for name in names:
        if name not in suites:
            raise ConfigError(f"{where}suites names {name!r}, which is not declared; there are {', '.join(suites)}")
    refs, paths = _texts(table, "refs", where), _texts(table, "paths", where)
    for pattern in (*refs, *paths):
        # Each star multiplies the ways in which a name can be tried, and the tree is anybody's.
        if len(pattern) > LONGEST_PATTERN or pattern.replace("**", "*").count("*") > MOST_STARS:
            raise ConfigError(
                f"{where[:-1]} has the pattern {pattern[:60]!r}: {LONGEST_PATTERN} letters, {MOST_STARS} stars at most"
            )
    return Rule(refs, paths, names, tuple(runtime.id for runtime in _runtimes(table, where)))


def _tables(table: Mapping[str, Any], key: str, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables of a key that holds one (``[key]``) or several (``[[key]]``), each with its name in messages."""
    value = table.get(key, [])
    if isinstance(value, Mapping):
        return [(f"{where}{key}.", value)]
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value) or len(value) > MOST_RULES:
        raise ConfigError(f"{where}{key}: expected a table, or up to {MOST_RULES} as [[{where}{key}]]")
    return [(f"{where}{key}[{index}].", item) for index, item in enumerate(value)]


def _runtimes(table: Mapping[str, Any], where: str) -> tuple[RuntimeSpec, ...]:
    texts = _texts(table, "runtimes", where)
    if len(texts) > MOST_RUNTIMES:
        raise ConfigError(f"{where}runtimes: {len(texts)} of them; name {MOST_RUNTIMES} at most")
    for text in texts:
        if len(text) > LONGEST_RUNTIME:
            raise ConfigError(
                f"{where}runtimes has {text[:40]!r}... of {len(text)} characters; {LONGEST_RUNTIME} at most"
            )
    try:
        return tuple(RuntimeSpec.parse(text) for text in texts)
    except ValueError as error:
        raise ConfigError(f"{where}runtimes: {error}") from error


def _known(table: Mapping[str, Any], keys: frozenset[str] | set[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise ConfigError(f"{where}{key} is not a key; there are {', '.join(sorted(keys))}")


def _table(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}{key} = {value!r}: expected a table")
    return value


def _text(table: Mapping[str, Any], key: str, where: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{where}{key} = {value!r}: expected a text")
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item and "\0" not in item for item in value):
        raise ConfigError(f"{where}{key} = {value!r}: expected a list of texts")
    return tuple(value)


def _switch(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}{key} = {value!r}: expected true or false")
    return value


def _seconds(table: Mapping[str, Any], key: str, where: str, default: float) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 7 * 86400:
        raise ConfigError(f"{where}{key} = {value!r}: expected seconds, over 0 and up to a week")
    return float(value)
