"""A node's disk: the storage layer's own twin in memory, and a sync in which a process may die.

A sync is where a crash hurts: what was written before it is there for the living and lost for a
machine without power.
"""

from collections.abc import Callable
from typing import Any

from kelek.tests.sim.simulation import Process, Simulation
from kelek.tests.storage.memory_disk import MemoryDisk, MemoryFiles

HARD_STATE = "hard_state"
SLOT_BYTES = 4096  # disk-format.md, "Hard state": the slots stand at 1 and 2 times this.
BYTES_MAX = 1 << 40
HALT_AT_SYNC_MAX = 4  # One of so many next syncs is the one.


class Halt(BaseException):
    """The process that syncs dies here, and all others of its machine with it."""

    def __init__(self, *, power: bool, down_ms: int) -> None:
        super().__init__(f"power={power}")
        self.power = power
        self.down_ms = down_ms


class HaltingFiles:
    """MemoryFiles whose syncs may end in a Halt."""

    def __init__(self, files: MemoryFiles, before_sync: Callable[[], None]) -> None:
        self._files = files
        self._before_sync = before_sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, path: str, writable: bool = False) -> "HaltingFile | None":
        file = self._files.open(path, writable)
        return None if file is None else HaltingFile(file, self._before_sync)

    def create(self, path: str) -> "HaltingFile":
        return HaltingFile(self._files.create(path), self._before_sync)

    def sync_folder(self, path: str) -> None:
        self._before_sync()
        self._files.sync_folder(path)


class HaltingFile:
    """A file of StepFiles."""

    def __init__(self, file: Any, before_sync: Callable[[], None]) -> None:
        self._file = file
        self._before_sync = before_sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._before_sync()
        self._file.sync()


class NodeDisk:
    """One machine's disk and the processes that use it."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.disk = MemoryDisk()
        self._halt: Halt | None = None
        self._halt_after = 0
        self._processes: dict[Process, MemoryFiles] = {}

    def open_process(self, process: Process) -> Any:
        """The disk as a new process sees it."""
        files = self.disk.process()
        self._processes[process] = files
        return HaltingFiles(files, self._before_sync)

    def close_process(self, process: Process) -> None:
        """The process died: its locks are free, what it has written stays readable."""
        files = self._processes.pop(process, None)
        if files is not None:
            files.crash()

    def power_loss(self) -> None:
        self._halt = None
        self.disk.power_loss(self.simulation.random)

    def free_space(self) -> None:
        """There is space again."""
        self.disk.bytes_max = BYTES_MAX

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self._halt = None
        self.disk = MemoryDisk()

    def damage_vote(self) -> None:
        """A bit of a slot of the hard state is wrong from now on."""
        if HARD_STATE in self.disk.names:
            slot = self.simulation.between(1, 2)
            self.disk.flip(HARD_STATE, 8 * SLOT_BYTES * slot + self.simulation.between(0, 8 * 16))

    def fill(self) -> None:
        """Another program has used the space that was left."""
        used = sum(len(inode.cache) for inode in self.disk.names.values())
        self.disk.bytes_max = used + self.simulation.between(0, 100_000)

    def halt_in_sync(self, *, power: bool, down_ms: int) -> None:
        """One of the next syncs is never finished."""
        self._halt = Halt(power=power, down_ms=down_ms)
        self._halt_after = self.simulation.between(1, HALT_AT_SYNC_MAX)

    def fail_next_sync(self) -> None:
        self.disk.fail_sync()

    def clear_faults(self) -> None:
        """No more faults."""
        self._halt = None
        self.disk.fail_sync(0)
        self.disk.bytes_max = BYTES_MAX

    def _before_sync(self) -> None:
        if self._halt is None:
            return
        self._halt_after -= 1
        if self._halt_after == 0:
            halt, self._halt = self._halt, None
            self.simulation.counters["halts in a sync"] += 1
            self.simulation.trace_event(self.name, "dies in a sync,", halt)
            raise halt
