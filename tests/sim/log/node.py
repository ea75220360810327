"""One node of a run: a disk and three processes, put together as the actors put them together.

What an actor does with sockets and clocks is done here with the network and the clock of the run;
everything between is the real thing: peer machine, core, codec, log, writer, hard state, reader.
"""

import math
from functools import partial
from random import Random
from typing import Any

from kelek.native.latency import IndexLatency
from kelek.native.log.updates import Reqids
from kelek.native.net import messages as native_messages
from kelek.native.net.messages import Arena
from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.host.border import LinkLost, Requests, Responses
from kelek.protocols.raft.core import Raft
from kelek.protocols.raft.lease import held
from kelek.protocols.raft.messages import AppendAck, AppendJob
from kelek.protocols.record import decode_block
from kelek.protocols.zmqraft.server.commits import CommitNotice
from kelek.protocols.zmqraft.server.peer import Peer
from kelek.protocols.zmqraft.server.values import Applied, Endpoint, PeerSetup
from kelek.protocols.zmqraft.snapshots.orders import encode_work, result_for
from kelek.protocols.zmqraft.steady.follower import SteadyFollowing
from kelek.protocols.zmqraft.steady.leader import SteadyLeading
from kelek.storage.errors import StorageError, StorageFull
from kelek.storage.log import repair
from kelek.storage.log.hard_state import HardStateFile
from kelek.storage.log.log import Log, Writer
from kelek.storage.log.peer_recovery import PeerFiles, RecoverySettings, add_vote, recover_peer
from kelek.storage.log.reader import LogReader
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.snapshot import newest
from kelek.storage.snapshot.work import write_state
from kelek.tests.sim.checker import AppliedEntry, Checker, RuleBroken
from kelek.tests.sim.log.disk import Halt, NodeDisk
from kelek.tests.sim.log.snapshot import KEEP, SenderProcess, restored
from kelek.tests.sim.network import Connection, Frames, Network
from kelek.tests.sim.simulation import US_PER_MS, Process

CLUSTER = "sim"
UNIX_S = 1_790_000_000
SEGMENT_BYTES = 64 << 10
APPLY_BYTES_MAX = 64 << 10
FULL_RETRY_US = 200 * US_PER_MS
CLOCK_RATES = 0.87, 1.15
FRAMES_MAX = 1 << 14  # Of the messages of a wake.
ENDPOINTS: tuple[Endpoint, ...] = ("url", "peer_url")

Source = tuple[type, str]  # Requests and an endpoint, or Responses and a peer.


