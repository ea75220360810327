"""The end of a steady state of a follower: what C did meanwhile becomes the core's state.

csrc/steady/steady.c has the rules of that state. It begins only while nothing is under way, so that
few numbers describe the core. This module is a part of the core, and uses its private members.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from .core import Raft, Role
from .messages import AppendResponse, EntryBatch, Envelope
from .progress import Follower, ReplicationState

NEVER_MS = 1 << 62
UNSENT_BYTES_MAX = 1 << 20  # Of the entries that some follower lacks when a steady state begins.


class Contact(NamedTuple):
    """Messages of the leader that a follower has received."""

    messages: int
    heard_ms: int  # When the last one came.
    gap_ms_max: int
    missed: int  # Heartbeats.


class LogEnd(NamedTuple):
    """Entries that were appended, in their order."""

    durable: Sequence[EntryBatch]
    written: Sequence[EntryBatch]  # The log writer has them; they are not durable yet.
    received: Sequence[EntryBatch]  # The log writer does not have them.


class GivenEntries(NamedTuple):
    """The entries that C has given to the log in a steady state, for the log's own books."""

    batches: Sequence[EntryBatch]
    seq: int  # The job of those whose sync runs, or 0.
    offset: int  # In the segment.
    synced: int


def is_steady_follower(core: Raft) -> bool:
    """Whether the leader's messages are all that concerns this core: its log ends in the leader's
    term, all of it is durable, and nothing waits for ready()."""
    return (
        core.role is Role.FOLLOWER
        and core.leader is not None
        and core.log.last_term == core.term
        and core.durable_index == core.log.last_index
        and not core._out.has_work(core.term, core.voted_for)
    )


def end_following(
    core: Raft, end: LogEnd, contact: Contact, commit_index: int, answers: Iterable[Envelope]
) -> None:
    """The steady state of a follower has ended.

    answers   to requests whose entries were received, and not written
    """
    assert core.role is Role.FOLLOWER
    assert core.leader is not None
    if contact.messages:
        core.election.on_contact(contact.heard_ms, contact.gap_ms_max, contact.missed)
    _end_log(core, end)
    core._out.messages_after += answers
    assert commit_index <= core.log.last_index
    core.commit_index = max(core.commit_index, commit_index)


def answer_of(core: Raft, last_index: int, context: object) -> Envelope:
    """The answer to a request of the leader whose entries end with last_index."""
    assert core.leader is not None
    return Envelope(core.leader, AppendResponse(core.term, True, last_index), context)


# ---- a leader ----


class LeaderState(NamedTuple):
    """A leader's core when a steady state begins."""

    term: int
    last_index: int
    commit_index: int
    term_start: int  # The first entry of this term.
    commit_notice_ms: int
    heartbeat_ms: int
    round: int  # Of reads: the newest.
    round_started_ms: int
    gives_leases: bool
    is_voter: bool
    match_others: tuple[int, ...]  # Of the voters that C does not replicate to, as they count.
    others_notice_ms: int  # When such followers must learn of a commit.
    followers: tuple[Follower, ...]  # That C replicates to.
    append_bytes_max: int
    unsent: Sequence[EntryBatch] = ()  # The last entries, from the first one that was not sent to
    # each of them: they wait for room in the window.


def leader_state(core: Raft, reachable: Collection[str]) -> LeaderState | None:
    """The state of a leader of which C can do the work; None: it needs Python now.

    reachable   followers whose links C can use
    """
    leading, log = core._leading, core.log
    if (
        leading is None
        or core._transfer is not None
        or core._read_rounds.active
        or core.configuration.old
        or core.durable_index != log.last_index
        or core._out.has_work(core.term, core.voted_for)
        or core._out.commit_due
    ):
        return None
    voters, peer_id = core.configuration.voters, core.setup.peer_id
    unsent = _unsent(core, leading.followers, leading.term_start)
    places = {log.last_index + 1, *(batch.first_index for batch in unsent)}
    steady: list[Follower] = []
    others: list[int] = []
    notice_ms = NEVER_MS
    for follower in leading.followers:
        if follower.peer in reachable and _is_steady(follower, places):
            steady.append(follower)
            if follower.peer in voters and not follower.capabilities.counts_in_quorum:
                others.append(0)
        elif (
            follower.state is ReplicationState.REPLICATE
            or not follower.paused
            or follower.clients_wait
        ):
            return None
        else:
            notice_ms = min(notice_ms, follower.sent_ms + core.setup.tuning.commit_notice_ms)
            if follower.peer in voters:
                others.append(follower.counted("match_index"))
    starts = core.lease.starts
    return LeaderState(
        core.term,
        log.last_index,
        core.commit_index,
        leading.term_start,
        core.setup.tuning.commit_notice_ms,
        core.setup.tuning.heartbeat_ms,
        core._read_rounds.round,
        starts[-1][1] if starts else 0,
        leading.gives_leases,
        peer_id in voters,
        tuple(others),
        notice_ms,
        tuple(steady),
        core.setup.tuning.append_bytes_max,
        unsent,
    )


def _unsent(core: Raft, followers: Iterable[Follower], term_start: int) -> Sequence[EntryBatch]:
    """The batches that some of the followers lack, if they are few; the entry before them is of
    this term."""
    last_index = core.log.last_index
    first_index = last_index + 1
    for it in followers:
        if it.state is ReplicationState.REPLICATE and it.next_index > term_start:
            first_index = min(first_index, it.next_index)
    found: Sequence[EntryBatch] = core.log.slice(first_index, UNSENT_BYTES_MAX) or ()
    is_whole = bool(found) and found[-1].last_index == last_index
    if not is_whole or sum(len(batch.block) for batch in found) > UNSENT_BYTES_MAX:
        return ()
    return found


def _is_steady(follower: Follower, places: Collection[int]) -> bool:
    return (
        follower.state is ReplicationState.REPLICATE
        and follower.next_index in places
        and follower.capabilities.inflight_max > 1
        and not follower.loaded_batches
        and follower.read_started_ms is None
    )


def leader_deadline_ms(core: Raft, steady: Collection[Follower], now_ms: int) -> int:
    """When Python must act at the latest, besides for steady followers."""
    leading = core._leading
    assert leading is not None
    others = [each for each in leading.followers if each not in steady]
    deadline_ms = leading.due_ms(others, now_ms) if others else NEVER_MS
    if core._checks_quorum():
        deadline_ms = min(deadline_ms, core.election.quorum_check_ms)
    return deadline_ms


def end_leading(
    core: Raft, end: LogEnd, commit_index: int, round_: int, starts: Iterable[tuple[int, int]]
) -> None:
    """The steady state of a leader has ended; the caller has changed its followers.

    starts   the newest rounds of reads and when they started
    """
    leading, rounds = core._leading, core._read_rounds
    assert leading is not None
    _end_log(core, end)
    for number, started_ms in starts:
        core.lease.start(number, started_ms)
    rounds.round = leading.read_round = round_
    assert core.commit_index <= commit_index <= core.log.last_index
    core.commit_index = leading._commit_index = commit_index
    core._out.commit_due = True


def _end_log(core: Raft, end: LogEnd) -> None:
    for batch in end.durable:
        core.log.append(batch)
    if end.durable:
        core._durable.reset(core.log.last_index)
    for batch in end.written:
        core.log.append(batch)
        core._durable.add(batch)
    for batch in end.received:
        core.log.append(batch)
    core._out.batches += end.received
