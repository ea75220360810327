"""Raft messages between two peers: message ids, repeats, wire forms and features.

`PeerLink` sends our requests to one peer (our DEALER). `PeerRequests` answers requests of all peers
(our ROUTER). Neither holds a socket: frames go out through a function. docs/protocols/zmq-raft.md.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ...errors import RemoteProtocolError
from ...raft.membership import Configuration
from ...raft.messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotResponse,
    TimeoutNow,
    Vote,
)
from ...record import block_entries, block_from_entries
from ...wire import Layout
from ..wire import values as v
from ..wire.client_codec import LOG_INFO_ANSWER, LogInfo
from ..wire.config_codec import check_configs
from ..wire.extensions import (
    APPEND_PACKED_ANSWER,
    APPEND_PACKED_REQUEST,
    HELLO_ANSWER,
    HELLO_REQUEST,
    PRE_VOTE_REQUEST,
    Hello,
)
from ..wire.peer_codec import (
    APPEND_REQUEST,
    VOTE_ANSWER,
    VOTE_REQUEST,
    Dialect,
    PlainAppend,
    decode_append_answer,
    encode_append_answer,
)
from ..wire.snapshot_codec import (
    INSTALL_ANSWER,
    INSTALL_PACKED_ANSWER,
    INSTALL_PACKED_REQUEST,
    INSTALL_REQUEST,
)
from ..wire.transfer_codec import TIMEOUT_NOW_REQUEST, TRANSFER_VOTE_REQUEST

HELLO_TRIES = 5
PENDING_MAX = 256  # Unanswered requests; the oldest are forgotten.

Send = Callable[[list[bytes]], None]


PEER_REQUESTS: dict[bytes, Layout[Any]] = {
    v.REQUEST_VOTE: VOTE_REQUEST,
    v.PRE_VOTE: PRE_VOTE_REQUEST,
    v.TRANSFER_VOTE: TRANSFER_VOTE_REQUEST,
    v.TIMEOUT_NOW: TIMEOUT_NOW_REQUEST,
    v.APPEND_ENTRIES: APPEND_REQUEST,
    v.APPEND_PACKED: APPEND_PACKED_REQUEST,
    v.INSTALL_SNAPSHOT: INSTALL_REQUEST,
    v.INSTALL_PACKED: INSTALL_PACKED_REQUEST,
}
TEXT_TYPES = (v.REQUEST_VOTE, v.APPEND_ENTRIES, v.INSTALL_SNAPSHOT)


class PendingRequest(NamedTuple):
    """A request that waits for its answer. An answer does not name its type."""

    type: bytes
    term: int  # Of a hello: whether it said that we may vote. Of a chunk: the snapshot's size.
    last_index: int  # Of a chunk: its end. Of a hello: our wall clock then.
    read_round: int = 0  # The round of reads (protocols/raft/reads.py); never on the wire.
    prev_index: int = 0
    is_late: bool = False  # Entries were sent since: a refusal names entries that are in flight.


class Origin(NamedTuple):
    """The sender and form of a request, for its answer (Envelope.context)."""

    send: Send
    peer: str
    routing_id: bytes
    message_id: bytes
    type: bytes
    # Of an AppendEntries: the index that a success in text form confirms. Of a chunk: its end.
    last_index: int


class PeerLink:
    """Our requests to one peer, and its answers."""

    def __init__(self, cluster: bytes, peer: str, send: Send) -> None:
        self.peer = peer
        self.peer_knows_voter = False  # The last answered hello said that we may vote.
        self.hello_sent_ms = 0  # The last answered hello, by our wall clock; 0: not known.
        self.features: frozenset[str] | None = None  # None until the peer has answered a hello.
        self.wrong_peer = False  # Another peer answers at its address.
        self.unanswered_hellos = 0  # Unanswered hellos beside requests that were answered.
        self._has_answered = False  # Since the last hello.
        self._cluster = cluster
        self._send = send
        self._message_id = 0
        self._pending: dict[int, PendingRequest] = {}
        # In text form a repeat keeps its message id; a chunk's also across heartbeats.
        self._repeats: dict[bool, tuple[int, Message]] = {}

    def has_feature(self, feature: v.Feature) -> bool:
        """Whether the peer's hello names this feature."""
        return self.features is not None and feature in self.features

    @property
    def is_foreign(self) -> bool:
        """Whether the peer answers requests but no hello: it is of another implementation."""
        return self.features is None and self.unanswered_hellos >= HELLO_TRIES

    @property
    def pending_count(self) -> int:
        """Requests that wait for an answer."""
        return len(self._pending)

    @property
    def unanswered(self) -> list[tuple[int, int]]:
        """Message ids and last indexes of the requests that wait for an answer."""
        return [(message_id, it.last_index) for message_id, it in self._pending.items()]

    def reset(self) -> None:
        self._pending.clear()
        self._repeats.clear()
        self.unanswered_hellos, self._has_answered = 0, False

    # ---- steady states: C sends packed AppendEntries, and takes their answers ----

    @property
    def is_plain(self) -> bool:
        """Whether the peer takes packed AppendEntries and is the one that we mean."""
        return self.has_feature(v.Feature.APPEND) and not self.wrong_peer

    def begin_steady(self) -> tuple[int, list[tuple[int, PendingRequest]]]:
        """Removes the packed AppendEntries from the requests that wait for an answer. Returns the
        last message id and these requests by their ids."""
        packed = [each for each in self._pending.items() if each[1].type == v.APPEND_PACKED]
        for message_id, _ in packed:
            del self._pending[message_id]
        return self._message_id, packed

    def end_steady(
        self, message_id: int, packed: Iterable[tuple[int, PendingRequest]], answered: bool
    ) -> None:
        """Takes over the last message id and the packed AppendEntries without an answer."""
        self._message_id = message_id
        self._pending.update(packed)
        while len(self._pending) > PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        self._has_answered = self._has_answered or answered

    def send_hello(self, own_hello: Hello) -> None:
        self.unanswered_hellos += self._has_answered
        self._has_answered = False
        message_id = self._remember(
            PendingRequest(v.HELLO, int(own_hello.voter), own_hello.time_ms)
        )
        self._send(HELLO_REQUEST.encode(own_hello, v.encode_uint(message_id), self._cluster))

    def request_log_info(self) -> None:
        """Requests the peer's log info, as a client does. Every implementation answers it."""
        message_id = v.encode_uint(self._remember(PendingRequest(v.REQUEST_LOG_INFO, 0, 0)))
        self._send([message_id, v.REQUEST_LOG_INFO, self._cluster])

    def send_request(self, message: RequestVote | AppendEntries | TimeoutNow) -> None:
        if isinstance(message, AppendEntries):
            self._send_append(message)
        elif isinstance(message, TimeoutNow):
            message_id = self._message_id = v.next_message_id(self._message_id)
            self._send(TIMEOUT_NOW_REQUEST.encode(message, message_id, self._cluster))
        elif message.transfer and self.has_feature(v.Feature.TRANSFER):
            message_id = self._remember(PendingRequest(v.TRANSFER_VOTE, message.term, 0))
            self._send(TRANSFER_VOTE_REQUEST.encode(message, message_id, self._cluster))
        elif not message.pre_vote:
            message_id = self._text_message_id(
                message, PendingRequest(v.REQUEST_VOTE, message.term, 0)
            )
            self._send(VOTE_REQUEST.encode(message, message_id, self._cluster))
        elif self.has_feature(v.Feature.PRE_VOTE):
            message_id = self._remember(PendingRequest(v.PRE_VOTE, message.term, 0))
            self._send(PRE_VOTE_REQUEST.encode(message, message_id, self._cluster))

    def send_chunk(self, message: InstallSnapshot, *, plain: bool) -> None:
        """Sends a chunk of a snapshot; plain: in text form."""
        end = message.offset + len(message.chunk)
        if plain:
            message_id = self._text_message_id(
                message, PendingRequest(v.INSTALL_SNAPSHOT, message.size, end)
            )
            self._send(INSTALL_REQUEST.encode(message, message_id, self._cluster))
        else:
            pending = PendingRequest(v.INSTALL_PACKED, message.size, end)
            self._send(
                INSTALL_PACKED_REQUEST.encode(message, self._remember(pending), self._cluster)
            )

    def _send_append(self, message: AppendEntries) -> None:
        last, round_ = _last_index(message), message.read_round
        if self.has_feature(v.Feature.APPEND):
            message_id = self._remember(PendingRequest(v.APPEND_PACKED, message.term, last, round_))
            self._send(APPEND_PACKED_REQUEST.encode(message, message_id, self._cluster))
            return
        # The round is not on the wire, so it does not distinguish a repeat.
        message = message._replace(read_round=0)
        pending = PendingRequest(v.APPEND_ENTRIES, message.term, last, round_, message.prev_index)
        message_id = self._text_message_id(message, pending)
        if message.batches:
            self._mark_late(message_id)
        entries = tuple(
            entry
            for batch in message.batches
            for entry in block_entries(batch, batch.first_index, batch.last_index)
        )
        plain = PlainAppend(*message[:5], entries)
        self._send(APPEND_REQUEST.encode(plain, message_id, self._cluster))

    def _mark_late(self, message_id: int) -> None:
        """Marks the refusals of earlier AppendEntries as late, after entries were sent or accepted.

        Such a refusal would cause these entries to be sent again after their commit, and a peer of
        the npm package ends on that.
        """
        for other, pending in self._pending.items():
            if other != message_id and pending.type == v.APPEND_ENTRIES:
                self._pending[other] = pending._replace(is_late=True)

    def _text_message_id(self, message: Message, pending: PendingRequest) -> int:
        """Returns a message id; a repeat carries the id of its first request (specification,
        "Peer")."""
        is_chunk = pending.type == v.INSTALL_SNAPSHOT
        repeat = self._repeats.get(is_chunk)
        if repeat is not None and repeat[1] == message:
            # The answer may belong to the first request, so its round stays.
            first = self._pending.get(repeat[0], pending._replace(read_round=0))
            self._pending[repeat[0]] = first
            return repeat[0]
        message_id = self._remember(pending)
        self._repeats[is_chunk] = (message_id, message)
        return message_id

    def _remember(self, pending: PendingRequest) -> int:
        self._message_id = v.next_message_id(self._message_id)
        self._pending[self._message_id] = pending
        if len(self._pending) > PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        return self._message_id

    def on_answer(self, frames: list[bytes]) -> Message | Hello | LogInfo | None:
        """Decodes an answer; None when no request waits for it. Raises RemoteProtocolError.

        Answers of a wrong peer are ignored: it would acknowledge and vote for two.
        """
        message_id = v.decode_message_id(frames[0])
        pending = self._pending.pop(message_id, None)
        if pending is None or (self.wrong_peer and pending.type != v.HELLO):
            return None
        self._has_answered = True
        if pending.type == v.APPEND_PACKED:
            answer = APPEND_PACKED_ANSWER.decode(frames)
            return answer._replace(read_round=pending.read_round) if pending.read_round else answer
        is_chunk = pending.type == v.INSTALL_SNAPSHOT
        if is_chunk in self._repeats and self._repeats[is_chunk][0] == message_id:
            del self._repeats[is_chunk]
        match pending.type:
            case v.REQUEST_VOTE | v.TRANSFER_VOTE:
                return VOTE_ANSWER.decode(frames)
            case v.PRE_VOTE:
                return VOTE_ANSWER.decode(frames)._replace(pre_vote=True)
            case v.APPEND_ENTRIES:
                answer = decode_append_answer(frames)._replace(read_round=pending.read_round)
                if answer.success:
                    self._mark_late(message_id)
                    return answer._replace(match_index=pending.last_index)
                if pending.is_late and answer.term == pending.term:
                    return None
                if not answer.conflict_index:
                    # A refusal without a hint: go back one entry. A larger step could pass entries
                    # that a peer of the npm package has committed, and such a peer would end.
                    return answer._replace(conflict_index=pending.prev_index)
                return answer
            case v.REQUEST_LOG_INFO:
                return LOG_INFO_ANSWER.decode(frames)
            case v.INSTALL_PACKED:
                return INSTALL_PACKED_ANSWER.decode(frames)
            case v.INSTALL_SNAPSHOT:
                response = INSTALL_ANSWER.decode(frames)
                if response.offset is None:
                    done = pending.last_index == pending.term
                    return response._replace(offset=pending.last_index, done=done)
                return response
        assert pending.type == v.HELLO
        hello = HELLO_ANSWER.decode(frames)
        self.wrong_peer = hello.peer != self.peer
        if self.wrong_peer:
            raise RemoteProtocolError(f"{hello.peer} answers at the address of {self.peer}")
        self.peer_knows_voter = bool(pending.term)
        self.hello_sent_ms = pending.last_index
        self.unanswered_hellos, self._has_answered = 0, False
        return hello


