"""Makes the application: settings in, a FastAPI app out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from service import error_handlers, openapi, tokens
from service.access import endpoints as access
from service.access.gate import Gate
from service.audit import endpoints as audit
from service.body_limit import BodyLimit
from service.compare import endpoints as compare
from service.database import Database, upgrade
from service.dispatch.broker import Broker
from service.dispatch.sweep import Sweep
from service.errors import DatabaseUnavailable
from service.hooks import endpoints as hooks
from service.hooks.planner import Planner
from service.hooks.schedules import Scheduler
from service.imports import endpoints as imports
from service.jobs import endpoints as jobs
from service.outgoing.courier import Courier
from service.pages import endpoints as pages
from service.pages import hooks as hook_pages
from service.pulse import Part, check
from service.repositories import endpoints as repositories
from service.results import endpoints as results
from service.results.artifacts import sweep_drafts
from service.settings import Settings, load
from service.statuses import endpoints as statuses
from service.statuses.line import StatusLine
from service.webhooks import endpoints as webhooks
from service.webhooks.line import WebhookLine
from service.workers import endpoints as workers
from worker.messages import CONTRACT


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application. Its lifespan upgrades an embedded database, and sweeps.

    Raises:
        SettingsError: the environment holds a value that does not fit.
    """
    settings = settings or load()
    broker = Broker(settings.broker_url)
    database = Database(settings.database, broker.send)
    planner = Planner(database, settings)
    threads: tuple[Part, ...] = (
        Sweep(database, broker, settings),
        planner,
        Scheduler(database, planner, settings),
        Courier(database, settings, (StatusLine(settings), WebhookLine(settings))),
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if database.embedded:
            await run_in_threadpool(upgrade, settings.database)
        known = tokens.ensure(settings.data_dir, settings.submit_token, settings.worker_token)
        app.state.gate = Gate(database, known, settings)
        await run_in_threadpool(sweep_drafts, settings.data_dir)
        for part in threads:
            part.start()
        yield
        for part in reversed(threads):
            await run_in_threadpool(part.stop)
        database.close()
        broker.close()

    # FastAPI's pages about the API load their scripts from elsewhere, which a machine without internet cannot.
    app = FastAPI(title="Replaybench", version=version("replaybench"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.settings, app.state.database, app.state.planner = settings, database, planner
    error_handlers.install(app)
    app.add_middleware(BodyLimit, cap=max(settings.body_cap_bytes, settings.artifact_cap_bytes + 1))
    parts = (
        repositories, jobs, imports, results, compare, workers, access, audit, hooks, hook_pages, statuses, webhooks,
        pages,
    )  # fmt: skip
    for part in parts:
        app.include_router(part.router)
    app.include_router(results.worker_router)

    @app.get("/api/v1/health", tags=["health"])
    def health() -> dict[str, str | int]:
        """Whether the service answers, its database can be read and its own threads get on. Needs no token and tells
        nothing else.
        """
        if not database.answers():
            raise DatabaseUnavailable("The database does not answer.")
        check(pulse for thread in threads for pulse in thread.pulses)
        return {"status": "ok", "version": version("replaybench"), "contract": CONTRACT}

    openapi.install(app)
    return app
