"""The worker's command line: nothing to run it, two options to enroll it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from worker import enrolment

STANDARD_INPUT = "-"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked; exits with 2 and the usage where that makes no sense."""
    parser = argparse.ArgumentParser(
        prog="replaybench worker",
        description="Runs a worker. Everything else is set in the environment: docs/settings.md.",
        epilog="`gpus` and `clear CARD` look after this machine's cards: docs/gpus.md. `spools` and `deliver` look "
        "after what the service could not take: docs/operations.md.",
    )
    parser.add_argument("--enroll", metavar="TOKEN", help="exchange an enrolment token; - reads standard input")
    parser.add_argument("--service", metavar="URL", help="the service to enroll with")
    asked = parser.parse_args(arguments)
    if (asked.enroll is None) != (asked.service is None):
        parser.error("--enroll and --service go together")
    if asked.service is not None and not re.match(r"https?://[^/]", asked.service):
        parser.error(f"--service {asked.service!r} is no address; give it as https://HOST:PORT")
    return asked


def enroll(token: str, service: str) -> str:
    """Enroll this worker. The sentence to print.

    Raises:
        EnrolmentError: the worker's token cannot be kept.
        ServiceError: the service refuses, or cannot be reached.
    """
    given = sys.stdin.readline().strip() if token == STANDARD_INPUT else token
    file = enrolment.place()
    made = enrolment.enroll(service.rstrip("/"), given, file)
    return f"enrolled as {made.worker} at {service}, token in {file}; set BROKER_URL and run `replaybench worker`"
