"""``POST /hooks/{provider}`` for forges, and what people do with deliveries, secrets and approvals."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Query, Request, Response, status

from service.access.gate import Gate
from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, address_of, is_admin, signed_in
from service.errors import HookMalformed, HookRefused, TooLarge
from service.hooks import service, views
from service.hooks.events import Malformed
from service.hooks.forge import FORGES, LONGEST_ID, Provider, header, payload, unwrapped
from service.hooks.planner import Planner
from service.hooks.schemas import ApproveInput, DeliveryOutput, HookSecretOutput
from service.jobs.schemas import JobOutput
from service.jobs.views import get_job
from service.repositories import service as repositories
from service.schemas import Id, Page
from service.states import DeliveryState

log = structlog.get_logger()

router = APIRouter(tags=["hooks"])
inside = APIRouter(prefix="/api/v1", tags=["hooks"], dependencies=[Depends(signed_in)])
secrets = APIRouter(prefix="/api/v1/repositories/{name}/hook-secrets", tags=["hooks"], dependencies=[Depends(is_admin)])

Limit = Annotated[int, Query(ge=1, le=500)]


async def raw(request: Request, settings: SettingsDep) -> bytes:
    """The body to the byte: a signature is over these, and not over what they mean.

    Raises:
        TooLarge: it has more bytes than a hook may have.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > settings.hook_body_cap_bytes:
            raise TooLarge(f"the hook's body is larger than {settings.hook_body_cap_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def planner(request: Request) -> Planner:
    """The application's planner."""
    found: Planner = request.app.state.planner
    return found


def gate(request: Request) -> Gate:
    """The application's gate, which counts what is not proven."""
    found: Gate = request.app.state.gate
    return found


PlannerDep = Annotated[Planner, Depends(planner)]
GateDep = Annotated[Gate, Depends(gate)]


@router.post("/hooks/{provider}", status_code=status.HTTP_202_ACCEPTED)
def receive(
    provider: Provider,
    request: Request,
    body: Annotated[bytes, Depends(raw)],
    database: DatabaseDep,
    settings: SettingsDep,
    planner: PlannerDep,
    gate: GateDep,
) -> DeliveryOutput:
    """Takes a forge's delivery. Its job is ``planning`` until the commit is fetched and its ``[trigger]`` read."""
    forge, headers, wrong, signed = FORGES[provider], request.headers, "", body
    try:
        text = unwrapped(body, headers.get("content-type", ""))
        signed = text if forge.signs_field else body
        data = payload(text)
    except Malformed as error:
        data, wrong = None, str(error)
    with database.read() as session:
        repository_id = service.prove(session, settings, forge, data, headers, signed)
    if repository_id is None:
        gate.count(address_of(request))
        addresses = [address[:200] for address in forge.addresses(data)] if data else []
        log.warning("hook-refused", provider=provider, addresses=addresses, why=wrong)
        raise HookRefused(
            "The repository is not registered here, or the signature is not made with its secret over these bytes."
        )
    event, delivery = header(headers, forge.event)[:100], header(headers, forge.delivery)
    if not event or not 0 < len(delivery) <= LONGEST_ID:
        wrong = wrong or f"send the headers {forge.event[0]} and {forge.delivery[0]} (up to {LONGEST_ID} characters)"
    if wrong or data is None:
        raise HookMalformed(wrong)
    with database.write() as session:
        row = service.take(session, forge, provider, delivery, event, repository_id, data)
        session.flush()
        told = views.get_delivery(session, row.id)
    if told.state is DeliveryState.REFUSED:
        raise HookMalformed(told.detail)
    planner.wake()
    return told


@inside.get("/hooks/deliveries")
def list_deliveries(
    database: DatabaseDep, before: Annotated[Id | None, Query()] = None, limit: Limit = 50
) -> Page[DeliveryOutput]:
    """The latest deliveries whose signature was right, newest first."""
    with database.read() as session:
        return views.list_deliveries(session, before, limit)


@inside.post("/hooks/deliveries/{delivery}/redeliver")
def redeliver(delivery: Id, database: DatabaseDep, caller: CallerDep, planner: PlannerDep) -> DeliveryOutput:
    """Does again what a delivery asked for: plans its job again, or runs again what did not pass, or else all."""
    with database.write() as session:
        service.redeliver(session, delivery)
        audit.note(session, caller, "hook.redeliver", f"delivery {delivery}")
        session.flush()
        told = views.get_delivery(session, delivery)
    planner.wake()
    return told


@inside.post("/jobs/{job}/approve")
def approve(job: Id, body: ApproveInput, database: DatabaseDep, caller: CallerDep, planner: PlannerDep) -> JobOutput:
    """Lets a job of a fork's pull request run, for this commit alone. The audit has the token that said so."""
    with database.write() as session:
        service.approve(session, job, body.approved_by or caller.name)
        audit.note(session, caller, "job.approve", f"job {job}", by=body.approved_by)
        session.flush()
        told = get_job(session, job)
    planner.wake()
    return told


@secrets.post("", status_code=status.HTTP_201_CREATED)
def add_secret(name: str, database: DatabaseDep, caller: CallerDep, response: Response) -> HookSecretOutput:
    """Makes a secret for the repository's hook, shown this once. The one before it counts until the next is made."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        made = service.add_secret(session, repositories.find(session, name).id)
        audit.note(session, caller, "hook-secret.create", f"repository {name}", id=made.id)
        return HookSecretOutput(id=made.id, repository=name, secret=made.secret, created_at=made.created_at)


@secrets.delete("/{secret}", status_code=status.HTTP_204_NO_CONTENT)
def drop_secret(name: str, secret: Id, database: DatabaseDep, caller: CallerDep) -> None:
    """Forgets a secret at once."""
    with database.write() as session:
        service.drop_secret(session, repositories.find(session, name).id, secret)
        audit.note(session, caller, "hook-secret.drop", f"repository {name}", id=secret)


router.include_router(inside)
router.include_router(secrets)
