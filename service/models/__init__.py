"""The tables."""

from service.models.attempt import Artifact, Attempt, Case, Process
from service.models.base import Base
from service.models.idempotency import IdempotencyKey
from service.models.job import Cell, Job
from service.models.repository import Probe, Repository, Tree
from service.models.worker import Worker

__all__ = [
    "Artifact",
    "Attempt",
    "Base",
    "Case",
    "Cell",
    "IdempotencyKey",
    "Job",
    "Probe",
    "Process",
    "Repository",
    "Tree",
    "Worker",
]
