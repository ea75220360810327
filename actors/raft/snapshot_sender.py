"""Makes, sends and receives snapshots, and reads old entries: the slow reads of a peer.

It never talks to another node: raft_peer sends what it reads.
"""

import os
import struct
import time
from collections.abc import Iterator

from ...native.net.messages import Arena
from ...protocols.errors import LocalProtocolError
from ...protocols.zmqraft.server.values import REQIDS_EXTRA_TTL_S
from ...protocols.zmqraft.snapshots.barrier import Barrier, BarrierMessage, Phase
from ...protocols.zmqraft.snapshots.orders import (
    ChunkRead,
    ChunkWritten,
    CreateSnapshot,
    EntriesRead,
    Order,
    ReadChunk,
    Result,
    SenderStarted,
    SnapshotCreated,
    SnapshotInstalled,
    WriteChunk,
    decode_work,
    encode_work,
)
from ...storage.disk.disk import Disk
from ...storage.log.segment import Identity
from ...storage.snapshot.work import ReqidLimits, SnapshotWork
from ..runtime.actor import Actor
from ..runtime.process_loop import ProcessLoop
from ..runtime.setup import participants
from ..topology.settings import RaftSettings

BARRIER = struct.Struct("<BQQQ")  # Phase, attempt, index and term of the barrier's entry.
PHASES = frozenset(Phase)
ORDERS_HWM = 64


def reqid_limits(raft: RaftSettings) -> ReqidLimits:
    return ReqidLimits(raft.update_ttl_s + REQIDS_EXTRA_TTL_S, raft.reqids_max)


def barrier_messages(
    loop: ProcessLoop, arena: Arena, pipe: str
) -> Iterator[tuple[BarrierMessage, list[bytes]]]:
    """Decodes messages from the pipes of a barrier, with their other frames. Drops and logs those
    of an unknown phase."""
    for (phase, attempt, index, term), rest in loop.unpacked(arena, BARRIER, pipe):
        if phase in PHASES:
            yield BarrierMessage(Phase(phase), attempt, (index, term)), rest
        else:
            loop.log_rarely("malformed-dropped", pipe=pipe, phase=phase)


