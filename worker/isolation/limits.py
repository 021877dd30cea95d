"""How much a test process may take: what the suite declares, within the operator's caps. Pure: no files, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from worker.messages import SuiteSpec

_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Of one pytest process and all that it starts: memory in MiB and how many processes (threads count); of each
    single process: the size of a file in MiB, and open files. 0 is without a limit."""

    memory_mib: int = 0
    processes: int = 0
    file_size_mib: int = 0
    open_files: int = 0

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * _MIB

    def each_process(self) -> dict[str, int]:
        """What every single process is held to, as names of ``resource.RLIMIT_*``."""
        found = {"FSIZE": self.file_size_mib * _MIB, "NOFILE": self.open_files}
        return {name: value for name, value in found.items() if value}

    def instead_of_a_group(self, already: int) -> dict[str, int]:
        """What stands in where there is no cgroup, which is less: memory of each process alone, and processes of the
        user, of which there are ``already`` some.

        RLIMIT_DATA, since RLIMIT_AS would count the address space that CUDA reserves and never touches.
        """
        found = {"DATA": self.memory_bytes, "NPROC": self.processes + already if self.processes else 0}
        return {name: value for name, value in found.items() if value}


def limits_of(suite: SuiteSpec, caps: Limits) -> Limits:
    """The suite's limits: its own word, at most the cap; the cap where it says nothing."""
    return Limits(
        memory_mib=_within(suite.memory_mib, caps.memory_mib),
        processes=_within(suite.processes, caps.processes),
        file_size_mib=_within(suite.file_size_mib, caps.file_size_mib),
        open_files=_within(suite.open_files, caps.open_files),
    )


def _within(asked: int, cap: int) -> int:
    return min(asked, cap) if asked and cap else asked or cap