class PeerProcess(Process):
    """Does the work of actors/raft/peer.py."""

    def __init__(self, node: "SimNode", epoch: int) -> None:
        super().__init__(node.simulation, f"{node.name}.peer")
        self.node = node
        self.epoch = epoch
        node.lease = 0, 0
        self.files = node.disk.open_process(self)
        self.hard_state = HardStateFile(self.files, node.identity)
        self.reader = LogReader(self.files, node.identity)
        self.peer: Peer | None = None
        self.following: SteadyFollowing | None = None
        self.leading: SteadyLeading | None = None
        self.links: dict[str, SimLink] = {}

    def start_peer(self) -> None:
        """The writer has recovered the log: reads it once and starts the peer."""
        reqids = Reqids(b"sixteen bytes...")
        home = PeerFiles(self.files, self.node.identity)
        setup = self.node.setup
        options = {"cache_bytes_max": self.node.cache_bytes_max}
        found = recover_peer(
            home,
            self.reader,
            reqids,
            RecoverySettings(KEEP, setup.urls, setup.peer_urls),
            **options,
        )
        stored = self.hard_state
        self.damage = damage = repair.pending_mark(self.files, stored.repaired)
        recovered = add_vote(found, self.epoch, stored, damage)
        random = Random(self.simulation.random.getrandbits(64))
        now_ms = self.node.now_ms
        self.peer = Peer(setup, recovered, reqids, self.reader, now_ms, random)
        self.following = SteadyFollowing(self.peer)
        self.leading = SteadyLeading(self.peer, (FRAMES_MAX, FRAMES_MAX))
        core = self.peer.core
        core.advance = partial(self._advance, core)  # type: ignore[method-assign]
        self.node.checker.on_started(self.node.name, self.peer.core)
        last_index, base_index = found.log.last_index, found.log.base_index
        self.simulation.trace_event(
            self.name, "begins at", base_index, last_index, self.peer.core.term
        )

    def _advance(self, core: Raft) -> bool:
        """A wake that advance() calls quiet must leave nothing undone."""
        if Raft.advance(core):
            return True
        commit_index, ready = core.commit_index, core.ready()
        done = ready.commit_index == commit_index and not any(ready[:6]) and not ready.read_index
        self.node.checker.expect(done, self.node.name, "a quiet wake leaves out", ready)
        self.simulation.counters["quiet wakes"] += 1
        return False

    def on_wake(self) -> None:
        try:
            self._step()
        except Halt as halt:
            self.node.on_halt(halt)
        except StorageError as error:
            self.simulation.trace_event(self.name, "ends:", error)
            self.node.on_exit(self)

    def _step(self) -> None:
        events, self.inbox = [event for (event,) in self.inbox], []
        for event in events:
            if isinstance(event, AppendAck):
                self._on_ack(event)
        peer = self.peer
        if peer is None:
            return
        now_ms = self.node.now_ms
        by_socket: dict[Source, list[Frames]] = {}
        for event in events:
            if isinstance(event, Requests | Responses):
                by_socket.setdefault((type(event), event[0]), []).append(event[1])
            elif isinstance(event, list):
                result = result_for(self.epoch, event)
                if result is not None:
                    peer.receive(result, now_ms)
            elif not isinstance(event, AppendAck):
                peer.receive(event, now_ms)
        unix_s = self.node.unix_ms // 1000
        for (kind, source), received in self._lead(peer, by_socket, now_ms, unix_s).items():
            messages = received
            if kind is Requests and source == "peer_url" and self.node.steady:
                messages = received[self._follow(peer, received, now_ms) :]
                if not messages:
                    continue
            arena = Arena.from_messages(messages)
            event = Requests(source, arena, unix_s)
            peer.receive(event if kind is Requests else Responses(source, arena), now_ms)
        self._wake_peer(peer, now_ms)

    def _follow(self, peer: Peer, messages: list[Frames], now_ms: int) -> int:
        """Has C handle messages of the leader, in a steady state for each. Returns how many."""
        following = self.following
        assert following is not None
        for number, message in enumerate(messages):
            if not following.may_begin:
                return number
            following.begin(None)
            done = following.native.follow(Arena.from_messages([message]), now_ms, peer.out.peers)
            following.end()
            if not done:
                return number
            self.node.steady_messages += 1
        return len(messages)

    def _lead(
        self, peer: Peer, by_socket: dict[Source, list[Frames]], now_ms: int, unix_s: int
    ) -> dict[Source, list[Frames]]:
        """Has C do the work of a leader's wake, in a steady state. Returns the messages that C has
        left to Python, with all behind updates that it has received in part."""
        leading = self.leading
        assert leading is not None
        latency = IndexLatency()
        state = None
        if self.node.leads and by_socket:
            state = leading.state(self.links.keys(), latency)
        if state is None or now_ms >= leading.deadline_ms(state, now_ms):
            return by_socket
        leading.begin(state, latency, None)
        native, names = leading.native, [each.peer for each in state.followers]
        outs = peer.out.clients, peer.out.peers
        left: dict[Source, list[Frames]] = {}
        unfinished: list[tuple[Endpoint, Arena, list[int], bool]] = []
        for (kind, source), received in by_socket.items():
            arena = Arena.from_messages(received)
            if any(rest for *_, rest in unfinished) or (kind is Responses and source not in names):
                left[kind, source] = received
            elif kind is Responses:
                done = native.answers(names.index(source), arena, now_ms)
                self.node.led_messages += done
                if done < len(received):
                    left[kind, source] = received[done:]
            else:
                place = ENDPOINTS.index(source)
                code, others = self._propose(place, arena, (now_ms, unix_s, now_ms * 1000), outs)
                self.node.led_messages += len(received) - len(others)
                if code or others:
                    unfinished.append((ENDPOINTS[place], arena, others, bool(code)))
        native.tick(now_ms)
        native.commit(now_ms * 1000, outs)
        if native.answer_reads(now_ms, outs[0]):
            for place in range(len(names)):
                native.send(place, now_ms)
        leading.end(latency)
        peer.updates.unix_s = max(unix_s, peer.updates.unix_s)
        for one in unfinished:
            peer.on_left(*one, now_ms)
        return left

    def _propose(
        self,
        place: int,
        arena: Arena,
        times: tuple[int, int, int],
        outs: tuple[native_messages.Frames, ...],
    ) -> tuple[int, list[int]]:
        assert self.leading is not None
        native = self.leading.native
        while True:
            code, others = native.propose(place, arena, times, outs[place])
            if code != native.GROW:
                return code, others
            native.intakes[place].make_room(code, outs[place])

    def _on_ack(self, ack: AppendAck) -> None:
        if ack.epoch != self.epoch:
            self.simulation.counters["acks of another epoch"] += 1
        elif self.peer is None:
            self.start_peer()
        else:
            self.peer.receive(ack, self.node.now_ms)

    def _wake_peer(self, peer: Peer, now_ms: int) -> None:
        """Carries out a wake in its order; a Halt in between leaves the rest undone."""
        wake = peer.wake(now_ms)
        node = self.node
        if wake.hard_state is not None:
            self.hard_state.withheld = wake.vote_withheld
            if self.damage is not None and not wake.repairing:
                self.hard_state.repaired, self.damage = self.damage.epoch, None
            self.hard_state.save(*wake.hard_state)
        node.lease = held(peer.core)
        for name in [name for name in self.links if name not in wake.urls]:
            self.links.pop(name).close()
        for name, frames in wake.out.links.items():
            if name not in self.links:
                self.links[name] = SimLink(self, node.others[name])
            for message in drain(frames):
                self.links[name].send(message)
        if wake.job is not None:
            node.send("jobs", "writer", wake.job)
        for frames in (wake.out.peers, wake.out.clients):
            for message in drain(frames):
                node.answer(message)
        for order in wake.orders:
            node.send("orders", "sender", "order", encode_work(self.epoch, order))
        if wake.compact is not None:
            self.simulation.counters["compacted"] += 1
            node.send("jobs", "writer", wake.compact)
        if wake.commit is not None:
            node.publish(wake.commit)
        node.checker.on_event_of(node.name)
        self.wake_after(max(0, node.at_us(peer.deadline_ms) - self.simulation.now_us))

    def kill(self) -> None:
        super().kill()
        self.node.checker.on_stopped(self.node.name)


