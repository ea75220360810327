"""Snapshots of a node with tables: the barrier of all processes that apply its log."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kelek.protocols.zmqraft.snapshots.barrier import (
    Barrier,
    BarrierMessage,
    BarrierParticipant,
    Phase,
)
from kelek.protocols.zmqraft.snapshots.orders import CreateSnapshot, Order, Result, SnapshotCreated
from kelek.storage.disk.files import Files
from kelek.storage.errors import StorageError
from kelek.storage.snapshot.work import STATE_PART, write_state
from kelek.tests.sim.log.node import StateMachineProcess
from kelek.tests.sim.log.snapshot import SenderProcess

if TYPE_CHECKING:
    from kelek.tests.sim.tables.node import TableNode

RETRY_US = 10_000


class TableSender(SenderProcess):
    """It orders a state of each process, at the same entry."""

    def __init__(self, node: "TableNode", participants: Sequence[str]) -> None:
        super().__init__(node)
        self._barrier = Barrier(participants)
        self._parts: dict[str, Files] = {}

    def _execute_order(self, order: Order) -> Result | None:
        result = super()._execute_order(order)
        if isinstance(order, CreateSnapshot) and self.work.pending_make is not None:
            self._barrier.start(order.last_index, self.node.now_ms)
        return result

    def _on_state(self, name: str, reply: BarrierMessage, files: Files | None) -> None:
        if reply.phase is Phase.STOP:
            self._parts.pop(name, None)
        elif files is not None:
            self._parts[name] = files
        written = self._barrier.on_reply(name, reply, self.node.now_ms)
        if written is not None:
            self.work.on_state_written(*written, self._parts)

    def _order_states(self) -> None:
        self._barrier.tick(self.node.now_ms)
        self._send_orders()
        if self._barrier.deadline_ms is not None:
            due_us = self.node.at_us(self._barrier.deadline_ms) - self.simulation.now_us
            self.wake_after(max(0, due_us))

    def _on_made(self, made: SnapshotCreated) -> None:
        self._barrier.cancel()
        self._send_orders()
        super()._on_made(made)

    def _send_orders(self) -> None:
        for name, order in self._barrier.orders:
            self.node.send(f"barriers {name}", name, "barrier", order)
        self._barrier.orders.clear()


class BarrierStateMachine(StateMachineProcess):
    """A state machine that stops and writes its state with the workers."""

    def __init__(self, node: "TableNode") -> None:
        self.table_node = node
        self._stop_line = BarrierParticipant()
        self._commit = 0, 0
        super().__init__(node)
        self._reply(BarrierMessage(Phase.RESUME))

    def on_wake(self) -> None:
        now_ms = self.node.now_ms
        inbox, self.inbox = self.inbox, []
        for kind, *item in inbox:
            if kind == "barrier":
                at = self.applied_index, self.applied_term
                reply = self._stop_line.on_order(item[0], at, now_ms)
                if reply is not None:
                    self._reply(reply)
            else:
                self._commit = max(self._commit, (item[0], item[1]))
        self.target = self._stop_line.apply_limit(self._commit, self.applied_index, now_ms)
        self._apply_some()
        reply = self._stop_line.reply_when_written(self.applied_index)
        if reply is not None:
            self._write_and_reply(reply)
        deadline_ms = self._stop_line.deadline_ms
        if deadline_ms is not None:
            self.wake_after(max(0, self.node.at_us(deadline_ms) - self.simulation.now_us))

    def _write_and_reply(self, reply: BarrierMessage) -> None:
        self._stop_line.resume()
        state = self.node.checker.state_at(self.applied_index)
        try:
            write_state(self.files, self.applied_index, lambda write: write(state))
        except StorageError:
            reply = BarrierMessage(Phase.RESUME)
        self._reply(reply)
        self.wake_after(RETRY_US if self.applied_index >= self._commit[0] else 0)

    def _reply(self, reply: BarrierMessage) -> None:
        self.node.send("states", "sender", "state", self.participant_name, reply, None)

    participant_name = STATE_PART

    def _report_applied(self) -> None:
        self.table_node.report_applied(STATE_PART, self.applied_index, False)
