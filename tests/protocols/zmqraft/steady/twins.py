"""Two peers in the same stream of a leader's messages: one in Python, one that follows in C."""

from collections.abc import Callable
from random import Random
from typing import Any

from kelek.native.log.updates import Reqids
from kelek.native.net.messages import Arena, Frames
from kelek.protocols.host.border import Requests
from kelek.protocols.raft.core import Raft
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.messages import (
    KIND_CONFIG,
    KIND_STATE,
    KIND_TABLES,
    AppendAck,
    AppendEntries,
    EntryBatch,
    HardState,
    RaftTuning,
    RequestVote,
    TimeoutNow,
)
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.server.peer import Peer
from kelek.protocols.zmqraft.server.values import Applied, PeerSetup, Recovered, term_entry
from kelek.protocols.zmqraft.steady.follower import SteadyFollowing
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire.config_codec import ConfigEntry, encode_config_entry
from kelek.protocols.zmqraft.wire.peer_codec import VOTE_REQUEST
from kelek.protocols.zmqraft.wire.transfer_codec import TIMEOUT_NOW_REQUEST

CLUSTER = b"demo"
NAMES = ("n1", "n2", "n3")
NOW_S = 1_790_000_000
Message = list[bytes]


class MemoryLog:
    """No disk: what the peer reads of its own log, and what it has written."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        return []

    def close(self) -> None: ...


class TwinPeer:
    """A follower, and the log writer that it gives its jobs to, one sync at a time."""

    def __init__(self) -> None:
        urls = {name: f"tcp://{name}" for name in NAMES}
        peer_urls = {name: f"tcp://{name}.peers" for name in NAMES}
        tuning = RaftTuning(60_000, 60_000)  # No campaigns: their dice would differ.
        setup = PeerSetup(CLUSTER.decode(), "n1", urls, peer_urls, tuning=tuning)
        recovered = Recovered(1, RaftLog(), HardState(), voter=True, vote_withheld=False)
        self.log = MemoryLog()
        self.reqids = Reqids(b"sixteen bytes...")
        self.peer = Peer(setup, recovered, self.reqids, self.log, 0, Random(1))
        self.jobs: list[int] = []  # Given to the writer, and not durable.
        self.syncing: int | None = None
        self.sent: list[Message] = []
        self.notices: list[tuple[int, int]] = []

    def receive(self, messages: list[Message], now_ms: int) -> None:
        self._receive(messages, now_ms)

    def _receive(self, messages: list[Message], now_ms: int) -> None:
        if messages:
            arena = Arena.from_messages(messages)
            self.peer.receive(Requests("peer_url", arena, NOW_S), now_ms)
        self._wake(now_ms)

    def _wake(self, now_ms: int) -> None:
        wake = self.peer.wake(now_ms)
        if wake.job is not None:
            assert not wake.job.reset
            self.jobs.append(wake.job.seq)
            self.log.blocks += wake.job.blocks
        if wake.commit is not None:
            self.notices.append((wake.commit.commit_index, wake.commit.term))
        self._flush()

    def _flush(self) -> None:
        self.sent += take(self.peer.out.peers)
        for frames in self.peer.out.links.values():
            frames.clear()

    def apply(self, clients_wait: bool, now_ms: int) -> None:
        """The processes that apply have reported, and whether their clients wait."""
        event = Applied(0, 0, urgent=False, clients_wait=clients_wait)
        self.peer.receive(event, now_ms)
        self._wake(now_ms)

    def write(self) -> None:
        """The writer writes everything and starts a sync, unless one runs."""
        if self.syncing is None and self.jobs:
            self.syncing = self.jobs[-1]

    def sync(self, now_ms: int) -> None:
        """The sync has ended."""
        if self.syncing is not None:
            self.jobs = [seq for seq in self.jobs if seq > self.syncing]
            seq, self.syncing = self.syncing, None
            self.peer.receive(AppendAck(1, seq), now_ms)
            self._flush()

    def settle(self, now_ms: int) -> None:
        """Everything becomes durable."""
        self._wake(now_ms)
        for _ in range(2):
            self.write()
            self.sync(now_ms)
        self._wake(now_ms)

    def state(self) -> dict[str, Any]:
        """What must be equal at any time."""
        core, election = self.peer.core, self.peer.core.election
        return {
            "role": (core.role, core.term, core.voted_for, core.leader),
            "log": (core.log.last_index, core.log.last_term, core.log.runs),
            "configuration": (core.configuration, core.log.configurations.last_index),
            "commit": core.commit_index,
            "durable": core.durable_index,
            "contact": (
                election.leader_heard_ms,
                election.leader_gap_ms_max,
                election.heartbeats_missed,
                election.leader_lost,
            ),
            "malformed": self.peer.requests.malformed,
            "empty": self.peer.eligibility.is_empty,
            "blocks": self.log.blocks,
        }

    def pop_sent(self) -> list[Message]:
        sent, self.sent = self.sent, []
        return sent

    def cached(self) -> list[EntryBatch] | None:
        return self.peer.core.log.slice(1, 1 << 30)


class SteadyTwin(TwinPeer):
    """The same with C for steady states, which begin and end by dice."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self.following = SteadyFollowing(self.peer)
        self.is_steady = False
        self.followed = 0  # Messages in C.
        self._is_written = False
        self._out = Frames()

    def receive(self, messages: list[Message], now_ms: int) -> None:
        if not self.is_steady and self.following.may_begin and self._random.random() < 0.9:
            self.following.begin(None)
            self.is_steady = True
        if not self.is_steady:
            self._receive(messages, now_ms)
            return
        done = 0
        if messages:
            arena = Arena.from_messages(messages)
            done = self.following.native.follow(arena, now_ms, self._out)
        self.followed += done
        self.sent += take(self._out)
        if done < len(messages) or self._random.random() < 0.1:
            self.leave()
            self._receive(messages[done:], now_ms)

    def apply(self, clients_wait: bool, now_ms: int) -> None:
        self.leave()
        super().apply(clients_wait, now_ms)

    def write(self) -> None:
        if not self.is_steady:
            super().write()
        elif self.following.native.log.start_sync():
            self._is_written = True

    def sync(self, now_ms: int) -> None:
        if not self.is_steady:
            super().sync(now_ms)
        elif self._is_written:
            self._is_written = False
            self.following.native.finish_sync(self._out)
            self.sent += take(self._out)

    def leave(self) -> None:
        if not self.is_steady:
            return
        given = self.following.end()
        self.is_steady = self._is_written = False
        self.log.blocks += [batch.block for batch in given.batches]
        if given.seq:
            self.jobs.append(given.seq)
            self.syncing = given.seq

    def settle(self, now_ms: int) -> None:
        self.leave()
        super().settle(now_ms)


