"""A client of ZMQ RAFT without I/O: it finds the leader, keeps the order, and repeats requests.

URLs name its connections. Its owner reports events and messages, and then carries out what ready()
returns. The client never sends an update to find the leader (docs/protocols/zmq-raft.md, "Finding
the leader").
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...connections import ClientAction, Connect, Disconnect, Listen, Send, Unlisten
from ...errors import RemoteProtocolError
from ...failover.limits import (
    NEVER_MS,
    RESEND_PAUSE_MS,
    RESPONSE_TTL_MS,
    SEARCH_MS,
    SEARCH_RETRY_MS,
)
from ...failover.servers import Candidate, Failover, FailoverPolicy
from ..wire.client_codec import (
    CONFIG_ANSWER,
    STATE_BROADCAST,
    UPDATE_ANSWER,
    ClientRequest,
    ConfigAnswer,
    EntriesStatus,
    Form,
    RequestConfig,
    RequestEntries,
    UpdateStatus,
    encode_client_request,
)
from ..wire.extensions import (
    ENTRIES_ANSWERS,
    ENTRIES_PACKED_REQUEST,
    HELLO_ANSWER,
    HELLO_REQUEST,
    NOT_ALLOWED_ANSWER,
    PACK_ANSWER,
    PACK_GAP,
    PACK_NOT_LEADER,
    TOO_MANY_ANSWER,
    Hello,
)
from ..wire.values import (
    ENTRIES_PACKED,
    HELLO,
    NOT_ALLOWED,
    READ_INDEX,
    TOO_MANY,
    UPDATE_PACK,
    Feature,
)
from .read_window import PendingRead, ReadWindow
from .requests import (
    TOO_MANY_STREAMS,
    BackupStream,
    EntryRun,
    EntryStream,
    Query,
    SnapshotPiece,
    denial_of,
)
from .subscription import Subscription
from .window import PendingUpdates, Window, WindowLimits

HELLO_TRIES = 3  # A peer that answers so many requests, but not their hellos, is foreign.


class LogClientSetup(NamedTuple):
    """Settings of a client: the cluster, and the specification's times."""

    cluster: bytes
    urls: tuple[str, ...]
    version: str = ""
    form: Form | None = None  # None: packs if the leader knows them, else node form.
    limits: WindowLimits = WindowLimits()
    response_ttl_ms: int = RESPONSE_TTL_MS
    search_ms: int = SEARCH_MS  # How often each peer is asked, instead of one grace period.
    # Updates are operations on tables: they go to the leader's `peer_url`.
    for_tables: bool = False
    notice: bool = False  # Warn of requests that wait without a leader.
    reach_ms: int | None = NEVER_MS  # Of the failover.


