"""Golden stories: several cores in text form (`pytest tests/golden --rewrite`, then read the diff).

A story is a text file of steps. A step is one or more commands, a line `----`, and their output.
A batch has one byte for each entry, so that logs are readable: `aaab` has four entries.

    cluster n1 n2 n3 [KEY=VALUE...]      fields of RaftTuning; hellos=False: no peer says hello;
                        reads=held: a StoredRead waits for the command `read`
    start n1 [log=1,1,2] [term=3] [vote=n2] [base=4@2] [may_vote=False]
    timeout n1          the peer's election timer expires now
    wait 70             70 ms pass: timers expire, all messages arrive
    hold 70             70 ms pass: timers expire, no message arrives
    deliver n1 n2       messages in flight from n1 to n2 arrive; `*` stands for any peer
    run                 all messages in flight arrive, and their answers, until none is left
    drop n1 n2          messages in flight are lost
    cut n1 n2           from now on messages from n1 to n2 are lost; `heal` ends all cuts
    propose n1 abc      three entries; propose n1 abc/d: two batches in one wake
    members n1 n1,n2,n4 [n1,n2,n3]       a config entry: the members, and the old ones while joint;
                        in the log it is [n1,n2,n4|n1,n2,n3]. `start n4` starts a new server
    learner n1 n4       n1 replicates to n4 as a learner; `unlearn n1 n4` ends that
    slow n1             its disk confirms nothing; `durable n1` confirms all writes so far
    read n1 n2 [1]      answers n1's StoredRead for n2, with at most that many entries
    compact n1 5        n1 has a snapshot up to 5: its log starts behind it
    snapshot n1 n3      n1 sends its snapshot, which ends at its base, in one chunk; a peer that
                        needs it installs it at once. `sent n1 n3 0`: it could not be sent
    transfer n1 [n2]    n1 transfers the leadership
    ask n1 a            a starts a read at n1; `n1 answers a b at 3` when index 3 is the answer
    step_down n1        n1, which has been removed, stops leading
    hello n1 n2 [5]     n1 gets n2's hello with its last index; `unreachable n1 n2`: connection lost
    inject n3 n1 KIND field=value...     a message that no core sends
    wipe n1             like crash, and the disk is empty afterwards
    crash n1            state that is not durable is lost; `start n1` restarts with the rest
    state               every peer: role, term, vote, leader, log as runs, commit, durable
    log                 every peer's log: term and byte of each entry
    followers n1        the leader's view of its followers
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kelek.protocols.errors import ProtocolError
from kelek.protocols.raft.core import Raft
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.membership import Configuration, ConfigurationHistory
from kelek.protocols.raft.messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
    Envelope,
    HardState,
    InstallSnapshot,
    Message,
    RaftTuning,
    RequestVote,
    Setup,
    SnapshotResponse,
    StoredRead,
    TimeoutNow,
    Vote,
)
from kelek.tests.protocols.raft.test_core import cut, trim

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))
RUN_STEPS_MAX = 1000


def term_entry(first_index: int, term: int) -> EntryBatch:
    return EntryBatch(first_index, 1, term, b"*")


def configuration_of(batch: EntryBatch) -> Configuration | None:
    """Decodes a config entry: [new|old]."""
    if not batch.block.startswith(b"["):
        return None
    new, old = (part.split(",") for part in batch.block[1:-1].decode().split("|"))
    return Configuration(tuple(new), tuple(name for name in old if name))


class GoldenDisk:
    """The state that survives a crash: entries as (term, byte), and the hard state."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.base = (0, 0)
        self.entries: list[tuple[int, bytes]] = []

    def write(self, batch: EntryBatch) -> None:
        del self.entries[batch.first_index - 1 - self.base[0] :]
        if configuration_of(batch) is not None:
            self.entries.append((batch.term, batch.block))
        else:
            self.entries += [(batch.term, bytes([byte])) for byte in batch.block]

    def reset(self, base: tuple[int, int]) -> None:
        self.base, self.entries = base, []

    def compact(self, index: int, term: int) -> None:
        del self.entries[: index - self.base[0]]
        self.base = (index, term)

    def runs(self) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        for index, (term, _) in enumerate(self.entries, self.base[0] + 1):
            if not runs or runs[-1][1] != term:
                runs.append((index, term))
        return runs

    def batches(self, first_index: int) -> list[EntryBatch]:
        return [
            EntryBatch(index, 1, term, byte)
            for index, (term, byte) in enumerate(self.entries, self.base[0] + 1)
            if index >= first_index
        ]