def take(frames: Frames) -> list[Message]:
    messages = frames.messages()
    frames.clear()
    return messages


class LeaderScript:
    """Messages of a leader to a follower that stays equal to it; some are unusual."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.term, self.name = 1, "n2"
        self.last_index = self.last_term = 0
        self.commit_index = 0
        self._message_id = 0
        self._number = 0

    def _block(self, first_index: int, kind: int = KIND_STATE) -> EntryBatch:
        random = self.random
        records = []
        for _ in range(random.choice([1, 1, 2, 5])):
            self._number += 1
            reqid = NOW_S.to_bytes(4, "big") + self._number.to_bytes(8, "big")
            data = random.randbytes(random.choice([1, 20, 300]))
            records.append(Record(kind, reqid if random.random() < 0.95 else None, data))
        return encode_block(first_index, self.term, records)

    def _config(self, first_index: int) -> EntryBatch:
        entry = ConfigEntry(tuple((name, f"tcp://{name}:1") for name in NAMES))
        return encode_block(
            first_index, self.term, [Record(KIND_CONFIG, None, encode_config_entry(entry))]
        )

    def _append(self, batches: tuple[EntryBatch, ...], **changes: Any) -> Message:
        message = AppendEntries(
            self.term, self.name, self.last_index, self.last_term, self.commit_index, batches
        )
        self._message_id += 1
        frames = own.APPEND_PACKED_REQUEST.encode(
            message._replace(**changes), self._message_id, CLUSTER
        )
        return [b"route-%d" % self.term, *frames]

    def entries(self) -> Message:
        first_index, batches = self.last_index + 1, []
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            kind = KIND_TABLES if self.random.random() < 0.2 else KIND_STATE
            batches.append(self._block(first_index, kind))
            first_index = batches[-1].last_index + 1
        if self.random.random() < 0.05:
            batches.append(self._config(first_index))
        message = self._append(tuple(batches))
        self._sent(batches)
        return message

    def _sent(self, batches: list[EntryBatch]) -> None:
        self.last_index, self.last_term = batches[-1].last_index, self.term

    def agree(self, core: Raft) -> None:
        """Goes on behind the last entry of the follower's log, as a leader does after a refusal."""
        self.last_index, self.last_term = core.log.last_index, core.log.last_term
        self.term = core.term

    def heartbeat(self) -> Message:
        low = max(self.commit_index, self.last_index - 20)
        self.commit_index = self.random.randint(min(low, self.last_index), self.last_index)
        return self._append(())

    def new_term(self) -> Message:
        self.term += self.random.randint(1, 2)
        self.name = self.random.choice(["n2", "n3"])
        batch = term_entry(self.last_index + 1, self.term)
        message = self._append((batch,))
        self._sent([batch])
        return message

    def unusual(self) -> Message:
        """A message that no steady state expects, or one that is broken."""
        random, last = self.random, self.last_index
        batch = self._block(last + 1)
        flipped = bytearray(batch.block)
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
        torn = batch._replace(block=batch.block[:-8])
        ahead = self._block(last + 2)
        vote = RequestVote(self.term, "n3", last, self.last_term)
        choices: list[Callable[[], Message]] = [
            lambda: self._append((batch,), term=max(1, self.term - 1), prev_term=0),
            lambda: self._append((), term=self.term + 1),
            lambda: self._append((batch,), term=self.term + 1),
            lambda: self._append((ahead,), prev_index=last + 1),
            lambda: self._append((), prev_index=max(0, last - 1)),
            lambda: self._append((), prev_term=self.last_term + 1),
            lambda: self._append((), commit_index=1 << 60),
            lambda: self._append((), commit_index=last + 5),
            lambda: self._append((batch._replace(block=bytes(flipped)),)),
            lambda: self._append((torn,)),
            lambda: self._append((ahead,)),
            lambda: self._append((), leader="n9"),
            lambda: self._append((batch,))[:4],
            lambda: [*self._append((batch,)), b""],
            lambda: [b"r" * 40, *self._append(())[1:]],
            lambda: [b"route", *VOTE_REQUEST.encode(vote, 1, CLUSTER)],
            lambda: [b"route", *TIMEOUT_NOW_REQUEST.encode(TimeoutNow(1, "n9"), 1, CLUSTER)],
            lambda: [*self._append(())[:-1], b"short"],
            lambda: [b"route", b"12345", *self._append(())[2:]],
        ]
        return random.choice(choices)()