def drain(frames: native_messages.Frames) -> list[Frames]:
    """Removes and returns the messages of an outgoing buffer."""
    messages = frames.messages()
    frames.clear()
    return messages


class SimLink:
    """A DEALER with one connection at a time, which it makes again after a loss."""

    def __init__(self, process: PeerProcess, target: "SimNode") -> None:
        self.process = process
        self.target = target
        self.connection: Connection | None = None
        self.closed = False
        self._connect()

    def _connect(self) -> None:
        """Connects when the other side listens, else tries again."""
        process, target = self.process, self.target
        if not process.alive or self.closed or self.connection is not None:
            return
        if target.peer_door.is_open():
            network = process.node.network
            self.connection = network.connect(process.node.name, target.peer_door, self)
        else:
            self._connect_later(20 * US_PER_MS)

    def _connect_later(self, delay_us_max: int) -> None:
        simulation = self.process.simulation
        simulation.after(simulation.between(100, delay_us_max), self._connect)

    def close(self) -> None:
        """Closes the link for good."""
        self.closed = True
        if self.connection is not None:
            self.connection.close()

    def send(self, frames: Frames) -> None:
        """Sends a message; without a connection it is dropped (ZMQ_IMMEDIATE)."""
        if self.connection is not None:
            self.connection.send(frames)
        else:
            self.process.simulation.counters["lost: no connection"] += 1

    def on_answer(self, connection: Connection, frames: Frames) -> None:
        self.process.post(Responses(self.target.name, frames))

    def on_closed(self, connection: Connection) -> None:
        if connection is self.connection:
            self.connection = None
            self._connect_later(60 * US_PER_MS)
            if self.process.simulation.chance(0.3):
                self.process.post(LinkLost(self.target.name))


