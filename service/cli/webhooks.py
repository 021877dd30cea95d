"""`replaybench webhooks`: who is told of jobs, and what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Json, Limit, Url

app = typer.Typer(help="URLs that are told when jobs start and end.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(metavar="WEBHOOK", help="The webhook's number.", min=1, show_default=False)]
Secret = Annotated[str | None, typer.Option(help="whsec_… of your own; - reads it. Default: a new one.")]


@app.command()
def add(
    target: Annotated[str, typer.Argument(metavar="TARGET-URL", help="What to post to.", show_default=False)],
    *,
    event: Annotated[list[str] | None, typer.Option(help="job.started or job.ended. Default: both.")] = None,
    repository: Annotated[str | None, typer.Option(help="Its jobs alone. Default: all.")] = None,
    secret: Secret = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Register a URL. Its secret is printed this once."""
    from service.cli import output
    from service.cli.connect import connect
    from service.webhooks.schemas import Event, WebhookInput

    with output.refusing(url="TARGET-URL"), connect(url) as client:
        body = {"url": target, "events": event or tuple(Event), "repository": repository, "secret": _secret(secret)}
        made = client.add_webhook(WebhookInput.model_validate(body))
    output.show(made, f"webhook {made.id} is told of {', '.join(made.events)}; its secret is\n{made.secret}", json=json)


@app.command("list")
def list_(*, json: Json = False, url: Url = None) -> None:
    """List the webhooks."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import webhooks_table

    with connect(url) as client:
        known = client.webhooks()
    output.show(known, webhooks_table(known), json=json)


@app.command()
def deliveries(
    webhook: Annotated[
        int | None, typer.Argument(metavar="WEBHOOK", help="Of this webhook alone.", min=1, show_default=False)
    ] = None,
    *,
    limit: Limit = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the latest deliveries, and what became of each."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import deliveries_table

    with connect(url) as client:
        page = client.deliveries(webhook=webhook, limit=limit)
    output.show(page.items, deliveries_table(page.items), json=json)


@app.command()
def redeliver(
    delivery: Annotated[int, typer.Argument(metavar="DELIVERY", help="Its number.", min=1, show_default=False)],
    *,
    json: Json = False,
    url: Url = None,
) -> None:
    """Send a delivery again, under the same id."""
    from service.cli import output
    from service.cli.connect import connect

    with connect(url) as client:
        again = client.redeliver(delivery)
    output.show(again, f"delivery {again.id} is {again.state}", json=json)


@app.command()
def rotate(
    webhook: Number,
    *,
    secret: Secret = None,
    overlap: Annotated[int, typer.Option(help="For so many seconds the old secret signs too.", min=0)] = 86_400,
    json: Json = False,
    url: Url = None,
) -> None:
    """Give a webhook another secret. It is printed this once."""
    from service.cli import output
    from service.cli.connect import connect
    from service.webhooks.schemas import RotationInput

    with output.refusing(), connect(url) as client:
        body = RotationInput.model_validate({"secret": _secret(secret), "overlap_s": overlap})
        made = client.rotate_webhook(webhook, body)
    output.show(made, f"webhook {made.id} has another secret:\n{made.secret}", json=json)


@app.command()
def enable(webhook: Number, *, json: Json = False, url: Url = None) -> None:
    """Send again to a webhook that was disabled because it answered 410."""
    from service.cli import output
    from service.cli.connect import connect

    with connect(url) as client:
        found = client.enable_webhook(webhook)
    output.show(found, f"webhook {found.id} is told again", json=json)


@app.command()
def remove(webhook: Number, *, json: Json = False, url: Url = None) -> None:
    """Forget a webhook with its deliveries."""
    from service.cli import output
    from service.cli.connect import connect

    with connect(url) as client:
        client.remove_webhook(webhook)
    output.show({"removed": webhook}, f"webhook {webhook} is forgotten", json=json)


def _secret(option: str | None) -> str | None:
    import sys

    return sys.stdin.readline().strip() if option == "-" else option
