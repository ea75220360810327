"""Two leaders in the same stream of updates and answers: one in Python, one that leads in C."""

from random import Random
from typing import Any

from kelek.native.latency import IndexLatency
from kelek.native.log.steady import CLIENTS, TABLES
from kelek.native.log.updates import Reqids
from kelek.native.net.messages import Arena
from kelek.protocols.host.border import Requests, Responses
from kelek.protocols.raft.core import Role
from kelek.protocols.raft.lease import held
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.messages import AppendAck, AppendResponse, HardState, RaftTuning, Vote
from kelek.protocols.zmqraft.server.peer import Peer
from kelek.protocols.zmqraft.server.values import Applied, Endpoint, PeerSetup, Recovered
from kelek.protocols.zmqraft.steady.leader import SteadyLeading
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire.values import APPEND_PACKED, HELLO, Feature, encode_uint
from kelek.tests.protocols.zmqraft.steady.twins import (
    CLUSTER,
    NAMES,
    NOW_S,
    MemoryLog,
    Message,
    take,
)

FOLLOWERS = NAMES[1:]
ACCEPTED = b"\x01"
# Of one update and of a pack: they come with a full wake of Python, up to 50 ms late.
REMINDERS = [ACCEPTED], [b"k=", ACCEPTED, b""]
MARK = b"kLT\1"  # Of packed operations on tables.
ENDPOINTS: tuple[Endpoint, ...] = ("url", "peer_url")


