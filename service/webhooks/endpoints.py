"""``/api/v1/webhooks``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, status

from service.dependencies import DatabaseDep, SettingsDep, signed_in
from service.schemas import Id, Page
from service.webhooks import service, views
from service.webhooks.schemas import DeliveryOutput, RotationInput, WebhookInput, WebhookMade, WebhookOutput

router = APIRouter(prefix="/api/v1/webhooks", tags=["webhooks"], dependencies=[Depends(signed_in)])

Limit = Annotated[int, Query(ge=1, le=500)]


@router.post("", status_code=status.HTTP_201_CREATED)
def add(body: WebhookInput, database: DatabaseDep, settings: SettingsDep) -> WebhookMade:
    """Registers a URL to be told of job events. The answer has the secret, which is told this once."""
    with database.write() as session:
        webhook = service.add(session, body, settings)
        return views.made(session, webhook.id)


@router.get("")
def list_all(database: DatabaseDep) -> list[WebhookOutput]:
    """Every webhook."""
    with database.read() as session:
        return views.list_webhooks(session)


@router.get("/deliveries")
def list_deliveries(
    database: DatabaseDep,
    webhook: Annotated[Id | None, Query()] = None,
    before: Annotated[Id | None, Query()] = None,
    limit: Limit = 50,
) -> Page[DeliveryOutput]:
    """The latest deliveries, and what became of each."""
    with database.read() as session:
        return views.list_deliveries(session, webhook, before, limit)


@router.get("/deliveries/{delivery}")
def get_delivery(delivery: Id, database: DatabaseDep) -> DeliveryOutput:
    """One delivery."""
    with database.read() as session:
        return views.get_delivery(session, delivery)


@router.post("/deliveries/{delivery}/redeliver")
def redeliver(delivery: Id, database: DatabaseDep) -> DeliveryOutput:
    """Sends a delivery again, under the same ``webhook-id``."""
    with database.write() as session:
        service.redeliver(session, delivery)
        session.flush()
        return views.get_delivery(session, delivery)


@router.get("/{webhook}")
def get(webhook: Id, database: DatabaseDep) -> WebhookOutput:
    """One webhook."""
    with database.read() as session:
        return views.get_webhook(session, webhook)


@router.delete("/{webhook}", status_code=status.HTTP_204_NO_CONTENT)
def remove(webhook: Id, database: DatabaseDep) -> None:
    """Forgets a webhook with its deliveries."""
    with database.write() as session:
        service.remove(session, webhook)


@router.post("/{webhook}/secret")
def rotate(webhook: Id, body: RotationInput, database: DatabaseDep) -> WebhookMade:
    """Gives a webhook another secret; the one before signs too for a while."""
    with database.write() as session:
        service.rotate(session, webhook, body)
        session.flush()
        return views.made(session, webhook)


@router.post("/{webhook}/enable")
def enable(webhook: Id, database: DatabaseDep) -> WebhookOutput:
    """Sends again to a webhook that was disabled because it answered 410."""
    with database.write() as session:
        service.enable(session, webhook)
        session.flush()
        return views.get_webhook(session, webhook)
