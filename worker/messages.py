"""The one contract between service and worker: what they say to each other, as plain data.

Standard library only, so that both sides, and a test process that holds nothing else, can read it. Everything here is
a frozen dataclass, a string enumeration or a constant. ``worker.encoding`` makes JSON-able data of a message, and a
message of such data.

A worker registers, claims cells, and streams an attempt back in numbered batches:

======  ==========================================  ======================  =======================================
method  path                                        sends                   gets
======  ==========================================  ======================  =======================================
POST    /api/v1/worker/enroll                       Enrolment               Enrolled
POST    /api/v1/worker/register                     Registration            Registered
POST    /api/v1/worker/heartbeat                    Heartbeat               204
POST    /api/v1/worker/claim                        Claim                   Assignment, or 204 when nothing fits
POST    /api/v1/worker/attempts/{attempt}/batches   Batch                   BatchAnswer
PUT     /api/v1/worker/attempts/{attempt}/          bytes, and the lease    201; the same bytes again: 200
        artifacts/{name}                            token as ``X-Lease``
======  ==========================================  ======================  =======================================

Every call carries ``Authorization: Bearer <worker token>``; the first one, which a worker makes once, an enrolment
token. Errors are RFC 9457 problem documents with a ``code``:
``fenced`` (409: the lease is lost, stop and send nothing more), ``batch-gap`` (409: a number was skipped, ``expected``
says which one is due), ``contract-mismatch`` (409: service and worker differ in CONTRACT).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CONTRACT = 2
"""Raised with every incompatible change; a service refuses a worker of another number."""

WAKE_TASK = "replaybench.wake"
"""Celery's name of the one task: ``wake(kind)`` says that there is work of that kind, and nothing else."""