class TwinLeader:
    """A leader, and the log writer that it gives its jobs to, one sync at a time."""

    holds_tables = True  # Its node has a table server.

    def __init__(self) -> None:
        urls = {name: f"tcp://{name}" for name in NAMES}
        peer_urls = {name: f"tcp://{name}.peers" for name in NAMES}
        tuning = RaftTuning(60_000, 60_000, lease_reads=True)
        setup = PeerSetup(
            CLUSTER.decode(), "n1", urls, peer_urls, tuning=tuning, holds_tables=self.holds_tables
        )
        recovered = Recovered(1, RaftLog(), HardState(), voter=True, vote_withheld=False)
        self.log = MemoryLog()
        self.reqids = Reqids(b"sixteen bytes...")
        self.peer = Peer(setup, recovered, self.reqids, self.log, 0, Random(1))
        self.jobs: list[int] = []
        self.syncing: int | None = None
        self.sent: dict[str, list[Message]] = {
            name: [] for name in (*FOLLOWERS, "clients", "tables")
        }
        self._elect()

    def _elect(self) -> None:
        peer, now_ms = self.peer, 1000
        peer.wake(now_ms)
        for name in FOLLOWERS:
            hello = own.Hello(name, "1", tuple(Feature), incarnation=7, voter=True)
            frames = own.HELLO_REQUEST.encode(hello, b"\x07", CLUSTER)
            arena = Arena.from_messages([[b"route", *frames]])
            peer.receive(Requests("peer_url", arena), now_ms)
        now_ms = peer.core.deadline_ms
        peer.wake(now_ms)
        for pre_vote in (True, False):
            core = peer.core
            core.step("n2", Vote(core.term + pre_vote, True, pre_vote), now_ms)
            self.wake(now_ms)
        assert peer.core.role is Role.LEADER
        while not self._is_settled(peer):  # Entries of the new leader, and of its table server.
            now_ms += 10
            self.wake(now_ms)
            self.write()
            self.sync(now_ms)
            for name in FOLLOWERS:
                messages, self.sent[name] = self.sent[name], []
                answers = [accepting(message) for message in messages]
                self.answers(name, answers, now_ms)
        self.began_ms = now_ms

    def _is_settled(self, peer: Peer) -> bool:
        is_known = peer.directory.latest.operations or not self.holds_tables
        return bool(is_known) and peer.core.commit_index == peer.core.log.last_index > 0

    def wake(self, now_ms: int) -> None:
        wake = self.peer.wake(now_ms)
        if wake.job is not None:
            self.jobs.append(wake.job.seq)
            self.log.blocks += wake.job.blocks
        self.flush()

    def flush(self) -> None:
        """Answers hellos, and keeps what else was sent."""
        out = self.peer.out
        for name, frames in out.links.items():
            for message in take(frames):
                if message[1] == HELLO:
                    hello = own.Hello(name, "1", tuple(Feature), incarnation=7, voter=True)
                    answer = own.HELLO_ANSWER.encode(hello, message[0])
                    arena = Arena.from_messages([answer])
                    self.peer.receive(Responses(name, arena), self.peer.core.deadline_ms)
                elif message[1] == APPEND_PACKED:  # Votes have ended.
                    self.sent[name].append(message)
        self.sent["clients"] += [m for m in take(out.clients) if m[2:] not in REMINDERS]
        answers = [m for m in take(out.peers) if m[0] != b"route"]
        self.sent["tables"] += [m for m in answers if m[2:] not in REMINDERS]

    # ---- events ----

    def time(self, now_ms: int) -> None:
        self.wake(now_ms)

    def updates(self, source: int, messages: list[Message], now_ms: int) -> None:
        arena = Arena.from_messages(messages)
        self.peer.receive(Requests(ENDPOINTS[source], arena, NOW_S), now_ms)
        self.wake(now_ms)

    def answers(self, name: str, messages: list[Message], now_ms: int) -> None:
        self.peer.receive(Responses(name, Arena.from_messages(messages)), now_ms)
        self.wake(now_ms)

    def noticed(self, now_ms: int) -> int:
        """The last index that processes have been told, so that they may apply it."""
        return self.peer.commits.index

    def apply(self, index: int, now_ms: int) -> None:
        self.peer.receive(Applied(index, index), now_ms)
        self.wake(now_ms)

    def write(self) -> None:
        if self.syncing is None and self.jobs:
            self.syncing = self.jobs[-1]

    def sync(self, now_ms: int) -> None:
        if self.syncing is not None:
            self.jobs = [seq for seq in self.jobs if seq > self.syncing]
            seq, self.syncing = self.syncing, None
            self.peer.receive(AppendAck(1, seq), now_ms)
            self.wake(now_ms)

    def settle(self, now_ms: int) -> None:
        self.wake(now_ms)
        for _ in range(2):
            self.write()
            self.sync(now_ms)

    def pop_sent(self) -> dict[str, list[Message]]:
        sent, self.sent = self.sent, {name: [] for name in self.sent}
        return sent

    def state(self) -> dict[str, Any]:
        """What must be equal whenever Python has the core."""
        core = self.peer.core
        return {
            "role": (core.role, core.term),
            "log": (core.log.last_index, core.log.last_term),
            "commit": core.commit_index,
            "durable": core.durable_index,
            "round": core.read_round,
            "lease": list(core.lease.starts),
            "followers": [
                (
                    it.peer,
                    it.state,
                    it.next_index,
                    it.match_index,
                    list(it.inflight),
                    [it.sent_commit_index, it.answered_round, it.sent_round],
                    [it.sent_ms, it.heard_ms, it.clients_wait],
                )
                for it in core.followers
            ],
            "unanswered": {
                name: [link.pending_count, *sorted(link.unanswered)]
                for name, link in self.peer.links.by_peer.items()
            },
            "waiting": self.peer.updates.waiting,
            "reads": (self.peer.reads.waiting, self.peer.reads.unapplied_count),
            "read counters": self.peer.reads.counters(),
            "by lease": core.lease.answered,
            "counters": self.peer.updates.counters(),
            "blocks": self.log.blocks,
        }


