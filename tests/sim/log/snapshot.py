"""The work of actors/raft/snapshot_sender.py, and the state machine's part of a snapshot."""

from functools import partial
from typing import TYPE_CHECKING, Any

from kelek.protocols.zmqraft.snapshots.orders import (
    Order,
    Result,
    SenderStarted,
    SnapshotCreated,
    decode_work,
    encode_work,
)
from kelek.storage.disk.files import PIECE_BYTES
from kelek.storage.errors import StorageError
from kelek.storage.snapshot.snapshot import newest, open_snapshot
from kelek.storage.snapshot.work import STATE_PART, ReqidLimits, SnapshotWork, state_read
from kelek.tests.sim.log.disk import Halt
from kelek.tests.sim.network import Frames
from kelek.tests.sim.simulation import US_PER_MS, Process

if TYPE_CHECKING:
    from kelek.tests.sim.log.node import SimNode

KEEP = ReqidLimits(8 * 3600 + 30 * 60, 10_000_000)
BARRIER_REPEAT_US = 100 * US_PER_MS


class SenderProcess(Process):
    """Creates, reads and writes snapshots. It is restarted alone."""

    def __init__(self, node: "SimNode") -> None:
        super().__init__(node.simulation, f"{node.name}.sender")
        self.node = node
        self.work = SnapshotWork(node.disk.open_process(self), node.identity, KEEP)
        self._epoch = 0
        self._barrier_us = 0
        self._send(SenderStarted(self.work.newest))

    def on_wake(self) -> None:
        try:
            self._step()
        except Halt as halt:
            self.node.on_halt(halt)
        except StorageError as error:
            self.simulation.trace_event(self.name, "ends:", error)
            self.node.kill_sender()

    def _step(self) -> None:
        inbox, self.inbox = self.inbox, []
        for kind, *item in inbox:
            if kind == "state":
                self._on_state(*item)
            else:
                self._execute(item[0])
        self._order_states()
        if self.work.busy:
            made = self.work.step()
            if made is not None:
                self.simulation.counters["made" if made.snapshot else "not made"] += 1
                self._on_made(made)
            self.wake_after(500)

    def _execute(self, work: Frames) -> None:
        self._epoch, order = decode_work(work)
        assert isinstance(order, Order)
        result = self._execute_order(order)
        if result is not None:
            self._send(result)

    def _execute_order(self, order: Order) -> Result | None:
        return self.work.execute(order)

    def _on_state(self, *item: Any) -> None:
        """A process has written its state."""
        self.work.on_state_written(*item)

    def _order_states(self) -> None:
        """Orders the state that a snapshot needs."""
        wanted, now_us = self.work.pending_make, self.simulation.now_us
        if wanted is not None:
            if now_us >= self._barrier_us:
                self._barrier_us = now_us + BARRIER_REPEAT_US
                self.node.send("barriers", "state_machine", "barrier", wanted.last_index)
            self.wake_after(self._barrier_us - now_us)

    def _on_made(self, made: SnapshotCreated) -> None:
        self._send(made)

    def _send(self, result: Any) -> None:
        self.simulation.counters[type(result).__name__] += 1
        self.node.send("results", "peer", encode_work(self._epoch, result))


def restored(node: "SimNode", files: Any) -> tuple[int, bytes] | None:
    """Returns index and state of the state machine in the newest snapshot; None without one."""
    info = newest(files, node.identity)
    file = None if info is None else open_snapshot(files, node.identity, info)
    if file is None:
        return None
    read = state_read(file, STATE_PART)
    return file.info.index, b"".join(iter(partial(read, PIECE_BYTES), b""))
