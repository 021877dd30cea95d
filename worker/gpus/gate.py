"""Whether a card may get a cell: pure, over one look at it."""

from __future__ import annotations

from dataclasses import dataclass

from worker.gpus.gpu import Look

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a faulty program makes on a sound card: tests that crash on purpose make them too. They are counted, and
drain nothing. NVIDIA's device plugin for Kubernetes (``internal/rm/health.go``) holds the same ones for harmless."""


@dataclass(frozen=True)
class Fault:
    """Why a card gets no cell. ``stays`` until somebody clears it: what broke once is not sound for being quiet now."""

    reason: str
    stays: bool = False


def fault_of(look: Look, *, ecc_before: int | None, free_percent: float) -> Fault | None:
    """What is wrong with a card that nobody should be using now; nothing where all is well.

    ``ecc_before`` is how many uncorrected memory errors it had counted when it was last well. A count that fell was
    begun anew, by a reset or another driver.
    """
    if unfit := _unfit(look):
        return Fault(unfit)
    if look.ecc_volatile is not None and ecc_before is not None and look.ecc_volatile > ecc_before:
        return Fault(f"{look.ecc_volatile - ecc_before} new uncorrected ECC errors ({look.ecc_volatile} in all)", True)
    if look.owners:
        return Fault(f"in use by {', '.join(map(str, look.owners))}")
    if look.total_mib and look.free_mib is not None and look.free_mib < look.total_mib * free_percent / 100:
        return Fault(
            f"{look.free_mib} of {look.total_mib} MiB are free, {free_percent:g} % must be, "
            "and the driver names nobody who holds the rest"
        )
    return None


def _unfit(look: Look) -> str:
    """What of a card's set-up or state no cell can run on, whoever uses it."""
    if look.mig:
        return "MIG is on, and its instances are not leased: switch it off (nvidia-smi -mig 0)"
    if look.compute_mode == "prohibited":
        return "its compute mode is prohibited: allow CUDA on it (nvidia-smi -c DEFAULT)"
    if look.rows_failed:
        return "bad memory could not be replaced (row remapping failed): have the card exchanged"
    return ""


def harmless(xid: int) -> bool:
    """Whether the program was at fault, and not the card."""
    return xid in APPLICATION_XIDS
