"""The end of a steady state of a follower: what C did meanwhile becomes the core's state.

csrc/steady/steady.c has the rules of that state. It begins only while nothing is under way, so that
few numbers describe the core. This module is a part of the core, and uses its private members.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .core import Raft, Role
from .messages import AppendResponse, EntryBatch, Envelope


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
    core._out.messages_after += answers
    assert commit_index <= core.log.last_index
    core.commit_index = max(core.commit_index, commit_index)


def answer_of(core: Raft, last_index: int, context: object) -> Envelope:
    """The answer to a request of the leader whose entries end with last_index."""
    assert core.leader is not None
    return Envelope(core.leader, AppendResponse(core.term, True, last_index), context)