class Outcome(enum.StrEnum):
    """What became of one case in one process."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    NOT_OBSERVED = "not-observed"


class FailureClass(enum.StrEnum):
    """Why a case did not pass, as data."""

    BITWISE_MISMATCH = "bitwise-mismatch"
    NON_FINITE = "non-finite"
    NONDETERMINISTIC = "nondeterministic"
    CUDA_ERROR = "cuda-error"
    OUT_OF_MEMORY = "out-of-memory"
    ASSERTION = "assertion"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CRASH = "crash"
    COLLECTION = "collection"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"


class Verdict(enum.StrEnum):
    """What an ended attempt amounts to, for good."""

    PASSED = "passed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    NO_CASES = "no-cases"
    USAGE_ERROR = "usage-error"
    INTERNAL_ERROR = "internal-error"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    LOST = "lost"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"


class Cause(enum.StrEnum):
    """Why a worker ended an attempt. The verdict follows from it and from what was observed."""

    FINISHED = "finished"  # every process ended by itself, or a case's limit ended it
    TIMED_OUT = "timed-out"  # the cell's own limit ran out
    CANCELLED = "cancelled"  # the service said stop
    ENVIRONMENT = "environment"  # the runtime or the overlay could not be built, or is wrong
    INFRASTRUCTURE = "infrastructure"  # worker, disk, checkout or GPU gate


class Phase(enum.StrEnum):
    """What a worker is doing with an attempt."""

    PREPARING = "preparing"
    RUNNING = "running"


_RUNTIME_ID = re.compile(
    r"py(?P<python>\d+\.\d+)"
    r"(?:-torch(?P<torch>\d+(?:\.\d+)+(?:(?:a|b|rc)\d+)?(?:\.dev\d+)?)(?:-(?P<build>cpu|cu\d+|rocm\d+(?:\.\d+)*|xpu))?)?"
    r"(?:-pl(?P<lightning>\d+(?:\.\d+)+(?:(?:a|b|rc)\d+)?(?:\.dev\d+)?))?"
)


@dataclass(frozen=True, order=True)
class RuntimeSpec:
    """A Python, a torch build and a lightning. ``torch`` and ``lightning`` may be absent; ``build`` is torch's local
    version (``cpu``, ``cu129``), absent where the plain version is meant."""

    python: str
    torch: str | None = None
    build: str | None = None
    lightning: str | None = None

    def __post_init__(self) -> None:
        if _RUNTIME_ID.fullmatch(self.id) is None or (self.build and not self.torch):
            raise ValueError(f"runtime {self.id!r} is not of the form py3.11-torch2.9.1-cu129-pl2.6.6")

    @property
    def id(self) -> str:
        """``py3.11-torch2.9.1-cu129-pl2.6.6``."""
        torch = f"-torch{self.torch}" if self.torch else ""
        build = f"-{self.build}" if self.build else ""
        return f"py{self.python}{torch}{build}" + (f"-pl{self.lightning}" if self.lightning else "")

    @property
    def torch_version(self) -> str | None:
        """What ``torch.__version__`` must be: ``2.9.1+cu129``."""
        return f"{self.torch}+{self.build}" if self.torch and self.build else self.torch

    @property
    def title(self) -> str:
        """``Python 3.11 / torch 2.9.1+cu129``, as a table shows it."""
        return f"Python {self.python}" + (f" / torch {self.torch_version}" if self.torch else "")

    @property
    def full_title(self) -> str:
        """``Python 3.11 / torch 2.9.1+cu129 / lightning 2.6.6``, where no column beside it has the lightning."""
        return self.title + (f" / lightning {self.lightning}" if self.lightning else "")

    @classmethod
    def parse(cls, text: str) -> RuntimeSpec:
        """The runtime of an id.

        Raises:
            ValueError: the text is no runtime id.
        """
        match = _RUNTIME_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"runtime {text!r} is not of the form py3.11-torch2.9.1-cu129-pl2.6.6")
        return cls(**match.groupdict())


@dataclass(frozen=True)
class FailureRule:
    """Classes a failure whose exception says no class of its own. ``match`` is searched in ``type: message``."""

    match: str
    failure_class: FailureClass


@dataclass(frozen=True)
class Selection:
    """What of a suite is run, where it is not the whole: ``keyword`` is pytest's ``-k`` on top of the suite's own,
    ``cases`` are node ids, every occurrence of each. Where both are given, both must fit."""

    keyword: str = ""
    cases: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """``-k 'replay and not slow'``, ``3 cases``, as a table shows it."""
        cases = f"{len(self.cases)} case{'' if len(self.cases) == 1 else 's'}" if self.cases else ""
        return ", ".join(part for part in (cases, f"-k '{self.keyword}'" if self.keyword else "") if part)


@dataclass(frozen=True)
class SuiteSpec:
    """A named pytest selection, as the tree's ``replaybench.toml`` declares it.

    Limits are in seconds, MiB and counts; 0 is the worker's own limit, and no silent limit. Memory and processes are
    those of one pytest process with all that it starts, a file's size and open files those of each process. ``gpu`` are
    patterns of the models that it may run on, any where there is none; ``gpu_memory_gib`` is what each card must have.
    ``lfs_pointers`` says that it can do with files of Git LFS left as pointers. What a job asks for beyond the
    declaration is ``selection`` and ``run``, the cell's number among its repetitions, from 1.
    """

    name: str
    paths: tuple[str, ...]
    kind: str = "cpu"
    markers: str = ""
    keyword: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    network: bool = False
    case_timeout_s: float = 300.0
    cell_timeout_s: float = 3600.0
    silent_timeout_s: float = 0.0
    memory_mib: int = 0
    processes: int = 0
    file_size_mib: int = 0
    open_files: int = 0
    gpu: tuple[str, ...] = ()
    gpu_memory_gib: float = 0.0
    lfs_pointers: bool = False
    selection: Selection | None = None
    run: int = 1

    @property
    def devices(self) -> int:
        """How many CUDA devices one cell needs: ``cuda`` 1, ``cuda.2`` 2, any other kind 0."""
        match = re.fullmatch(r"cuda(?:\.(\d+))?", self.kind)
        return int(match[1] or 1) if match else 0


@dataclass(frozen=True)
class Device:
    """One CUDA device as NVML tells of it. Memory in MiB; ``cuda`` is the newest version that the driver serves.

    ``ecc_volatile`` counts the uncorrected memory errors since the driver was loaded, ``ecc_aggregate`` those of the
    card's life; ``None`` where it has no ECC. ``rows_pending`` says that rows or pages wait for a reset to be replaced,
    ``rows_failed`` that they could not be. ``xids`` are the errors that the driver told since the worker started.
    ``drained`` is why the card gets no cells now; empty where it gets them.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    driver: str
    cuda: str
    memory_free_mib: int | None = None
    ecc_volatile: int | None = None
    ecc_aggregate: int | None = None
    rows_pending: bool = False
    rows_failed: bool = False
    mig: bool = False
    compute_mode: str = "default"
    xids: tuple[int, ...] = ()
    drained: str = ""


