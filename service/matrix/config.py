"""Reads a tree's ``replaybench.toml``: its suites, its default matrix, its install lines, its failure rules,
and what starts by itself.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.matrix import cron, keyword
from service.matrix.trigger import Rule, Schedule, TriggerEvent, Triggers
from worker.messages import FailureClass, FailureRule, RuntimeSpec, SuiteSpec

FILE = "replaybench.toml"
SCHEMA = 1
MOST_SUITES = 200
MOST_RUNTIMES = 200
MOST_RULES = 50
LONGEST_PATTERN = 200
MOST_PATTERNS = 50
MOST_FAILURE_RULES = 50
LONGEST_MATCH = 500
LONGEST_RUNTIME = 200
MOST_BYTES = 64 * 1024
"""Of a file. Its author may be anybody who opens a pull request, and reading TOML may take the square of its length."""
KIND = re.compile(r"[a-z][a-z0-9_-]*(\.[1-9][0-9]?)?")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")

SUITE_KEYS = frozenset({"paths", "markers", "keyword", "args", "kind", "env", "mounts", "network", "case_timeout_s",
                        "cell_timeout_s", "silent_timeout_s", "memory_mib", "processes", "file_size_mib", "open_files",
                        "runtimes", "gpu", "gpu_memory_gib", "lfs_pointers"})  # fmt: skip
RULE_KEYS = frozenset({"refs", "paths", "suites", "runtimes"})


class ConfigError(ValueError):
    """The file cannot be used. The text names the key, its value and what it must be, and has no control characters."""

    def __init__(self, text: str) -> None:
        super().__init__(UNPRINTABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", text))


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
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
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


def _args(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    args = _texts(table, "args", where)
    for arg in args:
        if arg.startswith(("-k", "-m")):
            key = "keyword" if arg.startswith("-k") else "markers"
            # Of two, pytest takes the latter: one here would undo what a job asks for, and its table would not say so.
            raise ConfigError(f'{where}args has {arg!r}: write {where}{key} = "..." instead')
    return args


def _keyword(table: Mapping[str, Any], where: str) -> str:
    expression = _text(table, "keyword", where, "")
    if expression and (fault := keyword.fault(expression)):
        raise ConfigError(f"{where}keyword = {expression!r}: {fault}; it is an expression as pytest's -k takes it")
    return expression


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
    spec = SuiteSpec(
        name=name,
        paths=paths,
        kind=kind,
        markers=_text(table, "markers", where, ""),
        keyword=_keyword(table, where),
        args=_args(table, where),
        env=_env(table, where),
        mounts=_texts(table, "mounts", where),
        network=_switch(table, "network", where),
        case_timeout_s=_seconds(table, "case_timeout_s", where, SuiteSpec.case_timeout_s),
        cell_timeout_s=_seconds(table, "cell_timeout_s", where, SuiteSpec.cell_timeout_s),
        silent_timeout_s=_seconds(table, "silent_timeout_s", where, SuiteSpec.silent_timeout_s),
        memory_mib=_count(table, "memory_mib", where, 64),
        processes=_count(table, "processes", where, 8),
        file_size_mib=_count(table, "file_size_mib", where, 1),
        open_files=_count(table, "open_files", where, 64),
        gpu=_patterns(table, "gpu", where),
        gpu_memory_gib=_gib(table, "gpu_memory_gib", where),
        lfs_pointers=_switch(table, "lfs_pointers", where),
    )
    if (spec.gpu or spec.gpu_memory_gib) and not spec.devices:
        key = "gpu" if spec.gpu else "gpu_memory_gib"
        raise ConfigError(f"{where}{key}: only a suite of kind cuda, cuda.2 and so on runs on a GPU, not {kind!r}")
    return spec


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
    if len(tables) > MOST_FAILURE_RULES:
        raise ConfigError(f"failure_rules: {len(tables)} of them; write {MOST_FAILURE_RULES} at most")
    for index, table in enumerate(tables):
        where = f"failure_rules[{index}]."
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where[:-1]} = {table!r}: expected a table with match and class")
        _known(table, {"match", "class"}, where)
        match, name = _text(table, "match", where, ""), _text(table, "class", where, "")
        if len(match) > LONGEST_MATCH:
            raise ConfigError(f"{where}match = {match[:60]!r}...: {LONGEST_MATCH} letters at most")
        try:
            re.compile(match)
        except (re.error, OverflowError, RecursionError) as error:
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
    schedules: list[Schedule] = []
    for where, entry in _tables(table, "schedule", "trigger."):
        rule = _trigger_rule(entry, where, suites, frozenset({"cron", "suites", "runtimes"}))
        line = _text(entry, "cron", where, "")
        if line in [other.line for other in schedules]:
            raise ConfigError(f"{where}cron = {line!r} is there twice; name all its suites and runtimes in one")
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
    refs, paths = _patterns(table, "refs", where), _patterns(table, "paths", where)
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


def _patterns(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    patterns = _texts(table, key, where)
    for pattern in patterns:
        if len(pattern) > LONGEST_PATTERN:
            raise ConfigError(f"{where[:-1]} has the pattern {pattern[:60]!r}...: {LONGEST_PATTERN} letters at most")
    if len(patterns) > MOST_PATTERNS:
        raise ConfigError(f"{where[:-1]} has more than {MOST_PATTERNS} patterns; say the same with fewer")
    return patterns


def _gib(table: Mapping[str, Any], key: str, where: str) -> float:
    value = table.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100_000:
        raise ConfigError(f"{where}{key} = {value!r}: expected GiB of each card, a number over 0")
    return float(value)


def _switch(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}{key} = {value!r}: expected true or false")
    return value


def _seconds(table: Mapping[str, Any], key: str, where: str, default: float) -> float:
    if key not in table:
        return default
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 7 * 86400:
        raise ConfigError(f"{where}{key} = {value!r}: expected seconds, over 0 and up to a week")
    return float(value)


def _count(table: Mapping[str, Any], key: str, where: str, least: int) -> int:
    """A limit of the tests; 0 where the tree leaves it to the worker. Below ``least`` not even pytest starts."""
    if key not in table:
        return 0
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
        raise ConfigError(f"{where}{key} = {value!r}: expected a whole number, {least} at least")
    return value
