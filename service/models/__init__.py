"""The tables."""

from service.models.access import AccessToken, AuditEntry
from service.models.attempt import Artifact, Attempt, Case, Process
from service.models.base import Base
from service.models.hook import Delivery, HookSecret, Trigger
from service.models.idempotency import IdempotencyKey
from service.models.job import Cell, Job
from service.models.repository import Probe, Repository, RepositoryCredential, Tree
from service.models.sending import CommitStatus, ForgeLink, Sending, Webhook, WebhookDelivery
from service.models.worker import Worker

__all__ = [
    "AccessToken",
    "Artifact",
    "Attempt",
    "AuditEntry",
    "Base",
    "Case",
    "Cell",
    "CommitStatus",
    "Delivery",
    "ForgeLink",
    "HookSecret",
    "IdempotencyKey",
    "Job",
    "Probe",
    "Process",
    "Repository",
    "RepositoryCredential",
    "Sending",
    "Tree",
    "Trigger",
    "Webhook",
    "WebhookDelivery",
    "Worker",
]