class WriterProcess(Process):
    """Does the work of actors/raft/log_writer.py. While it syncs, jobs wait."""

    def __init__(self, node: "SimNode", epoch: int) -> None:
        super().__init__(node.simulation, f"{node.name}.writer")
        self.node = node
        self.epoch = epoch
        self.files = node.disk.open_process(self)
        snapshot = newest(self.files, node.identity)
        self.log = Log(
            self.files,
            node.identity,
            segment_bytes=SEGMENT_BYTES,
            epoch=epoch,
            base=(0, 0) if snapshot is None else (snapshot.index, snapshot.term),
        )
        if self.log.damage is not None:  # No fault of ours flips a bit: a bug has.
            raise RuleBroken(f"{node.name} has damaged its own log: {self.log.damage.problem}")
        self.writer = Writer(self.log, epoch)
        self._flush_us: int | None = None
        self.simulation.trace_event(self.name, "recovered up to", self.log.last_index)

    def on_wake(self) -> None:
        try:
            self._step()
        except Halt as halt:
            self.node.on_halt(halt)
        except (StorageError, LocalProtocolError) as error:
            self.simulation.trace_event(self.name, "ends:", type(error).__name__, error)
            self.simulation.counters[type(error).__name__] += 1
            self.node.on_exit(self)

    def _step(self) -> None:
        if self._flush_us is not None:
            if self.simulation.now_us < self._flush_us:
                self.wake_after(self._flush_us - self.simulation.now_us)
                return
            self._flush_us = None
            if not self._flush():
                return
        if self.inbox:
            inbox, self.inbox = self.inbox, []
            for (job,) in inbox:
                if isinstance(job, AppendJob):
                    self.writer.enqueue(job)
                else:
                    self.log.compact(job)
            self._flush_later(self.node.sync_us())
        elif self.log.background_step():
            self.wake_after(1000)

    def _flush_later(self, delay_us: int) -> None:
        self._flush_us = self.simulation.now_us + delay_us
        self.wake_after(delay_us)

    def _flush(self) -> bool:
        """One write and sync; when the disk is full it says so and tries again later."""
        try:
            seq = self.writer.flush()
        except StorageFull:
            self.simulation.counters["disk full"] += 1
            self.node.send("acks", "peer", AppendAck(self.epoch, 0, is_full=True))
            self._flush_later(FULL_RETRY_US)
            return False
        if seq is not None:
            self.node.send("acks", "peer", AppendAck(self.epoch, seq))
        return True

    def post(self, *item: Any) -> None:
        if self.alive:
            self.inbox.append(item)
            if self._flush_us is None:
                self.wake_after(self.simulation.between(5, self.WAKE_US_MAX))


