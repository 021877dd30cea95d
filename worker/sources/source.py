"""From where an attempt's tree comes, with the credential that its lease brought along."""

from __future__ import annotations

from pathlib import Path

from worker.errors import EnvironmentFault
from worker.gitaccess.access import Credential
from worker.gitaccess.address import AddressRefused, check
from worker.messages import Assignment
from worker.observing.output_log import OutputLog
from worker.sources.mirror import Source


def source_of(assignment: Assignment, cache: Path, log: OutputLog) -> Source:
    """The source of an assignment's tree.

    Raises:
        EnvironmentFault: its address is none that git may fetch from.
    """
    cell, given = assignment.cell, assignment.credential
    if given is None:
        return Source(cache, cell.repository, say=log.note)
    try:
        place = check(cell.url)
    except AddressRefused as error:
        raise EnvironmentFault(str(error)) from error
    if place is None or given.fault:
        return Source(cache, cell.repository, fault=given.fault, say=log.note)
    credential = Credential(place, given.user, given.token, given.ssh_key, given.known_hosts)
    return Source(cache, cell.repository, credential, say=log.note)
