"""Every error that a caller can meet: a status, a stable code, and a sentence with key, value and next step."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, ClassVar

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the kernel says where a disk is full."""


class ServiceError(Exception):
    """The base: rendered by ``service.error_handlers`` as an RFC 9457 problem document."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra

    @property
    def headers(self) -> dict[str, str]:
        """The headers that go with the status."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if "allowed" in self.extra:
            return {"Allow": ", ".join(self.extra["allowed"])}
        if self.status in {429, 503} or "retry_after_s" in self.extra:
            return {"Retry-After": str(self.extra.get("retry_after_s", 1))}
        return {}


class NotFound(ServiceError):
    """There is no such job, cell, attempt or artifact."""

    status, code, title = 404, "not-found", "Not found"


class PathUnknown(ServiceError):
    """Nothing is served at the path."""

    status, code, title = 404, "no-such-path", "There is no such path"


class MethodRefused(ServiceError):
    """The path is served for other methods: those in ``allowed``, and in the header ``Allow``."""

    status, code, title = 405, "method-not-allowed", "The method is not allowed"

    def __init__(self, detail: str, allowed: Sequence[str] = ()) -> None:
        super().__init__(detail, allowed=list(allowed))


class BodyUnreadable(ServiceError):
    """The body is not in the encoding that it has to be in, or nothing can be made of it."""

    status, code, title = 400, "body-unreadable", "The body cannot be read"


class MediaTypeRefused(ServiceError):
    """The body has a ``Content-Type`` that is not read here, or none."""

    status, code, title = 415, "media-type-refused", "The body's type is not taken"


class TokenMissing(ServiceError):
    """The call carries no token."""

    status, code, title = 401, "token-missing", "A token is needed"


class TokenRefused(ServiceError):
    """The token is unknown, or was revoked."""

    status, code, title = 401, "token-refused", "The token is refused"


class TokenExpired(ServiceError):
    """The token was good until some time ago."""

    status, code, title = 401, "token-expired", "The token has expired"


class ScopeMissing(ServiceError):
    """The token is good, but not for this."""

    status, code, title = 403, "scope-missing", "The token does not allow this"


class RateLimited(ServiceError):
    """Too many calls in a minute. ``retry_after_s`` is when the next one is taken."""

    status, code, title = 429, "rate-limited", "Too many calls"

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail, retry_after_s=retry_after_s)


class RepositoryExists(ServiceError):
    """Another repository has this name."""

    status, code, title = 409, "repository-exists", "The name is taken"


class RepositoryUnknown(ServiceError):
    """No repository is registered under this name."""

    status, code, title = 404, "repository-unknown", "The repository is not registered"


class UrlRefused(ServiceError):
    """The URL is of a kind that git would run a program for, or could read as an option."""

    status, code, title = 422, "url-refused", "The URL is refused"


class TargetRefused(ServiceError):
    """The address is one that this service does not call."""

    status, code, title = 422, "target-refused", "The address is not called"


class ForgeIncomplete(ServiceError):
    """What a forge needs does not follow from the repository's URL, or the credential cannot be used there."""

    status, code, title = 422, "forge-incomplete", "The forge is not fully described"


class CredentialRefused(ServiceError):
    """The repository's credential is not of its form, or cannot be sent to the repository's address."""

    status, code, title = 422, "credential-refused", "The credential is refused"


class MirrorFailed(ServiceError):
    """The repository could not be fetched, or the service's mirror of it not read. Another try may do better."""

    status, code, title = 502, "mirror-failed", "The repository could not be fetched or read"


class RefRefused(ServiceError):
    """The ref could be read as an option, or is no name that git allows."""

    status, code, title = 422, "ref-refused", "The ref is refused"


class CommitUnreachable(ServiceError):
    """The repository has no such commit, branch or tag."""

    status, code, title = 422, "commit-unreachable", "The commit is not reachable"


class ProbeRefused(ServiceError):
    """The probe does not apply to the commit, or is too large."""

    status, code, title = 422, "probe-refused", "The probe does not apply"


class ConfigurationMissing(ServiceError):
    """The tree has no ``replaybench.toml``."""

    status, code, title = 422, "configuration-missing", "The tree declares no suites"


class ConfigurationInvalid(ServiceError):
    """The tree's ``replaybench.toml`` cannot be used."""

    status, code, title = 422, "configuration-invalid", "The tree's configuration is wrong"


class SuiteUnknown(ServiceError):
    """A tree does not declare the suite."""

    status, code, title = 422, "suite-unknown", "The suite is not declared"


class RuntimeInvalid(ServiceError):
    """A runtime's id cannot be read."""

    status, code, title = 422, "runtime-invalid", "The runtime is not understood"


class PatternUnmatched(ServiceError):
    """An include or exclude pattern matches no cell."""

    status, code, title = 422, "pattern-unmatched", "A pattern matches nothing"