def _last_index(message: AppendEntries) -> int:
    return message.batches[-1].last_index if message.batches else message.prev_index


class PeerRequests:
    """Requests of other peers: decodes them, recognises repeats, and encodes the answers."""

    def __init__(
        self,
        cluster: bytes,
        members: frozenset[str],
        dialect: Callable[[str], Dialect] = lambda peer: "text",
    ) -> None:
        self.cluster = cluster
        self.accepted_senders = members  # Other senders are ignored.
        self.accepted_by: Configuration | None = None  # The configuration that they come from.
        self._dialect = dialect  # The form of refusals that a leader understands.
        # The last request of each peer in text form (and its last chunk), with its answer: None
        # while it is in progress.
        self._last_text: dict[tuple[str, bool], tuple[bytes, bytes, list[bytes] | None]] = {}
        self.unknown_senders = 0
        self.malformed = 0  # Messages that were dropped because they break the specification.
        self.clients_wait = False  # Clients of this node wait for commits; our answers say so.

    def decode(
        self,
        routing_id: bytes,
        frames: list[bytes],
        send: Send,
        ignored: frozenset[str] = frozenset(),
    ) -> tuple[str, Message, Origin] | None:
        """Decodes a request of a peer in any form, or a TimeoutNow.

        ignored   members that must not send peer messages to this socket

        Returns (sender, message, origin); None for a repeat or an unknown sender. Raises
        RemoteProtocolError.
        """
        type_ = frames[1]
        if type_ not in PEER_REQUESTS:
            raise RemoteProtocolError(f"unknown message type {type_[:8].hex()}")
        message = PEER_REQUESTS[type_].decode(frames, self.cluster)
        if isinstance(message, PlainAppend):
            batches: list[EntryBatch] = []
            if message.entries and message.leader in self.accepted_senders - ignored:
                batches = block_from_entries(message.prev_index + 1, message.entries)
            message = AppendEntries(*message[:5], tuple(batches))
        last_index = 0
        if isinstance(message, AppendEntries):
            check_configs(message.batches)
            last_index = _last_index(message)
        elif isinstance(message, InstallSnapshot):
            last_index = message.offset + len(message.chunk)
        sender = message.candidate if isinstance(message, RequestVote) else message.leader
        if sender not in self.accepted_senders or sender in ignored:
            self.unknown_senders += 1
            return None
        if type_ in TEXT_TYPES:
            about = sender, type_ == v.INSTALL_SNAPSHOT
            if self._is_repeat(about, routing_id, frames, send):
                return None
        return sender, message, Origin(send, sender, routing_id, frames[0], type_, last_index)

    def _is_repeat(
        self, about: tuple[str, bool], routing_id: bytes, frames: list[bytes], send: Send
    ) -> bool:
        """Whether a request is a repeat. It gets the same answer, or none while the first is in
        progress."""
        last = self._last_text.get(about)
        if last is not None and last[0] == routing_id and last[1] == frames[0]:
            if last[2] is not None:
                send(last[2])
            return True
        self._last_text[about] = (routing_id, frames[0], None)
        return False

    def forget_request(self, origin: Origin) -> None:
        """The request was dropped: process a repeat of it like the first."""
        about = origin.peer, origin.type == v.INSTALL_SNAPSHOT
        last = self._last_text.get(about)
        if last is not None and last[:2] == (origin.routing_id, origin.message_id):
            del self._last_text[about]

    def forget_chunks(self) -> None:
        """All chunks in progress are lost: process repeats of them like the first."""
        self._last_text = {about: last for about, last in self._last_text.items() if not about[1]}

    def answer(self, origin: Origin, message: Message) -> None:
        """Sends the answer to the origin of its request, in the request's form."""
        message_id = v.decode_message_id(origin.message_id)
        if origin.type == v.APPEND_PACKED:
            assert isinstance(message, AppendResponse)
            if self.clients_wait:
                message = message._replace(clients_wait=True)
            origin.send([origin.routing_id, *APPEND_PACKED_ANSWER.encode(message, message_id)])
            return
        if isinstance(message, Vote):
            frames = VOTE_ANSWER.encode(message, message_id)
        elif isinstance(message, SnapshotResponse):
            if origin.type == v.INSTALL_PACKED:
                frames = INSTALL_PACKED_ANSWER.encode(message, message_id)
            else:
                if message.done or message.offset == origin.last_index:
                    message = message._replace(offset=None)
                frames = INSTALL_ANSWER.encode(message, message_id)
        else:
            assert isinstance(message, AppendResponse)
            if message.success and message.match_index < origin.last_index:
                # A success in text form cannot name our durable index: ask for entries from there
                # on.
                message = AppendResponse(
                    message.term, False, conflict_index=message.match_index + 1
                )
            frames = encode_append_answer(message, message_id, self._dialect(origin.peer))
        frames = [origin.routing_id, *frames]
        about = origin.peer, origin.type == v.INSTALL_SNAPSHOT
        last = self._last_text.get(about)
        if last is not None and last[0] == origin.routing_id and last[1] == origin.message_id:
            self._last_text[about] = (last[0], last[1], frames)
        origin.send(frames)
