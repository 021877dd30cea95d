"""The way of one attempt, from its lease to its last event. Reads from top to bottom."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from worker.cleaning import Cleaner
from worker.client import Client
from worker.delivery import Delivery
from worker.encoding import encode
from worker.errors import AttemptError, InfrastructureFault, Stopped
from worker.gpus.device_check import DeviceChecks
from worker.gpus.health import DeviceHealth
from worker.gpus.usage import UsageSampler
from worker.isolation.confinement import Box, Holds, make_box
from worker.isolation.environment import for_tests
from worker.isolation.keeper import descendants
from worker.isolation.limits import limits_of
from worker.isolation.owned import remove
from worker.isolation.sandbox_view import View
from worker.isolation.survivors import end_survivors
from worker.messages import (
    Assignment,
    AttemptEndedEvent,
    Cause,
    CellSpec,
    Device,
    EnvironmentEvent,
    Phase,
    PhaseEvent,
    RuntimeSpec,
    UsageEvent,
)
from worker.observing.artifacts import upload
from worker.observing.output_log import OutputLog, Tee
from worker.observing.pytest_run import Run, run_pytest
from worker.runtimes.brought import as_tests_see_it
from worker.runtimes.install_cache import install_cache
from worker.runtimes.overlay import Overlay, make_overlay
from worker.runtimes.runtime import Tools, built_runtime
from worker.runtimes.runtime_facts import Runtime, assert_is
from worker.settings import Settings
from worker.sources.checkout import check_out
from worker.sources.source import source_of

log = structlog.get_logger()

_MOST_UPLOADS = 8


@dataclass(frozen=True)
class Host:
    """What all attempts of this worker process share."""

    settings: Settings
    client: Client
    tools: Tools
    hosts: Mapping[RuntimeSpec, Runtime]
    folder: Path
    spool: Path
    heartbeat_s: float
    stopping: threading.Event
    holds: Holds = field(default_factory=Holds)
    health: DeviceHealth = field(default_factory=DeviceHealth.of_no_device)
    device_checks: DeviceChecks = field(default_factory=DeviceChecks)


def run_attempt(assignment: Assignment, devices: tuple[Device, ...], host: Host) -> None:
    """Run one attempt to its end and deliver all of it."""
    with structlog.contextvars.bound_contextvars(attempt=assignment.attempt, cell=assignment.cell.name):
        attempt = _Attempt(assignment, devices, host)
        with attempt.watching_shutdown():
            try:
                cause, detail = attempt.outcome()
                attempt.end(cause, detail)
            finally:
                attempt.clear()
        log.info("attempt ended", cause=cause.value, detail=detail[:500])


class _Attempt:
    def __init__(self, assignment: Assignment, devices: tuple[Device, ...], host: Host) -> None:
        self.assignment, self.devices, self.host = assignment, devices, host
        self.cell: CellSpec = assignment.cell
        self.folder = host.folder / str(assignment.attempt)
        self.tree = self.folder / "tree"
        settings = host.settings
        self.log = OutputLog(settings.log_head_bytes, settings.log_cap_bytes)
        self.build_log = OutputLog(settings.log_head_bytes, settings.log_cap_bytes)
        self.stop = threading.Event()
        self.complaints: list[str] = []
        self.uses = contextlib.ExitStack()
        self.delivery = Delivery(
            host.client,
            assignment,
            host.spool / f"{assignment.attempt}.jsonl",
            heartbeat_s=host.heartbeat_s,
            flush_s=settings.flush_s,
            log_tail=self.log.tail_text,
            stop=self.stop,
        )

    @contextlib.contextmanager
    def watching_shutdown(self) -> Iterator[None]:
        """Stop this attempt when the worker stops."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                if self.host.stopping.is_set():
                    self.stop.set()
                    return

        thread = threading.Thread(target=watch, name="shutdown-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()

    def outcome(self) -> tuple[Cause, str]:
        """Run it. Why it ended, and a word for a person. Where no event can be kept, or a device broke, no result is
        trusted."""
        cause, detail = self._tried()
        if any(self.host.health.broken(device.uuid) for device in self.devices) and self.complaints:
            cause = cause if cause is Cause.CANCELLED else Cause.INFRASTRUCTURE
            self.complaints.append("what is observed on a broken card counts for nothing")
        detail = "; ".join(filter(None, [detail, *self.complaints]))
        if self.delivery.fault:
            cause, detail = Cause.INFRASTRUCTURE, self.delivery.fault
        return cause, Cleaner().text(detail)  # A file's name in it may be no UTF-8.

    def _tried(self) -> tuple[Cause, str]:
        try:
            cause, detail = self._way()
            if not (self.stop.is_set() and cause is Cause.CANCELLED):
                return cause, detail
        except Stopped:
            pass
        except AttemptError as error:
            if not self.stop.is_set():
                return error.cause, str(error)
        except OSError as error:
            return Cause.INFRASTRUCTURE, f"{type(error).__name__}: {error}"
        except Exception as error:  # a lease must end with a word, whatever was overlooked here
            log.exception("attempt broke")
            return Cause.INFRASTRUCTURE, f"the worker broke: {type(error).__name__}: {error}"
        if self.delivery.cancelled or self.delivery.fenced:
            return Cause.CANCELLED, "the service asked to stop"
        return Cause.INFRASTRUCTURE, "the worker was stopped"

    def _way(self) -> tuple[Cause, str]:
        self.delivery.send(PhaseEvent(Phase.PREPARING))
        mounts = self._mounts()
        for name in ("home", "tmp"):
            (self.folder / name).mkdir(parents=True)
        self.host.tools.room.look(self.log.note, self.stop)
        with self._timed("checkout"):
            check_out(
                self.cell, source_of(self.assignment, self.host.settings.cache_dir, self.log), self.tree, self.stop
            )
        with self._timed("runtime"):
            runtime = self._runtime()
        box = self._box(runtime, mounts)
        with self._timed("overlay"):
            overlay = make_overlay(
                self.folder / "overlay",
                runtime,
                self.cell.install,
                tree=self.tree,
                tools=self.host.tools,
                log=self.log,
                stop=self.stop,
                box=box,
                cache=install_cache(self.host.settings.cache_dir, self.cell.url),
            )
        run = self._run(overlay, mounts, box)
        seen = as_tests_see_it(runtime, overlay, self.cell.runtime, env=run.env, stop=self.stop, looking=box.looking)
        self.delivery.send(self._environment(seen, overlay, box))
        if seen.cuda:
            self._see_devices(seen, overlay, run, box)
        if self.stop.is_set():
            raise Stopped("stopped")
        self._gate()
        self.delivery.send(PhaseEvent(Phase.RUNNING))
        with self._watching_devices():
            return run_pytest(run)

    @contextlib.contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.log.note(f"{step}: {seconds:.2f} s")
        log.info("step done", step=step, seconds=round(seconds, 3))

    def _mounts(self) -> dict[str, Path]:
        known = self.host.settings.mounts
        missing = [name for name in self.cell.suite.mounts if name not in known or not known[name].exists()]
        if missing:
            raise InfrastructureFault(
                f"suite {self.cell.suite.name} needs the data {', '.join(missing)}: set REPLAYBENCH_MOUNTS to "
                "name=/path on this worker"
            )
        return {name: known[name] for name in self.cell.suite.mounts}

    def _runtime(self) -> Runtime:
        spec = self.cell.runtime
        if (runtime := self.host.hosts.get(spec)) is None:
            both = Tee(self.log, self.build_log)
            waited = self.assignment.queued_s
            runtime = built_runtime(spec, self.host.tools, both, self.stop, queued_s=waited, uses=self.uses)
        assert_is(runtime, spec)
        self.log.note(f"runtime {spec.id} ({runtime.origin}): {runtime.interpreter}")
        return runtime

    def _box(self, runtime: Runtime, mounts: Mapping[str, Path]) -> Box:
        limits = limits_of(self.cell.suite, self.host.holds.caps)
        devices = tuple(device.uuid for device in self.devices)
        view = View((), tuple(mounts.values()), devices=devices, network=self.cell.suite.network)
        box = make_box(self.host.holds, limits, runtime, self.folder, view)
        self.log.note(f"sandbox: {self.host.holds.sandbox.title}; limits: {box.facts['limits']}")
        return box

    def _see_devices(self, runtime: Runtime, overlay: Overlay, run: Run, box: Box) -> None:
        torch_of = overlay.python if overlay.brings_torch else runtime.interpreter
        with self._timed("device check"), box.looking() as confinement:
            self.host.device_checks.assert_visible(
                overlay.python, torch_of, self.devices, env=run.env, stop=self.stop, confinement=confinement
            )

    def _environment(self, runtime: Runtime, overlay: Overlay, box: Box) -> EnvironmentEvent:
        record = {
            "host": platform.node(),
            "gpus": encode(self.devices),
            "driver": self.devices[0].driver if self.devices else None,
            "cuda": runtime.cuda,
            "python": runtime.python,
            "torch": runtime.torch,
            "lightning": runtime.lightning,
            "packages": dict(overlay.packages),
            "tree": self.cell.tree,
            "probe_digest": self.cell.probe_digest,
            "origin": runtime.origin,
            **box.facts,
        }
        return EnvironmentEvent(record)

    def _run(self, overlay: Overlay, mounts: Mapping[str, Path], box: Box) -> Run:
        env = for_tests(
            os.environ,
            passed=self.host.settings.pass_env,
            folder=self.folder,
            bins=overlay.bins,
            suite_env=self.cell.suite.env,
            network=self.cell.suite.network,
            mounts=mounts,
            devices=[device.uuid for device in self.devices],
        )
        return Run(
            suite=self.cell.suite,
            rules=self.cell.failure_rules,
            python=overlay.python,
            tree=self.tree,
            folder=self.folder,
            env=env,
            grace_s=self.host.settings.kill_grace_s,
            log=self.log,
            stop=self.stop,
            send=self.delivery.send,
            running=self.delivery.running,
            box=box,
        )

    def _gate(self) -> None:
        """Look at the devices once more: since they were leased, a build may have taken an hour."""
        wanted = self.cell.suite.devices
        if len(self.devices) != wanted:
            raise InfrastructureFault(
                f"the cell needs {wanted} CUDA devices, and {len(self.devices)} were leased for it"
            )
        for device in self.devices:
            if drained := self.host.health.check(device.uuid):
                raise InfrastructureFault(f"{drained}. No test has run")

    @contextlib.contextmanager
    def _watching_devices(self) -> Iterator[None]:
        """Sample what the tests take of their devices, and see that these are given back."""
        health = self.host.health
        before = {device.uuid: (health.used(device.uuid), len(health.xids(device.uuid))) for device in self.devices}
        sampler = UsageSampler(self.devices, self.host.settings.gpu_sample_s, lambda: descendants(os.getpid()))
        try:
            with sampler:
                yield
        finally:
            if self.devices:
                self._send_usage(sampler, {uuid: health.xids(uuid)[told:] for uuid, (_, told) in before.items()})
            words = [health.after(uuid, used, self._end_left) for uuid, (used, _) in before.items()]
            self.complaints = list(filter(None, words))
            for word in self.complaints:
                self.log.note(word)

    def _send_usage(self, sampler: UsageSampler, xids: Mapping[str, tuple[int, ...]]) -> None:
        record = sampler.record()
        for card in record["gpus"]:
            card["xids"] = list(xids[card["uuid"]])
        self.delivery.send(UsageEvent(record))

    def _end_left(self) -> list[int]:
        return end_survivors(self.folder)

    def end(self, cause: Cause, detail: str) -> None:
        """Upload what is kept, say the last word, and wait until the service has it."""
        if cause is Cause.INFRASTRUCTURE and (killed := end_survivors(self.folder)):
            self.log.note(f"outlived their keeper and were killed: {', '.join(map(str, killed))}")
        if not self.delivery.fenced:
            self.log.note(f"ended: {cause.value} {detail}".rstrip())
            self.delivery.will_end(AttemptEndedEvent(cause, f"{detail}; its log was lost with the worker".lstrip("; ")))
            logs = {"log.txt": self.log} | ({"runtime.log": self.build_log} if self.build_log.total else {})
            detail = "; ".join(filter(None, [detail, *upload(self.host.client, self.assignment, logs, self._gives_up)]))
        self.delivery.send(AttemptEndedEvent(cause, detail))
        self.delivery.finish(self.host.stopping, self.host.settings.stop_grace_s / 2)

    def clear(self) -> None:
        """Let go of what was used, and leave no file."""
        self.uses.close()
        remove(self.folder)

    def _gives_up(self, failures: int) -> bool:
        """Whether a log is worth no further try: a service that takes events and no log must not hold the devices."""
        if self.delivery.fenced or self.host.stopping.is_set():
            return True
        return failures >= _MOST_UPLOADS and self.delivery.reachable
