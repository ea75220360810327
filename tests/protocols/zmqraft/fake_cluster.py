"""Peers that answer the client machine as specified, in virtual time."""

import heapq
from collections.abc import Callable, Collection
from functools import partial
from itertools import count

from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.client.client import (
    Connect,
    Disconnect,
    Listen,
    LogClientMachine,
    LogClientSetup,
    Send,
    Subscription,
    Unlisten,
)
from kelek.protocols.zmqraft.wire import client_codec as codec
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire.client_codec import UpdateStatus
from kelek.protocols.zmqraft.wire.config_codec import ConfigUpdate
from kelek.protocols.zmqraft.wire.snapshot_codec import MakeSnapshot
from kelek.protocols.zmqraft.wire.transfer_codec import (
    TRANSFER_ANSWER,
    TRANSFER_REQUEST,
    RequestTransfer,
    TransferAnswer,
)
from kelek.protocols.zmqraft.wire.values import (
    ENTRIES_PACKED,
    HELLO,
    READ_INDEX,
    TRANSFER,
    UPDATE_PACK,
    encode_json,
)
from kelek.tests.protocols.zmqraft.wire_strategies import encode_entry

IDENT = b"demo"
LATENCY_MS = 1
ENTRIES_PER_ANSWER = 3
PIPELINES = 5


