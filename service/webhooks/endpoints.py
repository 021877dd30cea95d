"""``/api/v1/webhooks``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response, status

from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, is_admin, signed_in
from service.schemas import Id, Page
from service.webhooks import service, views
from service.webhooks.schemas import DeliveryOutput, RotationInput, WebhookInput, WebhookMade, WebhookOutput

inside = APIRouter(prefix="/api/v1/webhooks", tags=["webhooks"], dependencies=[Depends(signed_in)])
admin = APIRouter(prefix="/api/v1/webhooks", tags=["webhooks"], dependencies=[Depends(is_admin)])

Limit = Annotated[int, Query(ge=1, le=500)]


@admin.post("", status_code=status.HTTP_201_CREATED)
def add(
    body: WebhookInput, database: DatabaseDep, settings: SettingsDep, caller: CallerDep, response: Response
) -> WebhookMade:
    """Registers a URL to be told of job events. The answer has the secret, which is told this once."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        webhook = service.add(session, body, settings)
        audit.note(session, caller, "webhook.create", f"webhook {webhook.id}", url=webhook.url)
        return views.made(session, webhook.id)


@inside.get("")
def list_all(database: DatabaseDep, caller: CallerDep) -> list[WebhookOutput]:
    """Every webhook."""
    with database.read() as session:
        return views.list_webhooks(session, caller)


@inside.get("/deliveries")
def list_deliveries(
    database: DatabaseDep,
    caller: CallerDep,
    webhook: Annotated[Id | None, Query()] = None,
    before: Annotated[Id | None, Query()] = None,
    limit: Limit = 50,
) -> Page[DeliveryOutput]:
    """The latest deliveries, and what became of each."""
    with database.read() as session:
        return views.list_deliveries(session, caller, webhook, before, limit)


@inside.get("/deliveries/{delivery}")
def get_delivery(delivery: Id, database: DatabaseDep, caller: CallerDep) -> DeliveryOutput:
    """One delivery."""
    with database.read() as session:
        return views.get_delivery(session, delivery, caller)


@inside.post("/deliveries/{delivery}/redeliver")
def redeliver(delivery: Id, database: DatabaseDep, caller: CallerDep) -> DeliveryOutput:
    """Sends a delivery again, under the same ``webhook-id``."""
    with database.write() as session:
        service.redeliver(session, delivery)
        audit.note(session, caller, "webhook.redeliver", f"webhook delivery {delivery}")
        session.flush()
        return views.get_delivery(session, delivery, caller)


@inside.get("/{webhook}")
def get(webhook: Id, database: DatabaseDep, caller: CallerDep) -> WebhookOutput:
    """One webhook."""
    with database.read() as session:
        return views.get_webhook(session, webhook, caller)


@admin.delete("/{webhook}", status_code=status.HTTP_204_NO_CONTENT)
def remove(webhook: Id, database: DatabaseDep, caller: CallerDep) -> None:
    """Forgets a webhook with its deliveries."""
    with database.write() as session:
        service.remove(session, webhook)
        audit.note(session, caller, "webhook.remove", f"webhook {webhook}")


@admin.post("/{webhook}/secret")
def rotate(
    webhook: Id, body: RotationInput, database: DatabaseDep, caller: CallerDep, response: Response
) -> WebhookMade:
    """Gives a webhook another secret; the one before signs too for a while."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        service.rotate(session, webhook, body)
        audit.note(session, caller, "webhook.rotate", f"webhook {webhook}")
        session.flush()
        return views.made(session, webhook)


@admin.post("/{webhook}/enable")
def enable(webhook: Id, database: DatabaseDep, caller: CallerDep) -> WebhookOutput:
    """Sends again to a webhook that was disabled because it answered 410."""
    with database.write() as session:
        service.enable(session, webhook)
        audit.note(session, caller, "webhook.enable", f"webhook {webhook}")
        session.flush()
        return views.get_webhook(session, webhook, caller)


router = APIRouter()
router.include_router(inside)
router.include_router(admin)