class LeadingTwin(TwinLeader):
    """The same with C for steady states, which begin and end by dice."""

    is_steady = False

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self.leading = SteadyLeading(self.peer, (1 << 14, 1 << 14))
        self.latency = IndexLatency()
        self.led = 0  # Events in C.
        self.unsent = 0  # Batches that waited for room in a window when C began.
        self._names: list[str] = []
        self._deadline_ms = 0
        self._turn_ms = 0  # When the last turn came; leases of before do not matter.

    def _begin(self, now_ms: int) -> None:
        if self.is_steady or self._random.random() < 0.1:
            return
        state = self.leading.state(FOLLOWERS, self.latency)
        if state is None:
            return
        self._deadline_ms = self.leading.deadline_ms(state, now_ms)
        if now_ms < self._deadline_ms:
            self.leading.begin(state, self.latency, None)
            self.unsent += len(state.unsent)
            self._turn_ms = now_ms
            self._names = [it.peer for it in state.followers]
            self.is_steady = True

    def _turn(self, now_ms: int) -> None:
        """The rest of a wake in C."""
        native = self.leading.native
        self.led += 1
        self._turn_ms = now_ms
        native.tick(now_ms)
        assert native.beat(now_ms)
        outs = self.peer.out.clients, self.peer.out.peers
        native.commit(now_ms * 1000, outs)
        answered = native.answer_reads(now_ms, outs[CLIENTS])
        # Else Python sends them, in the round that the reads have begun.
        sent = [answered and native.send(at, now_ms) for at in range(len(self._names))]
        for updates, out in zip(native.intakes, outs, strict=True):
            updates.remind(now_ms, out)
        self.flush()
        if not all(sent):
            self.leave(now_ms)

    def leave(self, now_ms: int) -> None:
        if self.is_steady:
            self._leave()
            self.wake(now_ms)

    def _leave(self) -> None:
        until_ms = self.leading.native.lease_ms
        others = self.leading.native.leader.others
        given = self.leading.end(self.latency)
        self.is_steady = False
        shared_ms = held(self.peer.core)[0]
        ours, theirs = (max(each, self._turn_ms) for each in (until_ms, shared_ms))
        # C forgets what voters have promised that it does not replicate to.
        assert ours <= theirs if others else ours == theirs, "the shared lease"
        self.log.blocks += [batch.block for batch in given.batches]
        if given.seq:
            self.jobs.append(given.seq)
            self.syncing = given.seq

    # ---- events ----

    def time(self, now_ms: int) -> None:
        due_ms = min(self._deadline_ms, self.leading.native.due_ms)
        if self.is_steady and now_ms < due_ms and self._random.random() < 0.95:
            self._turn(now_ms)
            return
        if self.is_steady:
            self._leave()
        super().time(now_ms)
        self._begin(now_ms)

    def updates(self, source: int, messages: list[Message], now_ms: int) -> None:
        if not self.is_steady:
            super().updates(source, messages, now_ms)
            return
        peer = self.peer
        out = (peer.out.clients, peer.out.peers)[source]
        arena = Arena.from_messages(messages)
        times, native = (now_ms, NOW_S, now_ms * 1000), self.leading.native
        others: list[int] = []
        while True:
            code, others = native.propose(source, arena, times, out)
            if code != native.GROW:
                break
            native.intakes[source].make_room(code, out)
        self._turn(now_ms)
        if code or others:
            self.leave(now_ms)
            peer.updates.unix_s = NOW_S
            peer.on_left(ENDPOINTS[source], arena, others, bool(code), now_ms)
            self.wake(now_ms)

    def answers(self, name: str, messages: list[Message], now_ms: int) -> None:
        done = 0
        if self.is_steady and name in self._names:
            arena = Arena.from_messages(messages)
            done = self.leading.native.answers(self._names.index(name), arena, now_ms)
            if done == len(messages):
                self._turn(now_ms)
                return
            self.led += done
        if self.is_steady:
            self._leave()
        super().answers(name, messages[done:], now_ms)

    def noticed(self, now_ms: int) -> int:
        self.leave(now_ms)  # In a process C tells of the commit.
        return super().noticed(now_ms)

    def write(self) -> None:
        if self.is_steady:
            self.leading.native.log.start_sync()
        else:
            super().write()

    def sync(self, now_ms: int) -> None:
        if not self.is_steady:
            super().sync(now_ms)
        elif self.leading.native.log.is_syncing:
            self.leading.native.log.finish_sync()
            self._turn(now_ms)

    def settle(self, now_ms: int) -> None:
        if self.is_steady:
            self._leave()
        super().settle(now_ms)