class SharedLog:
    """What the cluster has committed; these peers never disagree."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self.index_of: dict[bytes, int] = {}

    def add(self, reqid: bytes, data: bytes) -> int:
        if reqid not in self.index_of:
            self.records.append((reqid, data))
            self.index_of[reqid] = len(self.records)
        return self.index_of[reqid]


class FakePeer:
    """One peer as a client sees it; tests bend it by its attributes."""

    def __init__(self, cluster: "FakeCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.url = f"tcp://{name}"
        self.alive = True
        self.mute = False  # Takes everything in and says nothing, as a stopped process does.
        self.leads = False
        self.pub: str | None = "tcp://pub"  # What it says when it is asked where it broadcasts.
        self.serves = True  # Entries, also while it does not lead, when it is asked for that.
        self.entries_sent = 0  # Answers to that.
        self.lags = 0  # So many of the last entries it does not have yet.
        self.speaks = True  # Our hello and packs.
        self.says_it_is_there = False  # RequestConfig in text form too, which names no cluster.
        self.features: tuple[str, ...] = (
            "pack",
            "append",
            "reads",
            "transfer",
            "entries",
            "anywhere",
        )
        self.denies: Collection[bytes] = ()  # The types of requests that the client's key lacks.
        self.confirms = True  # Reads; else they only wait.
        self.reads = 0  # That came.
        self.transfers: list[RequestTransfer] = []  # The first one only hears that it is taken.
        self.drop_packs = 0  # So many are lost, for want of room.
        self.refuse: str | None = None
        self.commits = True
        self.taken: list[list[bytes]] = []  # Updates and packs that came.
        self.streams: dict[bytes, list[int]] = {}  # Stream: unacknowledged last indexes.

    def on_frames(self, frames: list[bytes]) -> list[list[bytes]]:
        if self.mute:
            return []
        reqid, kind = frames[:2]
        if kind in self.denies:
            return [own.NOT_ALLOWED_ANSWER.encode(own.RequestDenied(kind), reqid)]
        if kind == HELLO:
            if not self.speaks:
                return []
            hello = own.Hello(self.name, "1", self.features)
            return [own.HELLO_ANSWER.encode(hello, reqid)]
        if kind == UPDATE_PACK:
            return self._on_pack(frames) if self.speaks else []
        if kind == TRANSFER:
            return [
                TRANSFER_ANSWER.encode(
                    self._on_transfer(TRANSFER_REQUEST.decode(frames, IDENT)), reqid
                )
            ]
        if kind == READ_INDEX:
            return [[reqid, READ_INDEX, *self._on_read()]]
        if kind == ENTRIES_PACKED:
            return self._on_entries(own.ENTRIES_PACKED_REQUEST.decode(frames, IDENT))
        form, request = codec.decode_client_request(frames, IDENT)
        if form is not (self.cluster.form or codec.Form.NODE):
            assert isinstance(request, codec.RequestConfig), "only a question asks for the form"
            if not (self.says_it_is_there and form is codec.Form.TEXT):
                return []
        match request:
            case codec.RequestConfig():
                members = tuple((peer.name, peer.url) for peer in self.cluster.peers)
                answer = codec.ConfigAnswer(self.leads, self.leader, members)
                return [codec.CONFIG_ANSWER.encode(answer, reqid)]
            case codec.RequestLogInfo():
                last = len(self.cluster.log.records)
                info = codec.LogInfo(self.leads, self.leader, 1, 1, last, last, last)
                return [codec.LOG_INFO_ANSWER.encode(info, reqid)]
            case codec.RequestBroadcastStateUrl():
                return [codec.STATE_URL_ANSWER.encode(codec.StateUrlAnswer(self.pub), reqid)]
            case codec.RequestUpdate():
                return [codec.UPDATE_ANSWER.encode(self._on_update(frames, request), reqid)]
            case codec.RequestEntries():
                return self._on_entries(request)
            case ConfigUpdate() | MakeSnapshot():
                raise AssertionError("the members are fixed, and its log is never cut")

    @property
    def leader(self) -> str | None:
        return next((peer.name for peer in self.cluster.peers if peer.leads), None)

    def _on_update(self, frames: list[bytes], request: codec.RequestUpdate) -> codec.UpdateAnswer:
        self.taken.append(frames)
        if not self.leads:
            return codec.UpdateAnswer(UpdateStatus.REFUSED, leader=self.leader)
        if self.refuse is not None:
            return codec.UpdateAnswer(UpdateStatus.REJECTED)
        index = self.cluster.log.add(request.reqid, request.data)
        return codec.UpdateAnswer(UpdateStatus.COMMITTED, index)

    def _on_transfer(self, request: RequestTransfer) -> TransferAnswer:
        self.transfers.append(request)
        if not self.leads:
            return TransferAnswer(0, self.leader)
        if request.to == "n9":
            return TransferAnswer(2, reason="n9 is no member")
        if len(self.transfers) == 1:
            return TransferAnswer(1)
        if request.to != self.name and request.away in ("", self.name):
            for peer in self.cluster.peers:
                peer.leads = peer.name == (request.to or "n3")
        return TransferAnswer(1, self.leader)

    def _on_read(self) -> list[bytes]:
        self.reads += 1
        if not self.leads:
            return [b"\0", encode_json(self.leader)]
        return [b"\1", bytes([len(self.cluster.log.records) + 1]) if self.confirms else b""]

    def _on_pack(self, frames: list[bytes]) -> list[list[bytes]]:
        self.taken.append(frames)
        pack = own.PACK_REQUEST.decode(frames, IDENT)
        if not self.leads:
            answer = own.PackAnswer(own.PACK_NOT_LEADER, leader=self.leader)
        elif self.drop_packs:
            self.drop_packs -= 1
            return []
        elif self.refuse is not None:
            position = min(1, len(records_of(pack.records)) - 1)
            answer = own.PackAnswer(own.PACK_REFUSED, position=position, reason=self.refuse)
        elif pack.previous and pack.previous not in self.cluster.log.index_of:
            answer = own.PackAnswer(own.PACK_GAP)
        elif not self.commits:
            answer = own.PackAnswer(own.PACK_ACCEPTED)
        else:
            indexes = [
                self.cluster.log.add(record.reqid or b"", record.data)
                for record in records_of(pack.records)
            ]
            runs = own_runs(indexes)
            answer = own.PackAnswer(own.PACK_ACCEPTED, runs=runs)
        return [own.PACK_ANSWER.encode(answer, pack.reqid)]

    def _on_entries(self, request: codec.RequestEntries) -> list[list[bytes]]:
        if not self.leads and not (request.any_peer and self.serves):
            answer = codec.EntriesAnswer(codec.EntriesStatus.NOT_LEADER, leader=self.leader)
            return [self._encode(request, answer)]
        self.entries_sent += 1
        if request.limit == 0:
            self.streams.pop(request.reqid, None)
            return []
        if self.cluster.answer_entries is not None:
            return [self._encode(request, self.cluster.answer_entries)]
        out = []
        waiting = self.streams.get(request.reqid)
        at = request.prev_index
        if waiting and waiting[0] == request.prev_index:
            del waiting[0]
            at = waiting[-1] if waiting else request.prev_index
        else:
            waiting = self.streams[request.reqid] = []
        last = len(self.cluster.log.records) - self.lags
        if request.limit is not None:
            last = min(last, request.prev_index + request.limit)
        while len(waiting) < PIPELINES:
            end = min(at + ENTRIES_PER_ANSWER, last)
            records = [Record(0, *record) for record in self.cluster.log.records[at:end]]
            status = codec.EntriesStatus.LAST if end == last else codec.EntriesStatus.MORE
            answer = codec.EntriesAnswer(status, end)
            if request.packed:
                blocks = [encode_block(at + 1 + n, 1, [one]) for n, one in enumerate(records)]
                answer = answer._replace(batches=tuple(blocks))
            else:
                entries = tuple(encode_entry(1, record) for record in records)
                answer = answer._replace(entries=entries)
            out.append(self._encode(request, answer))
            if end == last:
                break
            waiting.append(end)
            at = end
        return out

    def _encode(self, request: codec.RequestEntries, answer: codec.EntriesAnswer) -> list[bytes]:
        return own.ENTRIES_ANSWERS[request.packed].encode(answer, request.reqid)


def records_of(records: bytes) -> list[Record]:
    """The records of a pack, in plain Python."""
    found = []
    at = 0
    while at < len(records):
        size = shift = 0
        while True:
            byte = records[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        record = records[at : at + size]
        at += size
        assert record[0] == 0x80, "a state record with its reqid"
        found.append(Record(0, record[1:13], record[13:]))
    return found


def own_runs(indexes: list[int]) -> tuple[tuple[int, int], ...]:
    """One run an index: as good as any."""
    return tuple((1, index) for index in indexes)


class FakeCluster:
    """The client, three peers, and a clock that only events move."""

    def __init__(
        self, form: codec.Form | None = None, known: int = 3, lead: str = "", entries: int = 0
    ) -> None:
        self.form = form
        self.log = SharedLog()
        self.peers = [FakePeer(self, name) for name in ("n1", "n2", "n3")]
        self.now_ms = 1000
        self.sent: list[tuple[int, str, list[bytes]]] = []
        self._order = count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.listening: dict[Subscription, str] = {}
        self.answer_entries: codec.EntriesAnswer | None = None  # To every request, in its place.
        self.links: dict[str, int] = {}  # url: generation; frames of older ones are lost.
        self._generation = count(1)
        self._ids = count(1)
        self._arrivals: dict[int, int] = {}
        urls = tuple(peer.url for peer in self.peers[:known])
        self.client = LogClientMachine(
            LogClientSetup(IDENT, urls, form=form), self.new_id, self.now_ms
        )
        if lead:
            self.lead(lead)
        for number in range(entries):
            self.log.add(b"%012d" % number, b"%d" % number)

    def latency_ms(self) -> int:
        return LATENCY_MS

    def new_id(self) -> bytes:
        return next(self._ids).to_bytes(12, "big")

    def peer(self, url: str) -> FakePeer:
        return next(peer for peer in self.peers if peer.url == url)

    def broadcast(self, name: str, entries: int) -> None:
        """What the state machine of a peer sends: the last entries, to all that listen to it."""
        last_index = len(self.log.records)
        records = self.log.records[last_index - entries :]
        message = codec.StateBroadcast(
            1, last_index, tuple(encode_entry(1, Record(0, *record)) for record in records)
        )
        frames = codec.STATE_BROADCAST.encode(message, cluster=IDENT)
        for subscription, url in self.listening.items():
            if url == self.peer(f"tcp://{name}").pub:
                self._later(LATENCY_MS, partial(self._on_broadcast, subscription, url, frames))

    def _on_broadcast(self, subscription: Subscription, url: str, frames: list[bytes]) -> None:
        if self.listening.get(subscription) == url:
            self.client.on_broadcast(subscription, frames, self.now_ms)

    def lead(self, name: str) -> FakePeer:
        for peer in self.peers:
            peer.leads = peer.name == name
        return self.peer(f"tcp://{name}")

    def kill(self, name: str) -> None:
        """As SIGKILL does: the connection is lost at once."""
        peer = self.peer(f"tcp://{name}")
        peer.alive = peer.leads = False
        self.reset(peer)

    def reset(self, peer: FakePeer) -> None:
        """Breaks the client's connection; like ZeroMQ it connects again by itself."""

        def lost() -> None:
            generation = self.links.get(peer.url)
            if generation is not None:
                self.client.on_disconnected(peer.url, self.now_ms)
                self._try(peer.url, generation)

        self._later(0, lost)

    def at(self, delay_ms: int, do: Callable[[], object]) -> None:
        self._later(delay_ms, lambda: (do(), None)[1])

    def run(self, until: Callable[[], bool], limit_ms: int = 5000) -> int:
        """Lets time pass until something is so; returns how long it took."""
        begun_ms = self.now_ms
        while True:
            done = until()
            self.act()
            if done or until():
                return self.now_ms - begun_ms
            times = [self._events[0][0]] if self._events else []
            if self.client.deadline_ms is not None:
                times.append(max(self.client.deadline_ms, self.now_ms))
            assert times, "nothing will ever happen again"
            moved = max(self.now_ms, min(times))
            assert moved - begun_ms <= limit_ms, "it took too long"
            self.now_ms = moved
            while self._events and self._events[0][0] <= self.now_ms:
                heapq.heappop(self._events)[2]()

    def _later(self, delay_ms: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._order), do))

    def act(self) -> None:
        for action in self.client.ready(self.now_ms):
            match action:
                case Connect(url):
                    self.links[url] = next(self._generation)
                    self._try(url, self.links[url])
                case Disconnect(url):
                    del self.links[url]
                case Send(url, frames):
                    self.sent.append((self.now_ms, url, frames))
                    self._deliver(url, frames)
                case Listen(subscription, url):
                    assert subscription not in self.listening
                    self.listening[subscription] = url
                case Unlisten(subscription):
                    del self.listening[subscription]

    def _try(self, url: str, generation: int) -> None:
        def attempt() -> None:
            if self.links.get(url) != generation:
                return
            if self.peer(url).alive:
                self.client.on_connected(url, self.now_ms)
            else:
                self._later(50, attempt)

        self._later(LATENCY_MS, attempt)

    def _deliver(self, url: str, frames: list[bytes]) -> None:
        """In order on each connection; what is under way arrives even when that is gone."""
        generation = self.links[url]

        def arrive() -> None:
            if self.peer(url).alive:
                for answer in self.peer(url).on_frames(frames):
                    self.reply(url, generation, answer)

        self._arrivals[generation] = max(
            self._arrivals.get(generation, 0), self.now_ms + self.latency_ms()
        )
        self._later(self._arrivals[generation] - self.now_ms, arrive)

    def reply(self, url: str, generation: int, answer: list[bytes]) -> None:
        """Sends to the client, if the connection still stands then."""

        def come_back() -> None:
            if self.links.get(url) == generation and self.peer(url).alive:
                self.client.on_frames(url, answer, self.now_ms)

        self._later(LATENCY_MS, come_back)


def settled() -> FakeCluster:
    """n1 leads, and the client knows that."""
    cluster = FakeCluster(lead="n1")
    cluster.run(lambda: cluster.client.leader is not None)
    return cluster
