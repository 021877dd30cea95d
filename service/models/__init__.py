"""The tables."""

from service.models.attempt import Artifact, Attempt, Case, Process
from service.models.base import Base
from service.models.job import Cell, Job
from service.models.repository import Probe, Repository, Tree
from service.models.sending import CommitStatus, ForgeLink, Sending, Webhook, WebhookDelivery
from service.models.worker import Worker

__all__ = [
    "Artifact",
    "Attempt",
    "Base",
    "Case",
    "Cell",
    "CommitStatus",
    "ForgeLink",
    "Job",
    "Probe",
    "Process",
    "Repository",
    "Sending",
    "Tree",
    "Webhook",
    "WebhookDelivery",
    "Worker",
]
