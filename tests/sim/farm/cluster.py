"""A whole farm under faults in virtual time. Each event of a server is a step, at which it or
its partner may be killed, or their connection lost.

Nothing here chooses the faults: farm/run.py uses random numbers, farm/flows.py goes through all
steps.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.peer import FarmPeer
from kelek.protocols.garlicfarm.server.values import FarmSnapshot
from kelek.protocols.garlicfarm.wire.codec import encode_request
from kelek.protocols.garlicfarm.wire.messages import (
    ClusterServer,
    FarmConfiguration,
    FarmLogEntry,
    MessageType,
    Request,
    SnapshotSync,
    ValueType,
)
from kelek.protocols.garlicfarm.wire.values import (
    LogPack,
    encode_configuration,
    encode_log_pack,
    encode_snapshot_sync,
)
from kelek.protocols.host.border import Requests
from kelek.protocols.raft.core import Raft, Role
from kelek.protocols.raft.membership import NO_MEMBERS, Configuration
from kelek.protocols.record import decode_block
from kelek.tests.protocols.garlicfarm.farm_cluster import (
    FarmCluster,
    FarmDisk,
    FarmRequester,
    FarmWire,
    server,
)
from kelek.tests.sim.checker import Checker, RuleBroken
from kelek.tests.sim.config_rules import ConfigRules
from kelek.tests.sim.simulation import US_PER_MS

STATE_BYTES = 900  # Bytes of a snapshot, sent in chunks of SETUP's snapshot_block_bytes.
LATE_MS_MAX = 3000
UNLED_MS = 1000  # A silent leader counts for so long.
BUSY_TURNS_MAX = 50  # Consecutive wakes without a pause.
SETUP = {"sync_entries_max": 6, "sync_gap": 3, "snapshot_block_bytes": 400}


# They would end the process.
FAILURES = LocalProtocolError, LookupError, TypeError, ValueError, AttributeError


class Killed(Exception):
    """A server ends in the middle of a step."""


class Step:
    """An event: the server, its partner, and its kind; `other` is None for a disk step."""

    __slots__ = ("actor", "name", "other")

    def __init__(self, name: str, actor: int, other: int | None = None) -> None:
        self.name, self.actor, self.other = name, actor, other

    def __repr__(self) -> str:
        return f"{self.name} at {self.actor}" + (f" of {self.other}" if self.other else "")


# By method: the steps before and after it.
DISK_STEPS = {
    "save": ("before save", "saved"),
    "append": ("before append", "appended"),
    "reset": ("before reset", "reset"),
    "write_snapshot": ("before piece", "piece"),
    "install_snapshot": ("before install", "installed"),
}


class SteppedDisk(FarmDisk):
    """A disk whose operations are two steps each: before and after."""

    def __init__(self, sim: "FarmSim", number: int, servers: tuple[ClusterServer, ...]) -> None:
        super().__init__(servers)
        self._sim, self._number = sim, number
        for method, names in DISK_STEPS.items():
            setattr(self, method, partial(self._run, getattr(self, method), *names))

    def _run(self, act: Callable[..., None], before: str, after: str, *arguments: object) -> None:
        self._sim.on_step(Step(before, self._number))
        act(*arguments)
        self._sim.on_step(Step(after, self._number))

    def install_snapshot(self, mark: FarmSnapshot) -> None:
        super().install_snapshot(mark)
        self._sim.check_snapshot(mark.last_index, self.snapshot)


class SingleSteps(ConfigRules):
    """Consecutive Configurations differ by at most one server."""

    def check(self, name: str, raft: Raft) -> None:
        """A leader appends a different Configuration only when the one before is committed."""
        super().check(name, raft)
        history = raft.log.configurations
        index = history.last_index
        if raft.role is not Role.LEADER or index <= max(raft.commit_index, history.first_index):
            return
        if raft.log.term_at(index) == raft.term and history.at(index) != history.at(index - 1):
            before = history.entry_at(index - 1)
            self.expect(raft.commit_index >= before, name, "two changes at a time:", before, index)

    def _check_step(self, name: str, before: Configuration, after: Configuration) -> None:
        changed = set(before.voters) ^ set(after.voters)
        right = (
            before == NO_MEMBERS or len(changed) <= 1
        )  # A joining server does not know the earlier ones.
        self.expect(right, name, "more than one server at a time:", before, after)


class FarmSim(FarmCluster):
    """Servers, and the rules that they must keep."""

    def __init__(self, seed: int, members: tuple[int, ...] = (1, 2, 3), everybody: int = 5) -> None:
        """everybody: the highest id that a server may have."""
        self.names = [str(number) for number in range(1, everybody + 1)]
        self.on_step: Callable[[Step], None] = lambda step: None
        self.partial = 0.0  # Probability that the opener loses a connection first.
        self.steps: Counter[str] = Counter()
        self.whole: dict[int, tuple[int, bytes]] = {}  # All entries committed by any server.
        self.acked: list[bytes] = []
        self._seen: dict[int, tuple[FarmPeer, Raft, int]] = {}
        self._busy: Counter[int] = Counter()
        super().__init__(seed, members)
        self.checker = Checker(self.simulation, self.names)
        self.checker.configs = SingleSteps(self.checker.expect)
        self.network.faults.spike_us = (US_PER_MS, LATE_MS_MAX * US_PER_MS)
        self.deaths = (Killed,)

    # Servers.

    def make_disk(self, number: int, servers: tuple[ClusterServer, ...]) -> FarmDisk:
        return SteppedDisk(self, number, servers)

    def start(self, number: int, servers: tuple[ClusterServer, ...] = (), **setup: int) -> None:
        super().start(number, servers, **(SETUP if number not in self.setups else {}), **setup)
        self.simulation.trace_event(number, "starts")

    def kill(self, number: int) -> None:
        self.simulation.trace_event(number, "is killed")
        super().kill(number)
        self.checker.on_stopped(str(number))
        self._seen.pop(number, None)

    def guarded(self, number: int, act: Callable[[], object]) -> None:
        try:
            super().guarded(number, act)
        except FAILURES as error:
            raise RuleBroken(f"{number} ends by {error!r}") from error

    def wipe(self, number: int) -> None:
        """Wipes a server's disk, only if no Configuration includes it."""
        del self.disks[number], self.setups[number]
        self.checker.on_wiped(str(number))

    # Connections.

    def disconnect(self, wire: FarmWire) -> None:
        """Sometimes the opener loses the connection first: the acceptor still receives what is
        under way, and its answers are dropped.
        """
        if wire.is_open() and self.partial and self.random.random() < self.partial:
            wire.connection.close_client_side()
            self.after(self.random.randint(1, LATE_MS_MAX), wire.connection.close)
        else:
            super().disconnect(wire)

    def before_message(self, data: bytes, actor: int, other: int) -> None:
        name = MessageType(data[0]).name
        self.steps[name] += 1
        self.on_step(Step(name, actor, other))

    # What must hold.

    def _check(self) -> None:
        checker = self.checker
        for number, peer in self.peers.items():
            name, core = str(number), peer.core
            known, raft, index = self._seen.get(number, (None, None, 0))
            if known is not peer or raft is not core:  # Since the start or the last invitation.
                checker.on_started(name, core)
                index = 0
            checker.on_event_of(name)
            self._seen[number] = (peer, core, self._note_committed(number, core, index))
            self._check_waits(number, peer)
        checker.after_event()

    def _check_waits(self, number: int, peer: FarmPeer) -> None:
        """An idle server waits for a deadline or input; otherwise its process would use a whole
        core.
        """
        self._busy[number] = self._busy[number] + 1 if peer.deadline_ms <= self.now_ms else 0
        if self._busy[number] > BUSY_TURNS_MAX:
            raise RuleBroken(f"{number} is busy, and nothing comes of it: {self.status()}")

    def _note_committed(self, number: int, core: Raft, known: int) -> int:
        """Checks the entries committed after index `known` against all other servers."""
        index = min(core.commit_index, core.durable_index)
        first = max(known, core.log.base_index) + 1
        if index < first:
            return max(known, index)
        for batch in self.disks[number].batches(first, index, core.term, 1 << 30):
            for at, record in enumerate(decode_block(batch.block)[1], batch.first_index):
                entry = (record.kind, record.data)
                if self.whole.setdefault(at, entry) != entry:
                    raise RuleBroken(f"{number} has committed something else at {at}")
        return index

    def state(self, index: int) -> bytes:
        """The state after an entry: the contents of a snapshot."""
        text = repr([self.whole[at] for at in range(1, index + 1)]).encode()
        return sha256(text).digest() * (STATE_BYTES // 32)

    def check_snapshot(self, index: int, data: bytes) -> None:
        if data != self.state(index):
            raise RuleBroken(f"another state in a snapshot up to {index}")

    def compact(self, number: int, keep_entries: int = 0) -> None:
        """A server makes a snapshot of its committed state."""
        core = self.peers[number].core
        index = min(core.commit_index, core.durable_index)
        if index > self.disks[number].mark.last_index and index <= len(self.whole):
            self.snapshot(number, self.state(index), keep_entries)

    def has_converged(self) -> bool:
        """Whether all members run with the same log and no change is in progress."""
        leader = self.leader
        if leader is None or not self.settled or self.peers[leader].membership.change is not None:
            return False
        ids = self.ids(leader)
        if any(number not in self.peers or self.ids(number) != ids for number in ids):
            return False
        cores = [self.peers[number].core for number in ids]
        ends = {(core.commit_index, core.log.last_index, core.durable_index) for core in cores}
        return len(ends) == 1

    def check_end(self) -> None:
        """After the faults, every acknowledged entry is in the log."""
        values = {data for _, data in self.whole.values()}
        lost = [value for value in self.acked if value not in values]
        if lost:
            raise RuleBroken(f"acknowledged but lost: {lost}")


class SimWriter(FarmRequester):
    """Writes one value and keeps the answer."""

    def __init__(self, sim: FarmSim, to: int, value: bytes) -> None:
        super().__init__(sim, to, PeerSession("somebody", None, False))
        self._sim, self._value = sim, value

    def _read(self, data: bytes, failure: str) -> None:
        before = len(self.answers)
        super()._read(data, failure)
        if any(answer.is_accepted for answer in self.answers[before:]):
            self._sim.acked.append(self._value)


class UnknownServer(FarmRequester):
    """A server of another farm, or a removed one, that still sends messages."""

    NUMBER = 99

    def __init__(self, sim: FarmSim, to: int) -> None:
        super().__init__(sim, to, PeerSession("stranger", self.NUMBER, False))
        self._sim = sim

    def disturb(self, kind: MessageType) -> None:
        """Claims a far higher term. Servers with a leader must keep their term and leader."""
        sim, to = self._sim, self.to
        peer = sim.peers.get(to)
        if peer is None or self.connection not in peer.inbound:
            return
        core = peer.core
        heard_ms = core.leaderless_ms(sim.now_ms)
        if not peer.is_member or core.leader is None or heard_ms > UNLED_MS:
            return  # An unknown leader may invite it or have a newer Configuration.
        before = (core.term, core.leader, core.role)
        data = encode_request(self._request(kind, core))
        sim.guarded(to, partial(peer.receive, Requests(self.connection, data), sim.now_ms))
        sim.turn()
        after = (core.term, core.leader, core.role)
        if sim.peers.get(to) is peer and (after != before or peer.core is not core):
            raise RuleBroken(f"a stranger's {kind.name} makes {before} {after}")

    def _request(self, kind: MessageType, core: Raft) -> Request:
        term, end = core.term + 1000, core.log.last_index
        configuration = FarmConfiguration(end + 1, 0, (server(self.NUMBER),))
        entry = FarmLogEntry(term, ValueType.APPLICATION, b"not ours")
        values = {
            MessageType.APPEND_ENTRIES: (ValueType.APPLICATION, b"not ours"),
            MessageType.JOIN_CLUSTER: (
                ValueType.CONFIGURATION,
                encode_configuration(configuration),
            ),
            MessageType.SYNC_LOG: (ValueType.LOG_PACK, encode_log_pack(LogPack((entry,), 0))),
            MessageType.INSTALL_SNAPSHOT: (
                ValueType.SNAPSHOT_SYNC,
                encode_snapshot_sync(
                    SnapshotSync(end + 10, term, configuration, 0, b"not ours", True)
                ),
            ),
        }
        entries = (FarmLogEntry(term, *values[kind]),) if kind in values else ()
        commit = 0 if kind is MessageType.REQUEST_VOTE else end
        last_term = max(core.log.last_term, 1)
        return Request(kind, self.NUMBER, self.to, term, last_term, end, commit, entries)
