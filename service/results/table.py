"""Makes the rows of a table readable, and renders tables as Markdown and CSV. Pure: no database, no framework."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence

from service.results.schemas import TableOutput, TableRow
from service.states import CellState, Origin
from service.words import brief
from worker.messages import Outcome, Verdict

# As the engineering log counts: what is wrong first, then what passed, then what did not run.
ORDER: Mapping[Outcome, str] = {
    Outcome.FAILED: "failed",
    Outcome.ERROR: "error",
    Outcome.CRASHED: "crashed",
    Outcome.TIMED_OUT: "timed out",
    Outcome.PASSED: "passed",
    Outcome.XPASSED: "xpassed",
    Outcome.XFAILED: "xfailed",
    Outcome.SKIPPED: "skipped",
    Outcome.NOT_OBSERVED: "not observed",
}

# What the counts of cases say by themselves, so that the verdict need not be written behind them.
SAID_BY_COUNTS = frozenset({Verdict.PASSED, Verdict.FAILED, Verdict.CRASHED})


LONGEST_WHY = 300
"""Characters of why a cell could not be run: uv's reasons are sentences."""

# What a spreadsheet takes a text for a formula by (OWASP, "CSV Injection").
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

# A reason for a skip comes from tested code: it must stay a text, and not become a link, markup or another column.
MARKUP = re.compile(r"([\\`*\[\]<>|~])")


def result(counts: Mapping[str, int], verdict: Verdict | None, detail: str = "") -> str:
    """``18 failed, 9 passed``; with the verdict where counts do not say it: ``environment: no torch 2.9.1+cu129``."""
    parts = [f"{counts[outcome]} {word}" for outcome, word in ORDER.items() if counts.get(outcome)]
    text = ", ".join(parts)
    if verdict is None or (verdict in SAID_BY_COUNTS and text):
        return text
    word = verdict.replace("-", " ")
    if text:
        return text if verdict is Verdict.TIMED_OUT and counts.get(Outcome.TIMED_OUT) else f"{text} ({word})"
    first = brief(detail, LONGEST_WHY)
    return f"{word}: {first}" if first else word


def result_so_far(counts: Mapping[str, int], state: CellState) -> str:
    """``3 passed (running)``: what is told of a cell that has not ended must not read as what it ends with."""
    text = result(counts, None)
    return f"{text} ({state})" if text else str(state)


def skip_reason(message: str) -> str:
    """Why a case was skipped, as a table counts it."""
    return message.strip() or "no reason given"


def columns(table: TableOutput) -> list[tuple[str, str]]:
    """The columns as (heading, field): those that vary stand only where they do."""
    return [
        ("Tree", "tree"),
        ("Runtime", "runtime"),
        *([("Lightning", "lightning")] if len(table.lightnings) > 1 else []),
        *([("Suite", "suite")] if len(table.suites) > 1 else []),
        *([("Run", "run")] if any(row.run > 1 for row in table.rows) else []),
        *([("Only", "selection")] if any(row.selection for row in table.rows) else []),
        *([("Origin", "origin")] if any(row.origin is Origin.IMPORTED for row in table.rows) else []),
        ("Result", "result"),
        ("Duration", "duration"),
        *([("GPU", "gpu")] if any(row.gpu for row in table.rows) else []),
        *([("Skipped because", "skipped")] if any(row.skip_reasons for row in table.rows) else []),
    ]


def cells(table: TableOutput, row: TableRow) -> list[str]:
    """A row's texts, in the order of ``columns``."""
    texts = {
        "tree": row.tree,
        "runtime": row.runtime,
        "lightning": row.lightning or "",
        "suite": row.suite,
        "run": str(row.run),
        "selection": row.selection or "",
        "origin": row.origin,
        "result": (row.result or "waiting") + (" (flaky)" if row.flaky else ""),
        "duration": duration(row.duration_s),
        "gpu": row.gpu or "",
        "skipped": "; ".join(f"{count} x {reason}" for reason, count in row.skip_reasons.items()),
    }
    return [texts[field] for _, field in columns(table)]


def duration(seconds: float | None) -> str:
    """``12 min 10 s``, ``4.2 s``."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def markdown(table: TableOutput) -> str:
    """The table as Markdown; where the job says something of itself, that stands below."""
    lines = [[heading for heading, _ in columns(table)], ["---" for _ in columns(table)]]
    lines += [cells(table, row) for row in table.rows]
    told = f"\n{escape(table.detail)}\n" if table.detail else ""
    return "".join("| " + " | ".join(escape(text) for text in line) + " |\n" for line in lines) + told


def text_csv(table: TableOutput) -> str:
    """The table as CSV, with every column and the counts apart."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")  # RFC 4180
    fields = ("tree", "runtime", "lightning", "suite", "run", "selection", "result", "verdict", "duration_s", "gpu",
              "flaky", "attempts", "attempt", "digest", "origin")  # fmt: skip
    writer.writerow([*fields, *Outcome])
    for row in table.rows:
        values = [getattr(row, field) for field in fields]
        writer.writerow([*map(_plain, values), *(row.counts.get(outcome, 0) for outcome in Outcome)])
    return out.getvalue()


def _plain(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def escape(text: str) -> str:
    """A text as one cell of a Markdown table, in which it stays a text."""
    return " ".join(MARKUP.sub(r"\\\1", text).split()) or " "


def varying(values: Sequence[str | None]) -> list[str]:
    """The different values, in the order of their first appearance."""
    return [value for value in dict.fromkeys(values) if value is not None]