class MatrixEmpty(ServiceError):
    """Nothing is left to run."""

    status, code, title = 422, "matrix-empty", "The matrix is empty"


class MatrixTooLarge(ServiceError):
    """More cells than one job may have."""

    status, code, title = 422, "matrix-too-large", "The matrix is too large"


class TreeUnknown(ServiceError):
    """No tested tree has this name."""

    status, code, title = 404, "tree-unknown", "The tree is not known"


class TreeAmbiguous(ServiceError):
    """Several tested trees have names that begin so."""

    status, code, title = 422, "tree-ambiguous", "The tree is not told apart"


class ComparisonIncomplete(ServiceError):
    """A comparison needs two trees of one repository."""

    status, code, title = 422, "comparison-incomplete", "Two trees are needed"


class SelectionEmpty(ServiceError):
    """No case is left to run."""

    status, code, title = 422, "selection-empty", "Nothing is selected"


class NothingToRerun(ServiceError):
    """No cell of the job is in a state to be run again."""

    status, code, title = 409, "nothing-to-rerun", "Nothing to run again"


class JobStopping(NothingToRerun):
    """The job was cancelled, and its workers still stop what ran. ``retry_after_s`` is when to ask again."""

    status, code, title = 409, "job-stopping", "The job is still stopping"

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail, retry_after_s=retry_after_s)


class JobEnded(ServiceError):
    """The job has ended, so that it can't be cancelled."""

    status, code, title = 409, "job-ended", "The job has ended"


class ApprovalNotNeeded(ServiceError):
    """The job does not wait for an approval."""

    status, code, title = 409, "approval-not-needed", "There is nothing to approve"


class HookRefused(ServiceError):
    """The hook is not proven. An unknown repository and a wrong signature are told alike."""

    status, code, title = 401, "hook-refused", "The hook is not proven"


class HookMalformed(ServiceError):
    """The hook is proven, and not what the forge's documentation says."""

    status, code, title = 400, "hook-malformed", "The hook is not understood"


class HookStartsNothing(ServiceError):
    """The delivery is of a kind that starts nothing, so that it can't do so again."""

    status, code, title = 409, "hook-starts-nothing", "The delivery starts nothing"


class ImportedResults(ServiceError):
    """The job's results were made elsewhere: nothing of it can be run again or cancelled here."""

    status, code, title = 409, "imported-results", "The results were imported"


class ReportRefused(ServiceError):
    """The report is no JUnit XML, has a document type, or is nested too deeply or too long."""

    status, code, title = 422, "report-refused", "The report cannot be read"


class IdempotencyConflict(ServiceError):
    """The key came with another submission before."""

    status, code, title = 409, "idempotency-conflict", "The key belongs to another submission"


class ContractMismatch(ServiceError):
    """Worker and service are of different releases."""

    status, code, title = 409, "contract-mismatch", "Worker and service do not fit"


class WorkerUnknown(ServiceError):
    """The worker is not registered, or was started again since."""

    status, code, title = 409, "worker-unknown", "Register first"


class WorkerMismatch(ServiceError):
    """The token is bound to another worker."""

    status, code, title = 403, "worker-mismatch", "The token is another worker's"


class RepositoryInUse(ServiceError):
    """The repository has jobs, whose evidence would go with it."""

    status, code, title = 409, "repository-in-use", "The repository has jobs"


class Fenced(ServiceError):
    """The lease is lost: the attempt has ended, or the token is another's."""

    status, code, title = 409, "fenced", "The lease is lost"


class BatchGap(ServiceError):
    """A batch's number is not the one that is due."""

    status, code, title = 409, "batch-gap", "A batch is missing"


class BatchRefused(ServiceError):
    """A batch tells what cannot be: a case twice in one process, a phase that is over, words behind the end."""

    status, code, title = 422, "batch-refused", "The batch contradicts itself or what is stored"


class ValueRefused(ServiceError):
    """A value is too long or too large for its column."""

    status, code, title = 422, "invalid-request", "The request is not understood"


class ArtifactConflict(ServiceError):
    """Other bytes are stored under the name."""

    status, code, title = 409, "artifact-conflict", "The artifact differs from the one stored"


class RangeRefused(ServiceError):
    """The range begins behind the end."""

    status, code, title = 416, "range-refused", "There is nothing in the range"


class TooLarge(ServiceError):
    """The body is larger than is taken."""

    status, code, title = 413, "too-large", "The body is too large"


class DiskFull(ServiceError):
    """The service's disk has no room. Nothing of the call was stored."""

    status, code, title = 503, "disk-full", "The service's disk is full"


class PartStalled(ServiceError):
    """A thread of the service has ended or hangs: it answers, and what it does by itself does not happen."""

    status, code, title = 503, "part-stalled", "A part of the service stands still"


class DatabaseUnavailable(ServiceError):
    """The database does not answer, or stayed locked for too long."""

    status, code, title = 503, "database-unavailable", "The database does not answer"