def compare(seed: int, steps: int = 150) -> int:
    """Runs both peers through one stream. Raises AssertionError where they differ; returns how many
    messages C has handled."""
    random = Random(seed)
    plain, steady, script = TwinPeer(), SteadyTwin(Random(seed + 1)), LeaderScript(random)
    twins, now_ms = (plain, steady), 10_000
    first = [script.new_term()]
    for twin in twins:
        twin.receive(first, now_ms)
        twin.settle(now_ms)
    for step in range(steps):
        now_ms += random.choice([0, 1, 5, 20, 170 if random.random() < 0.1 else 0])
        roll = random.random()
        if roll < 0.55:
            kinds = random.choices(
                [script.entries, script.heartbeat, script.unusual, script.new_term],
                [60, 30, 6, 1],
                k=random.choice([1, 1, 2, 4]),
            )
            messages = [kind() for kind in kinds]
            for twin in twins:
                twin.receive(messages, now_ms)
            script.agree(plain.peer.core)
        elif roll < 0.75:
            for twin in twins:
                twin.write()
        elif roll < 0.97:
            for twin in twins:
                twin.sync(now_ms)
        else:
            clients_wait = random.random() < 0.3
            for twin in twins:
                twin.apply(clients_wait, now_ms)
                twin.settle(now_ms)
        # Answers to different kinds of requests of one wake may change places.
        ours, theirs = (sorted(twin.pop_sent()) for twin in twins)
        assert ours == theirs, f"seed {seed}, step {step}: other answers: {ours} and {theirs}"
        if not steady.is_steady:
            _expect_equal(seed, step, plain, steady)
    for twin in twins:
        twin.settle(now_ms)
    _expect_equal(seed, steps, plain, steady)
    last_index = plain.peer.core.log.last_index
    assert bytes(plain.reqids.export(last_index)) == bytes(steady.reqids.export(last_index))
    assert plain.cached() == steady.cached(), f"seed {seed}: other entries in memory"
    return steady.followed


def _expect_equal(seed: int, step: int, plain: TwinPeer, steady: TwinPeer) -> None:
    ours, theirs = plain.state(), steady.state()
    for key, value in ours.items():
        assert value == theirs[key], f"seed {seed}, step {step}: {key}: {value} and {theirs[key]}"