class SnapshotSender(Actor):
    """The process of one node's snapshots.

    orders     PULL   orders.encode_work()              from the raft peer
    results    PUSH   the same                          to the raft peer
    barriers   PUSH   [phase, attempt, index, term]([damage])
                                                        one to each process that applies the log;
                                                        RESUME may say how its state is damaged
    states     PULL   the same[actor]([directory])      from them. STOP: the entry that they have
                      applied. APPLY: the state as of that entry is written, into this directory or
                      by write_state()
    """

    role = "snapshot_sender"

    def on_start(self) -> None:
        self._work = SnapshotWork(
            Disk(self.setup.data_dir),
            Identity(self.setup.cluster, self.setup.node),
            reqid_limits(self.settings.raft),
        )
        for damaged in self._work.snapshots.damaged.values():
            self.log_problem(damaged)
        self._peer_epoch = 0
        self._receiving = 0, 0, 0  # Index, term, size of the last logged transfer.
        names = participants(self.settings)
        self._barrier = Barrier(names)
        self._parts: dict[str, Disk] = {}  # The directories of this attempt, by process.
        self._newest_file_s = self._file_s()
        self._counts = dict.fromkeys(("entries_read", "pieces_read", "made", "received"), 0)
        self._orders = self.pull("orders", self._on_orders, hwm=ORDERS_HWM)
        self.pull("states", self._on_states)
        self._results = self.pipe(self.push("raft_peer", "results", hwm=ORDERS_HWM))
        self._barriers = {name: self.push(name, "barriers") for name in names}
        self._send(SenderStarted(self._work.newest))
        self.ready()

    def _on_orders(self, arena: Arena) -> None:
        for frames in arena.messages():
            try:
                epoch, order = decode_work(frames)
            except LocalProtocolError:
                self.log_rarely("malformed-dropped", pipe="orders", size=len(frames[0]))
                continue
            if not isinstance(order, Order):
                self.log_rarely("malformed-dropped", pipe="orders", size=len(frames[0]))
                continue
            self._peer_epoch = epoch
            result = self._work.execute(order)
            self._log_order(order)
            if result is not None:
                self._send(result)
                self._count(result)

    def _log_order(self, order: Order) -> None:
        """Logs one line for each snapshot that is made, sent or received."""
        match order:
            case CreateSnapshot(index):
                self.log("making", index=index)
                if self._work.pending_make is not None:
                    self._barrier.start(index, self.now_ms)
            case ReadChunk(to, index, _, 0):
                self.log("sending", to=to, index=index)
            case WriteChunk(index, term, offset, size) if (index, term, size) != self._receiving:
                self._receiving = index, term, size
                self.log("receiving", index=index, offset=offset, size=size)

    def _count(self, result: Result) -> None:
        key = "received"
        match result:
            case EntriesRead():
                key = "entries_read"
            case ChunkRead():
                key = "pieces_read"
            case ChunkWritten(offset=0):
                self.log_rarely("received-damaged", index=result.last_index)
            case SnapshotInstalled():
                newest = self._work.newest
                self._newest_file_s = self._file_s()
                self.log("installed", index=newest.last_index, size=newest.size)
        self._counts[key] += 1

    def _on_states(self, arena: Arena) -> None:
        for reply, rest in barrier_messages(self, arena, "states"):
            name, *directory = (frame.decode("utf-8", "replace") for frame in rest or [b""])
            if reply.phase is Phase.STOP:
                self._parts.pop(name, None)
            elif directory:
                self._parts[name] = Disk(directory[0])
            written = self._barrier.on_reply(name, reply, self.now_ms)
            if written is not None:
                self._work.on_state_written(*written, self._parts)

    def _send(self, result: Result) -> None:
        self._results.send(encode_work(self._peer_epoch, result))

    def on_wake(self, now_ms: int) -> None:
        self._barrier.tick(now_ms)
        if self._work.busy:
            made = self._work.step()
            if made is not None:
                self._barrier.cancel()  # The processes may remove their parts now.
                self._on_made(made)
        damaged, damage = self._work.damaged_part
        for name, order in self._barrier.orders:
            frames = [BARRIER.pack(order.phase, order.attempt, *order.at)]
            if name == damaged and order.phase is Phase.RESUME:
                frames.append(damage.encode())
                self._work.damaged_part = "", ""
            self.send(self._barriers[name], frames)
        self._barrier.orders.clear()
        self.set_paused(self._orders, self._results.full)

    def _on_made(self, made: SnapshotCreated) -> None:
        self._send(made)
        if made.snapshot is None:
            self.log("not-made", reason=made.problem)
            return
        self._counts["made"] += 1
        self._newest_file_s = self._file_s()
        self.log("made", index=made.snapshot.last_index, size=made.snapshot.size)

    def _file_s(self) -> float:
        """When this node has made or received the newest snapshot (Unix time)."""
        info = self._work.snapshots.newest
        if info is None:
            return 0.0
        return os.stat(os.path.join(self.setup.data_dir, info.path)).st_mtime

    def deadline_ms(self) -> int | None:
        return 0 if self._work.busy else self._barrier.deadline_ms

    def on_stop(self) -> None:
        self._work.close()

    def status(self) -> dict[str, object]:
        newest = self._work.newest
        if not newest.last_index:
            return {"snapshot_index": 0, **self._counts}
        return {
            "snapshot_index": newest.last_index,
            "snapshot_size": newest.size,
            "snapshot_age_s": int(max(0.0, time.time() - self._newest_file_s)),
            "making": self._work.busy or self._work.pending_make is not None,
            **self._counts,
        }