@dataclass(frozen=True)
class Capabilities:
    """What a worker can serve. ``kinds`` are the queues that it consumes; ``builds`` says that it makes runtimes."""

    kinds: tuple[str, ...]
    devices: tuple[Device, ...] = ()
    host_runtimes: tuple[RuntimeSpec, ...] = ()
    builds: bool = True
    mounts: tuple[str, ...] = ()
    network: bool = True


@dataclass(frozen=True)
class Enrolment:
    """Asks for a worker token in exchange for an enrolment token, which is good for this once."""

    contract: int
    host: str


@dataclass(frozen=True)
class Enrolled:
    """The worker's own token, and the only name that it may register under."""

    worker: str
    token: str


@dataclass(frozen=True)
class Registration:
    """A worker's first word. ``name`` is its stable id, ``boot`` a nonce of this start."""

    contract: int
    name: str
    boot: str
    host: str
    capabilities: Capabilities


@dataclass(frozen=True)
class Registered:
    """The service's answer: the worker's number, and how often to be heard from while an attempt runs (seconds)."""

    worker: int
    heartbeat_s: float


@dataclass(frozen=True)
class Heartbeat:
    """A worker's sign of life, at the interval that ``Registered`` names, and at once when its devices have changed:
    then these are all of them. ``None`` says that they are as they were."""

    worker: int
    boot: str
    devices: tuple[Device, ...] | None = None


@dataclass(frozen=True)
class Claim:
    """Asks for one cell. ``free_devices`` are the UUIDs of the devices that no cell on this host holds."""

    worker: int
    boot: str
    free_devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellSpec:
    """All that a worker needs to run one cell. ``probe`` is the patch's bytes in base64, exactly as they were sent;
    ``tree`` is git's object id of the tree that commit and probe result in."""

    id: int
    job: int
    name: str
    repository: str
    url: str
    commit: str
    tree: str
    probe: str | None
    probe_digest: str | None
    runtime: RuntimeSpec
    suite: SuiteSpec
    install: tuple[str, ...] = ()
    failure_rules: tuple[FailureRule, ...] = ()


@dataclass(frozen=True)
class GitCredential:
    """What opens a private repository, for the attempt that got it: a token with its user name, or an SSH key. It goes
    to the host of the registered URL alone. ``fault`` says why the service has none to hand out, if so."""

    user: str = ""
    token: str = field(default="", repr=False)
    ssh_key: str = field(default="", repr=False)
    known_hosts: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Assignment:
    """A granted lease. ``token`` fences: it goes with every write. ``lease_s`` counts from the answer, on the service's
    clock; so does ``queued_s`` back to when the cell was queued. ``devices`` are the UUIDs of those that it is for,
    among the free ones."""

    attempt: int
    number: int
    token: str
    lease_s: float
    cell: CellSpec
    devices: tuple[str, ...] = ()
    credential: GitCredential | None = None
    queued_s: float = 0.0