def accepting(message: Message) -> Message:
    """The answer of a follower that has all entries of an AppendEntries on its disk."""
    append = own.APPEND_PACKED_REQUEST.decode(message, CLUSTER)
    last = append.batches[-1].last_index if append.batches else append.prev_index
    message_id = int.from_bytes(message[0], "little")
    return own.APPEND_PACKED_ANSWER.encode(AppendResponse(append.term, True, last), message_id)


class ClientScript:
    """Messages of clients; some are repeated, malformed, or no updates."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._number = 0
        self._old: list[Message] = []
        self._old_packs: list[Message] = []

    def message(self) -> Message:
        random = self.random
        if self._old and random.random() < 0.05:
            return random.choice(self._old)
        self._number += 1
        reqid = NOW_S.to_bytes(4, "big") + self._number.to_bytes(8, "big")
        route, data = b"client%d" % random.randrange(3), random.randbytes(random.choice([1, 40]))
        made: Message = [route, reqid, b"=", data]
        roll = random.random()
        if roll < 0.3:
            made = [route, reqid, b"=", CLUSTER, data]
        elif roll < 0.5:
            reqids = [reqid[:4] + bytes([at]) + reqid[5:] for at in range(1, 4)]
            made = [route, reqids[0], b"k=", CLUSTER, b"", own.pack_records(reqids, [data] * 3)]
        elif roll < 0.53:
            made = [route, reqid[:8], b"=", data]
        elif roll < 0.56:
            made = [route, b"id", b"%"]
        elif roll < 0.57:
            made = [route, reqid]
        elif roll < 0.85:
            wait = random.choices([[b"\1"], [b"\0"], [], [b"\2"]], [90, 4, 3, 3])[0]
            made = [route, b"read%d" % (self._number % 100), b"kR", CLUSTER, *wait]
        if len(reqid) == len(made[1]) == 12:
            self._old.append(made)
        return made

    def pack(self) -> Message:
        """Of a table server, at `peer_url`; some are repeated, unmarked, or no packs."""
        random = self.random
        if self._old_packs and random.random() < 0.05:
            return random.choice(self._old_packs)
        self._number += 1
        first = NOW_S.to_bytes(4, "big") + b"\1" + self._number.to_bytes(7, "big")
        reqids = [first[:5] + bytes([at]) + first[6:] for at in range(random.choice([1, 3]))]
        data = MARK + random.randbytes(random.choice([1, 40]))
        route = b"server%d" % random.randrange(2)
        roll = random.random()
        if roll < 0.04:
            data = b"no mark"
        packed = own.pack_records(reqids, [data] * len(reqids))
        made: Message = [route, reqids[0], b"k=", CLUSTER, b"", packed]
        if 0.9 < roll < 0.93:
            made = [route, b"id", b"%"]
        elif roll > 0.98:
            made[5] = packed[:-1]
        self._old_packs.append(made)
        return made


class FollowerScript:
    """A follower's answers to what it was sent, in order; some are unusual."""

    def __init__(self, random: Random, name: str) -> None:
        self.random, self.name = random, name
        self.inbox: list[Message] = []
        self._clients_wait = False

    def answer(self) -> list[Message]:
        count = self.random.randint(1, len(self.inbox))
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        return [self._answer(message) for message in taken]

    def _answer(self, message: Message) -> Message:
        random, message_id = self.random, int.from_bytes(message[0], "little")
        assert message[1] == APPEND_PACKED
        append = own.APPEND_PACKED_REQUEST.decode(message, CLUSTER)
        last = append.batches[-1].last_index if append.batches else append.prev_index
        if random.random() < 0.1:
            self._clients_wait = not self._clients_wait
        good = AppendResponse(append.term, True, last, clients_wait=self._clients_wait)
        roll = random.random()
        if roll < 0.02:  # It has lost what came between, or only says so.
            good = AppendResponse(append.term, False, 0, append.prev_index + 1, 0)
        elif roll < 0.04:
            good = good._replace(match_index=last + 1000)
        elif roll < 0.06:
            good = good._replace(term=append.term - 1)
        elif roll < 0.08:
            message_id += 5000
        elif roll < 0.1:
            good = good._replace(match_index=max(0, append.prev_index))
        frames = own.APPEND_PACKED_ANSWER.encode(good, message_id)
        if roll > 0.99:
            frames = random.choice([frames[:3], [*frames, b""], [b"12345", *frames[1:]]])
        if 0.98 < roll < 0.985:
            frames[0] = encode_uint(message_id) + b"\0"
        return frames