class _Peer(Candidate):
    """What a peer has said in this connection."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.hello: Hello | None = None
        self.hello_id = b""
        self.unanswered_hellos = 0
        self.poll_id = b""  # The id of the last RequestConfig of this search.
        # The id of the same request in the other form. Text form names no cluster: an answer to it
        # alone says that the peer belongs to another one, or speaks node form only.
        self.other_id = b""
        self.node_only = False  # It has answered only in node form.
        self.says_it_leads = False  # It says in this search that it leads.

    def has_feature(self, feature: str) -> bool:
        return self.hello is not None and feature in self.hello.features

    @property
    def is_foreign(self) -> bool:
        """Whether it answers requests but no hello: it is of another implementation."""
        return self.hello is None and self.unanswered_hellos >= HELLO_TRIES


class LogClientMachine:
    """The client's state machine. Call ready() after any method that takes now_ms."""

    def __init__(self, setup: LogClientSetup, new_id: Callable[[], bytes], now_ms: int) -> None:
        self.setup = setup
        self.window = Window(setup.cluster, setup.limits)
        self.reads = ReadWindow(setup.cluster, new_id)
        self.leader_form: Form | None = None  # None: packs.
        self._updates_url: str | None = None  # The leader's URL for our updates.
        self._updates_up = False  # Whether that connection is made.
        self.heard = False  # A peer of the cluster has answered.
        self.members: dict[str, str] = {}  # The URL of each PEER ID, by the last answer.
        self.counters: Counter[str] = Counter()
        policy = FailoverPolicy(
            kind="peer",
            plural="leaders",
            ident=setup.cluster.decode(errors="replace"),
            search_ms=setup.search_ms,
            search_retry_ms=SEARCH_RETRY_MS,
            silence_ms=setup.response_ttl_ms,
            keeps_left=True,
            notice=setup.notice,
            reach_ms=setup.reach_ms,
        )
        self.failover: Failover[_Peer] = Failover(policy, self, _Peer, self.counters)
        self.new_id = new_id
        # The URL of each subscription's SUB socket.
        self._subscriptions: dict[Subscription, str | None] = {}
        self._queries: dict[bytes, Query] = {}
        self.streams: dict[bytes, EntryStream] = {}
        # To be requested (again), from the leader or from the peer at their URLs.
        self._unsent_streams: list[EntryStream] = []
        self._resend_due_ms: int | None = None  # After a gap.
        self._resent_ms: int | None = None
        self.failover.search(now_ms)

    @property
    def leader(self) -> str | None:
        """The URL of the peer that says it leads."""
        current = self.failover.current
        return None if current is None else current.url

    @property
    def packs_url(self) -> str | None:
        """Where the owner may send packs itself, until something else than the answers of the
        leader arrives; None: not now, or updates of the window are not answered."""
        if (
            self.window.items
            or not self._updates_up
            or self.failover.current is None
            or self.leader_form is not None
            or self._resend_due_ms is not None
        ):
            return None
        return self._updates_url

    @property
    def index_url(self) -> str | None:
        """Where the owner may ask for a read index itself, until something else than the answers of
        the leader arrives; None: not now, or reads of the window are not answered."""
        leader = self.failover.current
        if leader is None or len(self.reads) or not leader.has_feature(Feature.READS):
            return None
        return leader.url

    # ---- requests of the owner ----

    def query(self, ask: Query) -> Query:
        """Sends a query to the leader, or to the peer at its URL."""
        self._queries[ask.request.reqid] = ask
        if self.setup.form is not Form.TEXT:
            ask.accepts_no_url = True
        if ask.url is not None:
            self.failover.connect(ask.url)
        return ask

    def drop_query(self, ask: Query) -> None:
        """Forgets a query, and a connection that was made for it alone."""
        self._queries.pop(ask.request.reqid, None)
        if self.leader is not None and ask.url is not None:
            self._disconnect_unused(ask.url)

    def _disconnect_unused(self, url: str) -> None:
        unused = url != self.leader and url not in self._queried_urls()
        if url in self.failover.servers and unused:
            self.failover.disconnect(url)

    def subscribe(self, subscription: Subscription) -> Subscription:
        """Maintains a subscription until unsubscribe()."""
        self._subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription, None) is not None:
            self.failover.actions.append(Unlisten(subscription))
        subscription.close(self)

    def open_stream(self, stream: EntryStream) -> EntryStream:
        """Requests entries from the leader, or from the peer at the stream's URL."""
        if self.setup.form is not None:
            stream.url = None  # Other peers need kelek's own form.
        if not stream.done:
            self._unsent_streams.append(stream)
        return stream

    def next_run(self, stream: EntryStream, now_ms: int) -> EntryRun | None:
        """Returns the next entries for their reader, and sends the follow-up."""
        run, follow_up = stream.next_run()
        self._send_follow_up(stream, follow_up, now_ms)
        return run

    def next_piece(self, stream: BackupStream, now_ms: int) -> SnapshotPiece | None:
        """As next_run(): the next piece of a snapshot, before any entries."""
        piece, follow_up = stream.next_piece()
        self._send_follow_up(stream, follow_up, now_ms)
        return piece

    def _send_follow_up(
        self, stream: EntryStream, follow_up: RequestEntries | None, now_ms: int
    ) -> None:
        url = stream.url or self.leader
        if follow_up is not None and url is not None:
            stream.heard_ms = now_ms
            self._send_request(url, follow_up)

    def close_stream(self, stream: EntryStream) -> None:
        """Stops a stream before its end."""
        self._forget_stream(stream)
        url = stream.url or self.leader
        if not stream.done:
            stop = stream.stop()
            if stop is not None and url is not None:
                self._send_request(url, stop)
        if stream.url is not None and self.leader is not None:
            self._disconnect_unused(stream.url)

    # ---- events ----

    def on_connected(self, url: str, now_ms: int) -> None:
        """The connection is made, or made again: it can be sent to."""
        if url == self._updates_url:
            self._updates_up = True
        peer = self.failover.on_connected(url, now_ms)
        if peer is not None:
            peer.hello_id = self.new_id()

    def on_disconnected(self, url: str, now_ms: int) -> None:
        """The connection is lost. If it was the leader's, the search starts at once."""
        if url == self._updates_url and url != self.leader:
            self.failover.leave("updates_lost", now_ms)
        elif self.failover.on_disconnected(url, now_ms) is not None:
            for ask in self._queries.values():
                if ask.url == url:
                    ask.sent_ms = None
            for stream in self._streams_of(url):
                self._move_to_leader(stream)

    def on_refused(self, url: str, problem: str, way_out: str, may_pass: bool = False) -> None:
        """The connection is not made: a key is missing or refused, or the host has no address."""
        self.failover.on_refused(url, problem, way_out, may_pass)

    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None:
        """A message has arrived. An invalid one is dropped and counted."""
        if url == self._updates_url and self.leader is not None:
            url = self.leader
        peer = self.failover.servers.get(url)
        if peer is None or not frames:
            return
        try:
            self._on_message(peer, frames, now_ms)
        except RemoteProtocolError:
            self.counters["junk"] += 1

    def on_broadcast(
        self, subscription: Subscription, frames: Sequence[bytes], now_ms: int
    ) -> None:
        """A message of a subscription's SUB has arrived. An invalid one is dropped and counted."""
        if subscription not in self._subscriptions:
            return
        try:
            message = STATE_BROADCAST.decode(frames, self.setup.cluster)
        except RemoteProtocolError:
            self.counters["junk"] += 1
            return
        subscription.on_broadcast(message, now_ms)

    def _on_message(self, peer: _Peer, frames: Sequence[bytes], now_ms: int) -> None:
        reqid = frames[0]
        if reqid == peer.poll_id:
            self.failover.on_heard(peer, now_ms)
            peer.node_only = False
            self._on_config(peer, CONFIG_ANSWER.decode(frames), now_ms)
        elif reqid == peer.other_id:
            CONFIG_ANSWER.decode(frames)
            if self.setup.form is Form.TEXT:
                peer.node_only = not peer.answered
            else:
                peer.is_elsewhere = not peer.is_known
        elif len(frames) > 1 and frames[1] == NOT_ALLOWED:
            self._on_denied(frames)
        elif len(frames) > 1 and frames[1] == TOO_MANY:
            TOO_MANY_ANSWER.decode(frames)
            if reqid in self.streams:
                self.streams.pop(reqid).deny(TOO_MANY_STREAMS)
                self.counters["denied"] += 1
        elif len(frames) > 1 and frames[1] == UPDATE_PACK and self.window.awaits(reqid):
            self._on_pack_answer(peer, frames, now_ms)
        elif len(frames) > 1 and frames[1] == READ_INDEX and self.reads.awaits(reqid):
            if not self.reads.on_answer(frames, now_ms):
                self._on_refused(peer, now_ms)
        elif len(frames) > 1 and frames[1] == HELLO:
            hello = HELLO_ANSWER.decode(frames)
            if reqid == peer.hello_id:
                peer.hello = hello
                self._try_leader(peer, now_ms)
        elif reqid in self._queries:
            ask = self._queries[reqid]
            if ask.on_answer(frames, now_ms):
                if ask.done:
                    self.drop_query(ask)
            elif peer is self.failover.current:
                self.failover.leave("refused", now_ms)
        elif reqid in self.streams and len(frames) > 1:
            self._on_entries(peer, frames, now_ms)
        elif self.window.awaits(reqid):
            self._on_update_answer(peer, frames, now_ms)
        else:
            self.counters["strays"] += 1

    def _on_denied(self, frames: Sequence[bytes]) -> None:
        """The key of this client does not allow a request. Another leader would refuse it, too."""
        reqid, reason = frames[0], denial_of(NOT_ALLOWED_ANSWER.decode(frames).request_type)
        if self.window.awaits(reqid):
            self.window.on_denied(reqid, reason)
        elif self.reads.awaits(reqid):
            self.reads.on_denied(reqid, reason)
        elif reqid in self._queries:
            ask = self._queries[reqid]
            ask.deny(reason)
            self.drop_query(ask)
        elif reqid in self.streams:
            self.streams.pop(reqid).deny(reason)
        else:
            self.counters["strays"] += 1
            return
        self.counters["denied"] += 1

    def _on_pack_answer(self, peer: _Peer, frames: Sequence[bytes], now_ms: int) -> None:
        answer = PACK_ANSWER.decode(frames)
        if answer.status == PACK_NOT_LEADER:
            self._on_refused(peer, now_ms)
        elif answer.status == PACK_GAP:
            if peer is self.failover.current:
                self._on_gap(now_ms)
        else:
            self.window.on_pack_answer(frames[0], answer, now_ms)

    def _on_gap(self, now_ms: int) -> None:
        """The leader lacks an update before this one: repeats the whole window, after a pause.

        A leader drops what it cannot queue; so fewer packs are sent at once until it keeps up.
        """
        self.counters["gaps"] += 1
        if self._resend_due_ms is None:
            self._resend_due_ms = now_ms
            if self._resent_ms is not None:
                self._resend_due_ms = max(now_ms, self._resent_ms + RESEND_PAUSE_MS)
            self.window.halve_packs()

    def _on_update_answer(self, peer: _Peer, frames: Sequence[bytes], now_ms: int) -> None:
        answer = UPDATE_ANSWER.decode(frames)
        if answer.status is UpdateStatus.REFUSED:
            self._on_refused(peer, now_ms)
        else:
            self.window.on_update_answer(frames[0], answer, now_ms)

    def _on_entries(self, peer: _Peer, frames: Sequence[bytes], now_ms: int) -> None:
        answer = ENTRIES_ANSWERS[frames[1] == ENTRIES_PACKED].decode(frames)
        stream = self.streams[frames[0]]
        if answer.status is EntriesStatus.NOT_LEADER:
            if stream.url is None:
                self._on_refused(peer, now_ms)
            else:
                self._move_to_leader(stream)
            return
        stream.heard_ms = now_ms
        follow_up = stream.on_answer(answer)
        if follow_up is not None:
            self._send_request(peer.url, follow_up)
        if stream.done:
            del self.streams[frames[0]]

    def explain(self, timeout_ms: int) -> str:
        """Why no leader is found, and the way out."""
        text = self.failover.explain(timeout_ms)
        urls = [peer.url for peer in self.failover.servers.values() if peer.node_only]
        if not urls:
            return text
        return f"{text} {', '.join(urls)} answers in node form only: leave out form='text'"

    # ---- the leader ----

    def _on_refused(self, peer: _Peer, now_ms: int) -> None:
        """The leader no longer leads: search again. A peer that it names is asked like all
        others."""
        if peer is self.failover.current:
            self.failover.leave("refused", now_ms)

    def _on_config(self, peer: _Peer, answer: ConfigAnswer, now_ms: int) -> None:
        self.heard = True
        if answer.members:
            self.members = dict(answer.members)
        peer.says_it_leads = answer.leading
        peer.unanswered_hellos += peer.hello is None
        if self.leader is None:
            for url in self.members.values():
                self.failover.connect(url)
            self._try_leader(peer, now_ms)

    def _try_leader(self, peer: _Peer, now_ms: int) -> None:
        """Accepts a peer that says it leads, once its features are known."""
        if self.leader is not None or not (peer.connected and peer.says_it_leads):
            return
        form = self.setup.form
        if form is None:
            if peer.hello is None and not peer.is_foreign:
                return
            form = None if peer.has_feature(Feature.PACK) else Form.NODE
        self.leader_form = form
        self.failover.use(peer, now_ms, self._queried_urls())

    # ---- the service of the failover ----

    def on_used(self, peer: _Peer, now_ms: int) -> None:
        self._updates_url, self._updates_up = peer.url, True
        if self.setup.for_tables and peer.has_feature(Feature.TABLES):
            assert peer.hello is not None
            if peer.hello.peer_url and peer.hello.peer_url not in self.failover.servers:
                self._updates_url, self._updates_up = peer.hello.peer_url, False
                self.failover.actions.append(Connect(self._updates_url))

    def on_left(self, leader: _Peer, why: str) -> None:
        if self._updates_url not in (None, leader.url):
            # As for a lost leader: no message in it may reach a later leader.
            self.failover.actions.append(Disconnect(self._updates_url))
        self._updates_url = None
        if why == "silent" and self.leader_form is not None and self.window.heard_ms is not None:
            self.window.flow.on_silence()
        self.window.rewind()
        self.reads.rewind()
        self._resend_due_ms = None
        for reqid, stream in list(self.streams.items()):
            if stream.url is None:
                del self.streams[reqid]
                stream.reqid = None
                self._unsent_streams.append(stream)
        for ask in self._queries.values():
            if ask.url is None:
                ask.sent_ms = None
        for peer in self.failover.servers.values():
            peer.says_it_leads, peer.poll_id = False, b""

    def candidates(self) -> Iterable[str]:
        return (*self.setup.urls, *self.members.values(), *self._queried_urls())

    def waits(self) -> str | None:
        streams = self._unsent_streams or self._subscriptions
        idle = not (self.window.items or self._queries or streams or len(self.reads))
        return None if idle else ""

    def owed(self) -> tuple[int | None, int]:
        since = []
        if self.window.heard_ms is not None:
            ttl_ms = self.setup.response_ttl_ms
            doublings = 0 if self.leader_form is None else self.window.flow.silences
            since.append(self.window.heard_ms + (ttl_ms << doublings) - ttl_ms)
        if self.reads.heard_ms is not None:
            since.append(self.reads.heard_ms)
        since += [
            stream.heard_ms + stream.PATIENCE_MS
            for stream in self.streams.values()
            if stream.awaits_peer and stream.url is None
        ]
        since += [
            ask.sent_ms
            for ask in self._queries.values()
            if ask.sent_ms is not None and ask.url is None
        ]
        return min(since, default=None), self.window.size

    def ask(self, peer: _Peer, now_ms: int) -> None:
        """Asks a peer whether it leads, with a hello before that until the peer has answered
        one."""
        if self.setup.form is None and peer.hello is None:
            hello = Hello("", self.setup.version)
            self._send(peer.url, HELLO_REQUEST.encode(hello, peer.hello_id, self.setup.cluster))
        peer.poll_id = self.new_id()
        self._send_request(peer.url, RequestConfig(peer.poll_id))
        is_text = self.setup.form is Form.TEXT
        if not peer.answered and (is_text or self.failover.is_new):
            # It may be unreachable, not know our form, or be of another cluster. The request
            # changes nothing.
            peer.other_id = self.new_id()
            form = Form.NODE if is_text else Form.TEXT
            request = RequestConfig(peer.other_id)
            self._send(peer.url, encode_client_request(request, self.setup.cluster, form))

    def _queried_urls(self) -> set[str]:
        asked = [ask.url for ask in self._queries.values()]
        asked += [stream.url for stream in (*self._unsent_streams, *self.streams.values())]
        return {url for url in asked if url is not None}

    # ---- actions ----

    def ready(self, now_ms: int) -> list[ClientAction]:
        """Returns the actions to carry out now, in order."""
        self.failover.step(now_ms)
        self._send_peer_streams(now_ms)
        for subscription, url in self._subscriptions.items():
            subscription.step(self, now_ms)
            if subscription.url != url:
                self._listen(subscription, url)
        if self.failover.current is not None:
            self._send_to_leader(self.failover.current, now_ms)
        self._send_queries(now_ms)
        actions, self.failover.actions = self.failover.actions, []
        return actions

    def _listen(self, subscription: Subscription, url: str | None) -> None:
        if url is not None:
            self.failover.actions.append(Unlisten(subscription))
        if subscription.url is not None:
            listen = Listen(subscription, subscription.url, self.setup.cluster, self.leader or "")
            self.failover.actions.append(listen)
        self._subscriptions[subscription] = subscription.url

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called next, at the latest."""
        times = [self.failover.deadline_ms]
        times += [
            ask.sent_ms + self.setup.response_ttl_ms
            for ask in self._queries.values()
            if ask.sent_ms is not None
        ]
        if self.leader is not None:
            times += [it.deadline_ms for it in self._subscriptions if it.deadline_ms is not None]
            if self._resend_due_ms is not None:
                times.append(self._resend_due_ms)
            unheard = {stream.url for stream in self._unsent_streams if stream.url is not None}
            unheard |= {
                ask.url or self.leader for ask in self._queries.values() if ask.makes_snapshot
            }
            times += [
                self.failover.ask_due_ms(peer)
                for peer in self.failover.servers.values()
                if peer.connected and peer.url in unheard and peer.hello is None
            ]
        for stream in (*self._unsent_streams, *self.streams.values()):
            if stream.url is not None and (stream.awaits_peer or stream.reqid is None):
                times.append(self._silent_at_ms(stream))
        return min((time for time in times if time < NEVER_MS), default=None)

    def _send_to_leader(self, leader: _Peer, now_ms: int) -> None:
        if self._resend_due_ms is not None and self._resend_due_ms <= now_ms:
            self.window.rewind()
            self._resend_due_ms, self._resent_ms = None, now_ms
        if self._updates_up and self._updates_url is not None:
            for frames in self.window.unsent(self.leader_form, now_ms):
                self._send(self._updates_url, frames)
        if not leader.has_feature(Feature.READS):
            self.reads.refuse(f"the leader at {leader.url} serves no linearizable reads")
        for frames in self.reads.unsent(now_ms):
            self._send(leader.url, frames)
        packed = self.leader_form is None and leader.has_feature(Feature.ENTRIES)
        for stream in [it for it in self._unsent_streams if it.url is None]:
            if isinstance(stream, BackupStream) and not leader.has_feature(Feature.BACKUP):
                self._unsent_streams.remove(stream)
                stream.deny(f"the leader at {leader.url} serves no backups: upgrade its node")
            else:
                self._start_stream(stream, leader.url, packed, now_ms)

    # ---- streams ----

    def _start_stream(self, stream: EntryStream, url: str, packed: bool, now_ms: int) -> None:
        self._unsent_streams.remove(stream)
        reqid = self.new_id()
        self.streams[reqid] = stream
        stream.heard_ms = now_ms
        if isinstance(stream, BackupStream):
            stream.read_from(url)
        self._send_request(url, stream.start(reqid, packed))

    def _forget_stream(self, stream: EntryStream) -> None:
        if stream in self._unsent_streams:
            self._unsent_streams.remove(stream)
        if stream.reqid is not None:
            self.streams.pop(stream.reqid, None)

    def _streams_of(self, url: str) -> list[EntryStream]:
        return [it for it in (*self._unsent_streams, *self.streams.values()) if it.url == url]

    def _move_to_leader(self, stream: EntryStream) -> None:
        """The peer at the stream's URL does not serve it: the leader does."""
        self._forget_stream(stream)
        url, stream.reqid, stream.url = stream.url, None, None
        self.counters["given_up"] += 1
        self._unsent_streams.append(stream)
        if url is not None and self.leader is not None:
            self._disconnect_unused(url)

    def _silent_at_ms(self, stream: EntryStream) -> int:
        """When the peer of a stream counts as silent."""
        return stream.heard_ms + self.setup.response_ttl_ms + stream.PATIENCE_MS

    def _send_peer_streams(self, now_ms: int) -> None:
        """Requests entries from peers whose hello names that feature.

        A stream of a peer without the feature, or of a silent one, moves to the leader.
        """
        for stream in [*self._unsent_streams, *self.streams.values()]:
            if stream.url is None or not (stream.awaits_peer or stream.reqid is None):
                continue
            if not stream.heard_ms:
                stream.heard_ms = now_ms
            if self._silent_at_ms(stream) <= now_ms:
                self._move_to_leader(stream)
        for stream in list(self._unsent_streams):
            if stream.url is None:
                continue
            self.failover.connect(stream.url)
            peer = self.failover.servers.get(stream.url)
            if peer is None or not peer.connected:
                continue
            is_backup = isinstance(stream, BackupStream)
            if peer.has_feature(Feature.BACKUP if is_backup else Feature.ANYWHERE):
                self._start_stream(stream, peer.url, True, now_ms)
            elif peer.hello is not None:
                self._move_to_leader(stream)
            elif self.leader is not None:
                self.failover.ask_if_due(peer, now_ms)

    def _send_queries(self, now_ms: int) -> None:
        for ask in self._queries.values():
            url = self.leader if ask.url is None else ask.url
            peer = self.failover.servers.get(url) if url is not None else None
            again = ask.sent_ms is None or now_ms >= ask.sent_ms + self.setup.response_ttl_ms
            if peer is None or not peer.connected or ask.done:
                continue
            if ask.is_transfer and not peer.has_feature(Feature.TRANSFER):
                ask.refuse(f"the leader at {peer.url} knows no leadership transfer")
            elif ask.makes_snapshot and self.setup.form is None and peer.hello is None:
                # A foreign peer drops an unknown request without an answer.
                if peer.is_foreign:
                    ask.refuse(
                        f"{peer.url} does not make snapshots on request: it is no kelek peer"
                    )
                elif self.leader is not None:
                    self.failover.ask_if_due(peer, now_ms)
            elif again:
                ask.sent_ms = now_ms
                self._send(peer.url, ask.encode(self.setup.cluster, self.setup.form or Form.NODE))

    def _send_request(self, url: str, request: ClientRequest) -> None:
        if isinstance(request, RequestEntries) and request.packed:
            self._send(url, ENTRIES_PACKED_REQUEST.encode(request, cluster=self.setup.cluster))
            return
        form = self.setup.form or Form.NODE
        self._send(url, encode_client_request(request, self.setup.cluster, form))

    def _send(self, url: str, frames: list[bytes]) -> None:
        self.failover.send(url, frames)


__all__ = [
    "BackupStream",
    "Connect",
    "Disconnect",
    "EntryRun",
    "EntryStream",
    "Listen",
    "LogClientMachine",
    "LogClientSetup",
    "PendingRead",
    "PendingUpdates",
    "Query",
    "Send",
    "SnapshotPiece",
    "Subscription",
    "Unlisten",
    "WindowLimits",
]