class StateMachineProcess(Process):
    """Does the work of actors/raft/state_machine.py: applies committed and durable entries."""

    def __init__(self, node: "SimNode") -> None:
        super().__init__(node.simulation, f"{node.name}.state_machine")
        self.node = node
        self.files = node.disk.open_process(self)
        self.reader = LogReader(self.files, node.identity)
        self.applied_index = self.applied_term = 0
        self.target: tuple[int, int] = (0, 0)
        self.barrier: int | None = None
        self._restore()

    def _restore(self) -> None:
        """From the newest snapshot, when it is ahead of us."""
        found = newest(self.files, self.node.identity)
        if found is None or found.index <= self.applied_index:
            return
        snapshot = restored(self.node, self.files)
        if snapshot is not None:
            self.applied_index, self.applied_term = snapshot[0], found.term
            self.node.checker.on_restored(self.node.name, *snapshot)

    def on_wake(self) -> None:
        inbox, self.inbox = self.inbox, []
        for kind, *item in inbox:
            if kind == "barrier":
                self.barrier = item[0]
            elif item[0] > self.target[0]:
                self.target = (item[0], item[1])
        self._apply_some()
        if self.barrier is not None and self.applied_index >= self.barrier:
            self._write_state()

    def _apply_some(self) -> None:
        if self.applied_index >= self.target[0]:
            return
        first_index = self.applied_index + 1
        batches = self.reader.batches(first_index, *self.target, APPLY_BYTES_MAX)
        if not batches and first_index <= self.reader.base()[0]:
            self._restore()
        for batch in batches:
            self._apply(batch.block)
        self._report_applied()
        if self.applied_index < self.target[0]:
            self.wake_after(2000)

    def _report_applied(self) -> None:
        if self.node.peer is not None:
            # As if a client of tables came and went.
            waits = self.simulation.now_ms % 1000 < 300
            self.node.peer.post(Applied(self.applied_index, self.applied_index, clients_wait=waits))

    def _apply(self, block: bytes) -> None:
        batch, records = decode_block(block)
        for index, record in enumerate(records, batch.first_index):
            if index > self.applied_index:
                assert index == self.applied_index + 1
                entry = AppliedEntry(batch.term, record.kind, record.reqid, record.data)
                self.node.checker.on_applied(self.node.name, index, entry)
                self.applied_index, self.applied_term = index, batch.term

    def _write_state(self) -> None:
        self.barrier = None
        state = self.node.checker.state_at(self.applied_index)
        try:
            write_state(self.files, self.applied_index, lambda write: write(state))
        except StorageFull:
            return
        self.node.send("states", "sender", "state", self.applied_index, self.applied_term)


class NodeRouter:
    """One of a node's two ROUTERs."""

    def __init__(self, node: "SimNode", kind: str) -> None:
        self.node = node
        self.host = node.name
        self.kind = kind

    def is_open(self) -> bool:
        process = self.node.peer
        return process is not None and process.alive and process.peer is not None

    def on_request(self, connection: Connection, frames: Frames) -> None:
        self.node.routes[connection.route] = connection
        assert self.node.peer is not None
        self.node.peer.post(Requests(self.kind, [connection.route, *frames]))