def compare_leaders(seed: int, steps: int = 200) -> tuple[int, int]:
    """Runs both leaders through one stream. Raises AssertionError where they differ; returns how
    many events C has handled, and how many batches it had to send that were from before."""
    random = Random(seed)
    plain, steady = TwinLeader(), LeadingTwin(Random(seed + 1))
    twins, clients = (plain, steady), ClientScript(random)
    followers = [FollowerScript(random, name) for name in FOLLOWERS]
    now_ms = plain.began_ms
    for step in range(steps):
        now_ms += random.choices([0, 1, 2, 8, 80], [40, 20, 20, 17, 3])[0]
        for twin in twins:
            twin.time(now_ms)
        roll, able = random.random(), [each for each in followers if each.inbox]
        if roll < 0.4:
            source = random.choice([CLIENTS, CLIENTS, TABLES])
            make = (clients.message, clients.pack)[source]
            messages = [make() for _ in range(random.choice([1, 1, 3, 9]))]
            for twin in twins:
                twin.updates(source, messages, now_ms)
        elif roll < 0.7 and able:
            follower = random.choice(able)
            answers = follower.answer()
            for twin in twins:
                twin.answers(follower.name, answers, now_ms)
        elif roll < 0.82:
            for twin in twins:
                twin.write()
        elif roll < 0.98:
            for twin in twins:
                twin.sync(now_ms)
        else:
            index = min(twin.noticed(now_ms) for twin in twins)
            for twin in twins:
                twin.apply(index, now_ms)
                twin.settle(now_ms)
        _compare(seed, step, plain, steady, followers)
    for twin in twins:
        twin.settle(now_ms)
    _compare(seed, steps, plain, steady, followers)
    last_index = plain.peer.core.log.last_index
    assert bytes(plain.reqids.export(last_index)) == bytes(steady.reqids.export(last_index))
    ours, theirs = (twin.peer.core.log.slice(1, 1 << 30) for twin in twins)
    assert ours == theirs, f"seed {seed}: other entries in memory"
    return steady.led, steady.unsent


def _compare(
    seed: int, step: int, plain: TwinLeader, steady: LeadingTwin, followers: list[FollowerScript]
) -> None:
    ours, theirs = plain.pop_sent(), steady.pop_sent()
    for name, messages in ours.items():
        place = f"seed {seed}, step {step}, to {name}: "
        assert messages == theirs[name], f"{place}{messages} and {theirs[name]}"
    for follower in followers:
        follower.inbox += ours[follower.name]
    if not steady.is_steady:
        expected = plain.state()
        for key, value in steady.state().items():
            assert value == expected[key], f"seed {seed}, step {step}: {expected[key]}, {value}"