class Story:
    """Runs the commands of one story and records the actions of the cores."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.options: dict[str, object] = {}
        self.members: tuple[str, ...] = ()
        self.hellos = True
        self.reads_held = False
        self.rafts: dict[str, Raft] = {}
        self.disks: dict[str, GoldenDisk] = {}
        self.in_flight: list[tuple[str, Envelope]] = []
        self.cuts: set[tuple[str, str]] = set()
        self.slow: set[str] = set()
        self.unwritten: dict[str, list[EntryBatch]] = {}
        self.waiting: dict[str, list[Envelope]] = {}
        self.reads: dict[tuple[str, str], StoredRead] = {}
        self.commits: dict[str, int] = {}
        self.snapshots: dict[tuple[str, str], int] = {}  # In flight, by leader and follower.
        self.readers: dict[str, list[tuple[str, int]]] = {}
        self.lines: list[str] = []

    def command(self, line: str) -> None:
        name, *words = line.split()
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        function: Callable[..., None] = getattr(self, f"do_{name}")
        function(*plain, **options)

    # Commands.

    def do_cluster(
        self, *members: str, hellos: str = "True", reads: str = "", **options: str
    ) -> None:
        self.members = members
        self.hellos = hellos == "True"
        self.reads_held = reads == "held"
        self.options = {
            key: value == "True" if value in ("True", "False") else int(value)
            for key, value in options.items()
        }
        for peer in members:
            self.do_start(peer)

    def do_start(
        self,
        peer: str,
        log: str = "",
        term: str = "",
        vote: str = "",
        base: str = "",
        may_vote: str = "True",
    ) -> None:
        disk = self.disks.setdefault(peer, GoldenDisk())
        if base:
            disk.base = position(base)
        if log:
            disk.entries = [(int(word), b".") for word in log.split(",")]
        if term:
            disk.hard_state = HardState(int(term), vote or None)
        last_index = disk.base[0] + len(disk.entries)
        tuning = RaftTuning(**self.options)  # type: ignore[arg-type]
        setup = Setup(peer, cut, trim, term_entry, configuration_of, tuning)
        configurations = ConfigurationHistory(Configuration(self.members), base_index=disk.base[0])
        for batch in disk.batches(disk.base[0] + 1):
            configuration = configuration_of(batch)
            if configuration is not None:
                configurations.append(batch.first_index, configuration)
        raft = Raft(
            setup,
            disk.hard_state,
            RaftLog(*disk.base, disk.runs(), last_index, configurations=configurations),
            self.now_ms,
            Random(peer),
        )
        raft.may_vote = may_vote == "True"
        self.rafts[peer] = raft
        self.unwritten[peer], self.waiting[peer] = [], []
        self.readers[peer] = []
        self.commits[peer] = raft.commit_index
        if self.hellos:
            self._hello(peer)

    def _hello(self, peer: str) -> None:
        for other in self.rafts:
            if other != peer:
                self.rafts[peer].on_capabilities(other, 4, True, transfer=True)
                self.rafts[other].on_capabilities(peer, 4, True, transfer=True)

    def do_timeout(self, peer: str) -> None:
        self.now_ms = max(self.now_ms, self.rafts[peer].election.due_ms)
        self.rafts[peer].tick(self.now_ms)
        self._ready(peer)

    def do_wait(self, duration_ms: str) -> None:
        self._pass(int(duration_ms), held=False)

    def do_hold(self, duration_ms: str) -> None:
        self._pass(int(duration_ms), held=True)

    def _pass(self, duration_ms: int, *, held: bool) -> None:
        end_ms = self.now_ms + duration_ms
        while True:
            if not held:
                self.do_run()
            due_ms, peer = min((raft.deadline_ms, peer) for peer, raft in self.rafts.items())
            if due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.rafts[peer].tick(self.now_ms)
            self._ready(peer)
        self.now_ms = end_ms

    def _remove(self, source: str, target: str) -> list[tuple[str, Envelope]]:
        removed = [
            (sender, envelope)
            for sender, envelope in self.in_flight
            if source in ("*", sender) and target in ("*", envelope.to)
        ]
        self.in_flight = [item for item in self.in_flight if item not in removed]
        return removed

    def do_deliver(self, source: str, target: str) -> None:
        for sender, envelope in self._remove(source, target):
            self._deliver(sender, envelope)

    def _deliver(self, sender: str, envelope: Envelope) -> None:
        raft = self.rafts.get(envelope.to)
        if raft is None or (sender, envelope.to) in self.cuts:
            self.lines.append(f"({sender} -> {envelope.to} {text(envelope.message)}: lost)")
            return
        message = envelope.message
        try:
            # A link knows the round of an answer by its message id.
            round_ = message.read_round if isinstance(message, AppendEntries) else None
            raft.step(sender, message, self.now_ms, round_)
            if isinstance(message, InstallSnapshot) and raft.wants_snapshot(message):
                self._install(sender, envelope.to, message)
            if isinstance(message, SnapshotResponse) and message.done:
                raft.on_snapshot_sent(sender, self.snapshots.pop((envelope.to, sender)))
        except ProtocolError as error:
            self.lines.append(f"{envelope.to} {type(error).__name__}: {error}")
        self._ready(envelope.to)

    def _install(self, leader: str, peer: str, message: InstallSnapshot) -> None:
        raft, end = self.rafts[peer], (message.last_index, message.last_term)
        self.lines.append(f"{peer} install {end[0]}@{end[1]}")
        if raft.install_snapshot(*end, raft.configuration):
            self.disks[peer].reset(end)
            self.unwritten[peer], self.waiting[peer] = [], []
        self._send(peer, [Envelope(leader, SnapshotResponse(raft.term, 1, done=True))], "")

    def do_run(self) -> None:
        for _ in range(RUN_STEPS_MAX):
            if not self.in_flight:
                return
            self._deliver(*self.in_flight.pop(0))
        raise AssertionError("the messages of the story never end")

    def do_drop(self, source: str, target: str) -> None:
        self._remove(source, target)

    def do_cut(self, source: str, target: str) -> None:
        sources = tuple(self.rafts) if source == "*" else (source,)
        targets = tuple(self.rafts) if target == "*" else (target,)
        self.cuts |= {(a, b) for a in sources for b in targets if a != b}

    def do_heal(self) -> None:
        self.cuts.clear()

    def do_propose(self, peer: str, entries: str) -> None:
        raft = self.rafts[peer]
        for block in entries.split("/"):
            batch = EntryBatch(raft.log.last_index + 1, len(block), raft.term, block.encode())
            raft.propose(batch)
        self._ready(peer)

    def do_members(self, peer: str, new: str, old: str = "") -> None:
        raft = self.rafts[peer]
        block = f"[{new}|{old}]".encode()
        raft.propose(EntryBatch(raft.log.last_index + 1, 1, raft.term, block))
        self._ready(peer)

    def do_learner(self, peer: str, learner: str) -> None:
        self.rafts[peer].add_learner(learner)
        self._ready(peer)

    def do_unlearn(self, peer: str, learner: str) -> None:
        self.rafts[peer].remove_learner(learner)
        self._ready(peer)

    def do_step_down(self, peer: str) -> None:
        self.rafts[peer].step_down()
        self._ready(peer)

    def do_transfer(self, peer: str, to: str = "") -> None:
        reason = self.rafts[peer].transfer(to, self.now_ms)
        if reason:
            self.lines.append(f"{peer} refuses: {reason}")
        self._ready(peer)

    def do_ask(self, peer: str, *readers: str) -> None:
        try:
            round_ = self.rafts[peer].start_read()
        except ProtocolError as error:
            self.lines.append(f"{peer} {type(error).__name__}: {error}")
        else:
            self.readers[peer] += [(reader, round_) for reader in readers]
        self._ready(peer)

    def do_slow(self, peer: str) -> None:
        self.slow.add(peer)

    def do_durable(self, peer: str) -> None:
        self.slow.discard(peer)
        self._durable(peer)
        self._ready(peer)

    def do_read(self, leader: str, follower: str, count: str = "1000") -> None:
        read = self.reads.pop((leader, follower))
        batches = self.disks[leader].batches(read.first_index)[: int(count)]
        self.rafts[leader].on_stored_read(follower, read.first_index, batches)
        self._ready(leader)

    def do_compact(self, peer: str, index: str) -> None:
        raft = self.rafts[peer]
        raft.compact(int(index))
        self.disks[peer].compact(raft.log.base_index, raft.log.base_term)
        self._ready(peer)

    def do_snapshot(self, leader: str, follower: str) -> None:
        raft = self.rafts[leader]
        base = raft.log.base_index, raft.log.base_term
        self.snapshots[leader, follower] = base[0]
        piece = InstallSnapshot(raft.term, leader, *base, 0, 1, b"s")
        self._send(leader, [Envelope(follower, piece)], "")

    def do_sent(self, leader: str, follower: str, last_index: str) -> None:
        self.rafts[leader].on_snapshot_sent(follower, int(last_index))
        self._ready(leader)

    def do_hello(self, peer: str, other: str, last_index: str = "") -> None:
        last = int(last_index) if last_index else None
        self.rafts[peer].on_capabilities(other, 4, True, last, transfer=True)
        self._ready(peer)

    def do_unreachable(self, peer: str, other: str) -> None:
        self.rafts[peer].on_unreachable(other, self.now_ms)
        self._ready(peer)

    def do_inject(self, sender: str, target: str, kind: str, **fields: str) -> None:
        """A message that no core sends."""
        values: dict[str, object] = {}
        for key, value in fields.items():
            values[key] = int(value) if value.lstrip("-").isdigit() else value == "True"
            if key in ("leader", "candidate"):
                values[key] = value
        plain = (RequestVote, Vote, AppendEntries, AppendResponse)
        kinds = {k.__name__: k for k in (*plain, InstallSnapshot, SnapshotResponse, TimeoutNow)}
        if kind == "InstallSnapshot":
            values |= {"offset": 0, "size": 1, "chunk": b"s"}
        message = kinds[kind](**values)  # type: ignore[arg-type]
        self._deliver(sender, Envelope(target, message))

    def do_crash(self, peer: str) -> None:
        del self.rafts[peer]
        self.in_flight = [item for item in self.in_flight if item[0] != peer]

    def do_wipe(self, peer: str) -> None:
        self.do_crash(peer)
        del self.disks[peer]

    def do_state(self) -> None:
        for peer, raft in sorted(self.rafts.items()):
            runs = " ".join(f"{first}@{term}" for first, term in raft.log.runs)
            self.lines.append(
                f"{peer} {raft.role} term={raft.term} vote={raft.voted_for} leader={raft.leader} "
                f"log=[{runs}] last={raft.log.last_index} commit={raft.commit_index} "
                f"durable={raft.durable_index}"
            )

    def do_log(self) -> None:
        for peer in sorted(self.rafts):
            entries = " ".join(f"{t}{byte.decode()}" for t, byte in self.disks[peer].entries)
            self.lines.append(f"{peer} {entries}")

    def do_followers(self, peer: str) -> None:
        for follower in self.rafts[peer].followers:
            self.lines.append(
                f"{follower.peer} {follower.state.name} match={follower.match_index} "
                f"next={follower.next_index} inflight={len(follower.inflight)} "
                f"paused={follower.paused}"
            )

    # The owner of a core.

    def _ready(self, peer: str) -> None:
        raft = self.rafts[peer]
        ready = raft.ready()
        if ready.hard_state is not None:
            self.disks[peer].hard_state = ready.hard_state
            term, vote = ready.hard_state
            self.lines.append(f"{peer} persist term={term} vote={vote}")
        self._send(peer, ready.messages, "")
        for batch in ready.batches:
            self.lines.append(f"{peer} write {spell(batch)}")
        self.unwritten[peer] += ready.batches
        self.waiting[peer] += ready.messages_after
        for read in ready.reads:
            self.reads[peer, read.to] = read
            self.lines.append(f"{peer} read {read.first_index} for {read.to}")
            if not self.reads_held:
                self.do_read(peer, read.to)
        for follower in ready.snapshots:
            self.lines.append(f"{peer} snapshot for {follower}")
        if ready.commit_index != self.commits[peer]:
            self.lines.append(f"{peer} commit {ready.commit_index}@{ready.commit_term}")
            self.commits[peer] = ready.commit_index
        if ready.read_index is not None:
            round_, index = ready.read_index
            answered = [name for name, wanted in self.readers[peer] if wanted <= round_]
            self.readers[peer] = [each for each in self.readers[peer] if each[1] > round_]
            self.lines.append(f"{peer} answers {' '.join(answered)} at {index}")
        if peer not in self.slow and (self.unwritten[peer] or self.waiting[peer]):
            self._durable(peer)
            self._ready(peer)

    def _durable(self, peer: str) -> None:
        raft = self.rafts[peer]
        for batch in self.unwritten[peer]:
            self.disks[peer].write(batch)
            raft.on_durable(batch.last_index, batch.term)
        self.unwritten[peer] = []
        waiting, self.waiting[peer] = self.waiting[peer], []
        self._send(peer, waiting, " (after persist)")

    def _send(self, peer: str, envelopes: list[Envelope], note: str) -> None:
        for envelope in envelopes:
            if isinstance(envelope.context, int):
                assert isinstance(envelope.message, AppendResponse)
                answer = envelope.message._replace(read_round=envelope.context)
                envelope = envelope._replace(message=answer, context=None)
            message = text(envelope.message)
            self.lines.append(f"{peer} -> {envelope.to} {message}{note}")
            self.in_flight.append((peer, envelope))


def spell(batch: EntryBatch) -> str:
    return f"{batch.first_index}@{batch.term}:{batch.block.decode()}"


def position(words: str) -> tuple[int, int]:
    """INDEX@TERM"""
    index, term = words.split("@")
    return int(index), int(term)


def text(message: Message) -> str:
    """A message in one line, with the names of the wire."""
    match message:
        case InstallSnapshot(term, _, last_index, last_term, _, _, _):
            return f"InstallSnapshot term={term} last={last_index}@{last_term}"
        case SnapshotResponse(term, _, done):
            return f"InstallSnapshot answer term={term} done={done}"
        case TimeoutNow(term, _):
            return f"TimeoutNow term={term}"
        case RequestVote(term, _, last_index, last_term, pre_vote, transfer):
            name = (
                "PreVote" if pre_vote else "RequestVote (transfer)" if transfer else "RequestVote"
            )
            return f"{name} term={term} last={last_index}@{last_term}"
        case Vote(term, granted, pre_vote):
            name = "PreVote answer" if pre_vote else "Vote"
            return f"{name} term={term} granted={granted}"
        case AppendEntries(term, _, prev_index, prev_term, commit_index, batches, _):
            entries = "".join(f" {spell(batch)}" for batch in batches)
            previous = f"prev={prev_index}@{prev_term} commit={commit_index}"
            return f"AppendEntries term={term} {previous}{entries}"
        case AppendResponse(term, True, match_index, _, _, _):
            return f"AppendEntries answer term={term} match={match_index}"
        case AppendResponse(term, _, _, conflict_index, conflict_term, _):
            return f"AppendEntries refusal term={term} conflict={conflict_index}@{conflict_term}"


def play(story: str) -> str:
    """Returns the story with its present output."""
    story_run = Story()
    out: list[str] = []
    in_output = False
    for line in [*story.splitlines(), ""]:
        if line == "----":
            in_output = True
            out += [line, *story_run.lines]
            story_run.lines = []
        elif in_output and line:
            continue
        elif not line:
            in_output = False
            out.append("")
        else:
            out.append(line)
            if not line.startswith("#"):
                story_run.command(line)
    return "\n".join(out).strip() + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, request: pytest.FixtureRequest) -> None:
    story = path.read_text()
    played = play(story)
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    else:
        assert played == story