class SimNode:
    """A machine: its disk survives, its processes are restarted by its supervisor."""

    def __init__(
        self, name: str, names: list[str], network: Network, checker: Checker, options: Any
    ) -> None:
        self.name = name
        self.simulation = network.simulation
        self.network = network
        self.checker = checker
        self.identity = Identity(CLUSTER, name)
        self.setup = PeerSetup(
            cluster=CLUSTER,
            peer_id=name,
            urls={other: f"tcp://{other}:1" for other in names},
            peer_urls={other: f"tcp://{other}:2" for other in names},
            **options,
        )
        self.url = self.setup.urls[name]
        self.others: dict[str, SimNode] = {}
        self.disk = NodeDisk(self.simulation, name)
        self.peer_door = NodeRouter(self, "peer_url")
        self.client_door = NodeRouter(self, "url")
        self.routes: dict[bytes, Connection] = {}
        self.peer: PeerProcess | None = None
        self.writer: WriterProcess | None = None
        self.state_machine: StateMachineProcess | None = None
        self.sender: SenderProcess | None = None
        self.skew_s = self.simulation.between(-20, 20)
        # Any two differ by less than a third, as leases of reads demand. Drawn from other dice, so
        # that a seed keeps its other choices.
        self.clock_rate = Random(f"{self.simulation.seed} {name}").uniform(*CLOCK_RATES)
        self.cache_bytes_max = self.simulation.random.choice([2_000, 20_000, 16 << 20])
        self.slow_until_us = 0
        self.off = False  # Power is off: nothing starts.
        self.steady = True  # C handles messages of the leader (csrc/steady).
        self.steady_messages = 0
        self.leads = self.simulation.seed % 4 == 2  # C does a leader's work, too.
        self.led_messages = 0
        self.lease = 0, 0  # As its processes read it, also while the peer is dead.
        self._published: CommitNotice | None = None
        self._pipes: dict[str, int] = {}
        self._epoch = 0
        self._unit = 0  # The number of the restart unit that lives, or will start.

    @property
    def leased_index(self) -> int:
        """The index that the node's processes find in its peer's lease now, or 0."""
        until_ms, index = self.lease
        return index if self.now_ms < until_ms else 0

    @property
    def now_ms(self) -> int:
        """What the clock of this node shows."""
        return int(self.simulation.now_us * self.clock_rate) // US_PER_MS

    @property
    def unix_ms(self) -> int:
        """What its wall clock shows."""
        return 1000 * (UNIX_S + self.skew_s) + self.now_ms

    def at_us(self, now_ms: int) -> int:
        """When the clock of this node will show that time, in the time of the run."""
        return math.ceil(now_ms * US_PER_MS / self.clock_rate)

    # The supervisor.

    def start(self) -> None:
        """Starts everything: the unit of writer and peer, and the state machine."""
        self.off = False
        self.start_unit()
        self.start_state_machine()
        self.start_sender()

    def start_unit(self) -> None:
        """Starts a new epoch: the writer recovers the log, then the peer reads it."""
        self._unit += 1
        self._epoch = self._new_epoch()
        try:
            self.peer = PeerProcess(self, self._epoch)
            self.start_writer(self._epoch)
        except Halt as halt:
            self.on_halt(halt)
        except StorageError as error:
            self.simulation.trace_event(self.name, "can't start:", error)
            self.simulation.counters["start refused"] += 1
            self.kill_unit()
            self._start_unit_later()

    def _new_epoch(self) -> int:
        """Nanoseconds, as the supervisor gives them: never a number with few bits set."""
        return max(self._epoch + 1, UNIX_S * 10**9 + self.simulation.now_us * 1000)

    def start_writer(self, epoch: int) -> None:
        self.writer = WriterProcess(self, epoch)
        self.send("acks", "peer", AppendAck(epoch, 0))
        self.writer.wake_after(1000)

    def start_state_machine(self) -> None:
        if not self.off:
            self.state_machine = self._make_state_machine()
            if self._published is not None:  # A subscriber that comes late is told again.
                self.state_machine.post("commit", *self._published[:2])

    def _make_state_machine(self) -> StateMachineProcess:
        return StateMachineProcess(self)

    def _make_sender(self) -> SenderProcess:
        return SenderProcess(self)

    def processes(self) -> list[Process]:
        """Those that run."""
        found = (self.peer, self.writer, self.state_machine, self.sender)
        return [process for process in found if process is not None]

    def start_sender(self) -> None:
        if self.off or self.sender is not None:
            return
        try:
            self.sender = self._make_sender()
        except Halt as halt:
            self.on_halt(halt)
        except StorageError as error:
            self.simulation.trace_event(self.name, "the sender can't start:", error)
            self.simulation.after(50 * US_PER_MS, self.start_sender)

    def kill_sender(self) -> None:
        if self.sender is not None:
            self.sender.kill()
            self.disk.close_process(self.sender)
            self.sender = None
            self.simulation.after(self.simulation.between(5, 300) * US_PER_MS, self.start_sender)

    def kill_unit(self) -> None:
        """Peer and writer end together, and are started together."""
        self.network.close_host(self.name)
        for process in (self.peer, self.writer):
            if process is not None:
                process.kill()
                self.disk.close_process(process)
        self.peer = self.writer = None
        self._published = None
        self.routes.clear()

    def _start_unit_later(self) -> None:
        delay_us = self.simulation.between(20, 250) * US_PER_MS
        self.simulation.after(delay_us, self._restart_unit, self._unit)

    def _restart_unit(self, unit: int) -> None:
        if unit == self._unit and not self.off and self.peer is None:
            self.start_unit()

    def on_exit(self, process: Process) -> None:
        """A process of the unit has ended: the supervisor notices after a while."""
        process.kill()
        self.disk.close_process(process)
        if process is self.peer:
            self.network.close_host(self.name)
        delay_us = self.simulation.between(1, 20) * US_PER_MS
        self.simulation.after(delay_us, self._on_exit_noticed, self._unit)

    def _on_exit_noticed(self, unit: int) -> None:
        if unit == self._unit and not self.off:
            self.kill_unit()
            self._start_unit_later()

    def on_halt(self, halt: Halt) -> None:
        """The machine or its processes died during a write."""
        if halt.power:
            self.power_off()
        else:
            self.kill_all()
        self.start_later(halt.down_ms)

    def kill_all(self) -> None:
        """Sends SIGKILL to all processes: written data stays readable, synced or not."""
        self.kill_unit()
        self._unit += 1
        if self.state_machine is not None:
            self.state_machine.kill()
            self.disk.close_process(self.state_machine)
            self.state_machine = None
        if self.sender is not None:
            self.sender.kill()
            self.disk.close_process(self.sender)
            self.sender = None
        self.off = True

    def power_off(self) -> None:
        """Keeps, drops or tears unsynced data, sector by sector."""
        self.kill_all()
        self.lease = 0, 0
        self.disk.power_loss()

    def wipe(self) -> None:
        """The machine gets an empty disk."""
        self.disk.wipe()

    def start_later(self, down_ms: int) -> None:
        self.simulation.after(down_ms * US_PER_MS, self._restart, self._unit)

    def _restart(self, unit: int) -> None:
        if unit == self._unit and self.off:
            self.start()

    def kill_state_machine(self) -> None:
        if self.state_machine is not None:
            self.state_machine.kill()
            self.disk.close_process(self.state_machine)
            self.state_machine = None
            self.simulation.after(
                self.simulation.between(5, 300) * US_PER_MS, self._restart_state_machine
            )

    def _restart_state_machine(self) -> None:
        if self.state_machine is None:
            self.start_state_machine()

    def restart_writer_alone(self, *, same_epoch: bool) -> None:
        """A forbidden restart: for a moment the old peer uses a new writer."""
        if self.writer is None or self.peer is None:
            return
        self.on_exit(self.writer)  # The peer follows, but not at once.
        epoch = self._epoch
        if not same_epoch:
            epoch = self._epoch = self._new_epoch()
        try:
            self.start_writer(epoch)
        except Halt as halt:
            self.on_halt(halt)
        except StorageError as error:
            self.simulation.trace_event(self.name, "the writer can't start:", error)

    # The pipes between the processes.

    def send(self, pipe: str, to: str, *item: Any) -> None:
        """Sends to a process: in order, and lost when it has ended."""
        at_us = self.simulation.now_us + self.simulation.between(10, 120)
        at_us = self._pipes[pipe] = max(at_us, self._pipes.get(pipe, 0))
        self.simulation.after(at_us - self.simulation.now_us, self._deliver, pipe, to, item)

    def _deliver(self, pipe: str, to: str, item: tuple[Any, ...]) -> None:
        process = self.process(to)
        if process is not None and process.alive:
            process.post(*item)
        else:
            self.simulation.counters[f"{pipe} lost"] += 1

    def process(self, name: str) -> Process | None:
        """The process of this name, if it runs."""
        found: Process | None = getattr(self, name)
        return found

    def publish(self, commit: CommitNotice) -> None:
        self._published = commit
        self.send("commits", "state_machine", "commit", *commit[:2])

    def answer(self, message: Frames) -> None:
        route, *frames = message
        connection = self.routes.get(route)
        if connection is None or not connection.open:
            self.simulation.counters["lost: no route"] += 1
        else:
            connection.answer(frames)

    def sync_us(self) -> int:
        """How long the disk takes for the next sync."""
        low, high = (300, 1_500)
        if self.simulation.now_us < self.slow_until_us:
            low, high = (20_000, 250_000)
        return self.simulation.between(low, high)
