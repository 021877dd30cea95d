"""What an operator asks of a machine's cards: ``python -m worker gpus`` and ``python -m worker clear CARD``.

Needs no service: what is known of cards lies in the cache folder that the host's workers share.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from worker.gpus import gate, gpu
from worker.gpus.device_faults import FaultBook
from worker.messages import Device
from worker.settings import cache_dir

USAGE = """usage: replaybench worker              run a worker
       replaybench worker --enroll TOKEN --service URL
                                       exchange an enrolment token for this worker's own
       replaybench worker gpus         list this machine's cards and their faults, as JSON
       replaybench worker clear CARD   let a card with a fault that stays have cells again, by index or UUID
       replaybench worker spools       list what the service could not take, as JSON
       replaybench worker deliver      send those of this worker once more
"""


def run(words: Sequence[str]) -> int:
    """Do what is asked. The exit code: 0, or 2 where it could not be understood."""
    book = FaultBook(cache_dir() / "devices")
    devices = gpu.inventory()
    if list(words) == ["gpus"]:
        json.dump([_told(device, book) for device in devices], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    if len(words) == 2 and words[0] == "clear":
        return _clear(words[1], devices, book)
    sys.stderr.write(USAGE)
    return 2


def _told(device: Device, book: FaultBook) -> dict[str, object]:
    """A card, its fault that stays, and who computes on it now."""
    try:
        look = gpu.look(device.uuid)
    except gpu.DeviceGone as gone:
        return dataclasses.asdict(device) | {"fault": book.fault(device.uuid) or str(gone), "owners": []}
    fault = gate.fault_of(dataclasses.replace(look, owners=()), ecc_before=None, free_percent=0.0)
    owners = [str(owner) for owner in look.owners]
    return dataclasses.asdict(device) | {
        "fault": book.fault(device.uuid) or (fault.reason if fault else ""),
        "owners": owners,
    }


def _clear(card: str, devices: Sequence[Device], book: FaultBook) -> int:
    """A card that the driver no longer lists is cleared by its UUID too."""
    found = [device.uuid for device in devices if device.uuid and card in (device.uuid, str(device.index))]
    uuid = found[0] if found else card
    if not book.fault(uuid):
        sys.stderr.write(f"replaybench worker: {card} has no fault that stays; `replaybench worker gpus` lists them\n")
        return 2
    sys.stdout.write(f"cleared: {uuid}: {book.fault(uuid)}\n")
    book.clear(uuid)
    return 0