@dataclass(frozen=True)
class PhaseEvent:
    """The attempt entered a phase."""

    phase: Phase
    kind: Literal["phase"] = "phase"


@dataclass(frozen=True)
class EnvironmentEvent:
    """Where the result is made. ``record`` has the keys ``host``, ``gpus`` (list of Device data), ``driver``, ``cuda``,
    ``python``, ``torch``, ``lightning``, ``packages`` (name to version), ``tree``, ``probe_digest``, ``origin``
    (``built`` or ``host``), ``sandbox`` (what the tests ran in, or why in none) and ``limits`` (what they were held to,
    and by what)."""

    record: Mapping[str, Any]
    kind: Literal["environment"] = "environment"


@dataclass(frozen=True)
class ProcessStartedEvent:
    """A pytest process started. Numbers count from 1; ``reason`` says why a second one was needed."""

    process: int
    reason: str = ""
    kind: Literal["process-started"] = "process-started"


@dataclass(frozen=True)
class CollectedEvent:
    """A process collected its cases. ``count`` is what it was to run."""

    process: int
    count: int
    kind: Literal["collected"] = "collected"


@dataclass(frozen=True)
class CaseEvent:
    """One observation of a case. ``occurrence`` counts from 0 among equal node ids; the duration is in seconds over
    set-up, call and tear-down. ``cleaned`` says that characters no database stores were replaced."""

    process: int
    node_id: str
    occurrence: int
    outcome: Outcome
    failure_class: FailureClass | None = None
    duration_s: float = 0.0
    message: str = ""
    traceback: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] | None = None
    cleaned: bool = False
    kind: Literal["case"] = "case"


@dataclass(frozen=True)
class ProcessEndedEvent:
    """A pytest process ended, with an exit code or by a signal. ``reported`` is how many of its cases were observed,
    ``finished`` whether pytest's own session end was seen (``os._exit(0)`` in a test leaves it out)."""

    process: int
    exit_code: int | None
    signal: int | None
    collected: int
    reported: int
    finished: bool
    detail: str = ""
    kind: Literal["process-ended"] = "process-ended"


@dataclass(frozen=True)
class UsageEvent:
    """What the tests took of their devices, as it was sampled. ``record`` has the keys ``seconds``, ``interval_s``,
    ``samples`` and ``gpus``: for each its ``index``, ``uuid``, ``memory_peak_bytes``, ``memory_source`` (``processes``
    where the driver tells what each process of the attempt holds, else ``device``), ``memory_total_bytes``,
    ``utilisation_mean_percent``, ``utilisation_max_percent`` and ``xids``. What could not be had is ``None``."""

    record: Mapping[str, Any]
    kind: Literal["usage"] = "usage"


@dataclass(frozen=True)
class AttemptEndedEvent:
    """The last event of an attempt. ``detail`` is for a person: what went wrong, with key, value and next step."""

    cause: Cause
    detail: str = ""
    kind: Literal["attempt-ended"] = "attempt-ended"


Event = (
    PhaseEvent
    | EnvironmentEvent
    | ProcessStartedEvent
    | CollectedEvent
    | CaseEvent
    | ProcessEndedEvent
    | UsageEvent
    | AttemptEndedEvent
)


@dataclass(frozen=True)
class Batch:
    """Events of an attempt in order, or none: then it is a heartbeat. ``seq`` counts from 1 without gaps; a heartbeat
    repeats the last number sent (0 at first). ``running`` is the node id of the case under way."""

    token: str
    seq: int
    events: tuple[Event, ...] = ()
    running: str | None = None
    log_tail: str | None = None


@dataclass(frozen=True)
class BatchAnswer:
    """What is stored for good, how long the lease now lasts (seconds from this answer), and whether to stop."""

    acknowledged: int
    lease_s: float
    stop: bool
