"""What a worker keeps of its enrolment: the service's address, its own name and token, in one file of mode 0600."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from worker.client import Client
from worker.messages import CONTRACT, Enrolled, Enrolment

SERVICE, NAME, TOKEN = "REPLAYBENCH_SERVICE_URL", "REPLAYBENCH_WORKER_NAME", "REPLAYBENCH_WORKER_TOKEN"
KEYS = (SERVICE, NAME, TOKEN)


class EnrolmentError(ValueError):
    """The enrolment cannot be kept or read. The text names the file and what to do."""


def place() -> Path:
    """Where it lies: ``REPLAYBENCH_ENROLMENT_FILE``, else in the user's configuration."""
    named = os.environ.get("REPLAYBENCH_ENROLMENT_FILE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "replaybench" / "worker.json"


def enroll(service_url: str, token: str, file: Path) -> Enrolled:
    """Exchange an enrolment token for this worker's own, and keep that.

    The file is made first: a token that was given out and cannot be kept would be lost for good.

    Raises:
        EnrolmentError: the file cannot be written.
        ServiceError: the service refuses, or cannot be reached.
    """
    draft = file.with_name(f"{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise EnrolmentError(f"{file} cannot be written ({error.strerror}); set REPLAYBENCH_ENROLMENT_FILE") from error
    with open(descriptor, "w", encoding="utf-8") as out:
        client = Client(service_url, token)
        try:
            enrolled = client.enroll(Enrolment(CONTRACT, platform.node()))
        finally:
            client.close()
        json.dump({SERVICE: service_url, NAME: enrolled.worker, TOKEN: enrolled.token}, out)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)
    return enrolled


def kept(file: Path) -> dict[str, str]:
    """The settings that an enrolment left, where the environment has none. A token goes to its own service only.

    Raises:
        EnrolmentError: the file is there and cannot be used.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise EnrolmentError(
            f"the enrolment {file} cannot be read ({error.strerror}); enroll this worker again"
        ) from error
    except ValueError as error:
        raise EnrolmentError(f"the enrolment {file} is no JSON; remove it, and enroll this worker again") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in KEYS):
        raise EnrolmentError(f"the enrolment {file} lacks one of {', '.join(KEYS)}; remove it, and enroll again")
    there = {key for key in KEYS if os.environ.get(key)}
    if os.environ.get("REPLAYBENCH_WORKER_TOKEN_FILE"):
        there.add(TOKEN)
    if (os.environ.get(SERVICE) or found[SERVICE]).rstrip("/") != found[SERVICE].rstrip("/") or TOKEN in there:
        return {}
    return {key: found[key] for key in KEYS if key not in there}
