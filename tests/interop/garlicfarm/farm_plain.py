"""A server of JRaft's protocol, written from its description alone, without sockets or clocks.

It imports nothing of kelek, so that it notices errors of kelek's codec and servers. It is as simple
and strict as the Java servers: one request under way to each server, a client is answered before
the commit, and an unexpected message fails an assertion.
"""

import gzip
import struct
from collections.abc import Callable
from random import Random
from typing import NamedTuple

HEADER = struct.Struct(">BiiQQQQI")
RESPONSE = struct.Struct(">BiiQQB")
ENTRY = struct.Struct(">QBI")
APPLICATION, CONFIGURATION, SERVER, PACK, SNAPSHOT = 1, 2, 3, 4, 5
VOTE, APPEND, CLIENT, ADD, REMOVE, SYNC, JOIN, LEAVE, INSTALL = 1, 3, 5, 6, 8, 10, 12, 14, 16
ANSWERS = {
    VOTE: 2,
    APPEND: 4,
    CLIENT: 4,
    ADD: 7,
    REMOVE: 9,
    SYNC: 11,
    JOIN: 13,
    LEAVE: 15,
    INSTALL: 17,
}
BLOCK = 4096
APPEND_MAX, SYNC_MAX, GAP = 5, 5, 5


class PlainFarmEntry(NamedTuple):
    term: int
    kind: int
    value: bytes


class PlainMessage(NamedTuple):
    kind: int
    source: int
    destination: int
    term: int
    last_term: int = 0
    last_index: int = 0
    commit: int = 0
    entries: tuple[PlainFarmEntry, ...] = ()

    def encode(self) -> bytes:
        body = b"".join(ENTRY.pack(t, k, len(v)) + v for t, k, v in self.entries)
        return HEADER.pack(*self[:7], len(body)) + body


class Answer(NamedTuple):
    kind: int
    source: int
    destination: int
    term: int
    next: int
    accepted: int


def take_request(buffer: bytearray) -> PlainMessage | None:
    """Removes the next whole request from the buffer's front."""
    if len(buffer) < HEADER.size:
        return None
    *fields, size = HEADER.unpack_from(buffer)
    if len(buffer) < HEADER.size + size:
        return None
    entries, at = [], HEADER.size
    while at < HEADER.size + size:
        term, kind, length = ENTRY.unpack_from(buffer, at)
        at += ENTRY.size
        entries.append(PlainFarmEntry(term, kind, bytes(buffer[at : at + length])))
        at += length
    assert at == HEADER.size + size
    del buffer[:at]
    return PlainMessage(*fields)._replace(entries=tuple(entries))


def take_answer(buffer: bytearray) -> Answer | None:
    if len(buffer) < RESPONSE.size:
        return None
    answer = Answer(*RESPONSE.unpack_from(buffer))
    del buffer[: RESPONSE.size]
    return answer


def configuration(index: int, previous: int, servers: dict[int, str]) -> bytes:
    parts = [struct.pack(">QQ", index, previous)]
    for number, endpoint in servers.items():
        parts.append(struct.pack(">ii", number, len(endpoint)) + endpoint.encode())
    return b"".join(parts)


def servers_of(value: bytes) -> dict[int, str]:
    at, servers = 16, {}
    while at < len(value):
        number, size = struct.unpack_from(">ii", value, at)
        servers[number] = value[at + 8 : at + 8 + size].decode()
        at += 8 + size
    assert at == len(value)
    return servers


def pack(entries: list[PlainFarmEntry], base: int) -> bytes:
    index, log = b"", b""
    for term, kind, value in entries:
        index += struct.pack(">Q", base + len(log))
        log += struct.pack(">QB", term, kind) + value
    return gzip.compress(struct.pack(">II", len(index), len(log)) + index + log)


def unpack(value: bytes) -> tuple[int, list[PlainFarmEntry]]:
    """The offset of the first entry in the sender's file, and the entries."""
    data = gzip.decompress(value)
    index_size, log_size = struct.unpack_from(">II", data)
    offsets = struct.unpack_from(f">{index_size // 8}Q", data, 8)
    log = data[8 + index_size :]
    assert len(log) == log_size
    ends = (*offsets[1:], offsets[0] + log_size)
    entries = []
    for begin, end in zip(offsets, ends, strict=True):
        piece = log[begin - offsets[0] : end - offsets[0]]
        term, kind = struct.unpack_from(">QB", piece)
        entries.append(PlainFarmEntry(term, kind, piece[9:]))
    return offsets[0], entries


class PlainLink:
    """An outgoing connection with one request at a time."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.out = bytearray()
        self.failure = ""
        self.buffer = bytearray()
        self.up = False
        self.asked: PlainMessage | None = None

    def lost(self) -> None:
        self.up, self.asked = False, None
        self.out.clear()
        self.buffer.clear()

    def send(self, message: PlainMessage) -> None:
        if self.up and self.asked is None:
            self.asked = message
            self.out += message.encode()


class Inbound:
    """An inbound connection."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.failure = ""
        self.buffer = bytearray()


class Plain:
    """One server; its owner moves the bytes and passes the time."""

    def __init__(self, number: int, servers: dict[int, str], now_ms: int, seed: int) -> None:
        self.number = number
        self.random = Random(seed)
        self.term, self.vote, self.leader = 0, 0, -1
        self.role = "follower"
        self.commit = 0
        self.start = 1  # The first index in the log; the snapshot has those below.
        self.start_term = 0  # Of the entry before it.
        self.log: list[PlainFarmEntry] = []
        self.snapshot = b""
        self.incoming = bytearray()
        self.servers = dict(servers)
        self.joining = not servers
        self.left = False
        self.election_ms = (3000, 5000)
        self.beat_ms = 1000
        self.due_ms = now_ms + self.random.randint(*self.election_ms)
        self.votes: set[int] = set()
        self.next: dict[int, int] = {}
        self.match: dict[int, int] = {}
        self.sent: dict[int, int] = {}  # Snapshot bytes that a server has.
        self.newcomer: tuple[int, str] | None = None
        self.joined = False  # The joining server has accepted.
        self.leaver: int | None = None
        self.links: dict[int, PlainLink] = {}
        self.inbound: dict[int, Inbound] = {}
        self._numbers = 0
        self.now_ms = now_ms

    # The log.

    @property
    def last(self) -> int:
        return self.start + len(self.log) - 1

    def term_at(self, index: int) -> int:
        if index == self.start - 1:
            return self.start_term
        return self.log[index - self.start].term

    def position(self, index: int) -> int:
        """The offset of an entry in the log file."""
        return sum(9 + len(entry.value) for entry in self.log[: index - self.start])

    def put(self, index: int, entry: PlainFarmEntry) -> None:
        del self.log[index - self.start :]
        self.log.append(entry)
        assert self.last == index

    def append(self, kind: int, value: bytes) -> None:
        self.put(self.last + 1, PlainFarmEntry(self.term, kind, value))

    def compact(self, data: bytes) -> None:
        """Drops committed entries, which the snapshot holds."""
        end = self.commit
        self.start_term = self.term_at(end)
        del self.log[: end - self.start + 1]
        self.start, self.snapshot = end + 1, data

    def commit_to(self, index: int) -> None:
        while self.commit < min(index, self.last):
            self.commit += 1
            entry = self.log[self.commit - self.start]
            if entry.kind == CONFIGURATION:
                self.servers = servers_of(entry.value)
                if self.number in self.servers:
                    self.joining = False
                elif not self.joining:
                    self.left, self.role = True, "follower"
                if self.newcomer and self.newcomer[0] in self.servers:
                    self.newcomer = None
                if self.leaver is not None and self.leaver not in self.servers:
                    self.leaver = None

    # Time.

    @property
    def deadline_ms(self) -> int:
        return self.due_ms

    def wake(self, now_ms: int) -> None:
        self.now_ms = now_ms
        wanted = {**self.servers, **dict([self.newcomer] if self.newcomer else [])}
        wanted.pop(self.number, None)
        for number, endpoint in wanted.items():
            self.links.setdefault(number, PlainLink(endpoint))
        for number in [each for each in self.links if each not in wanted]:
            del self.links[number]
        if now_ms < self.due_ms:
            return
        if self.role == "leader":
            self.due_ms = now_ms + self.beat_ms
            self.replicate()
            return
        self.due_ms = now_ms + self.random.randint(*self.election_ms)
        if self.joining or self.left:
            return
        self.role, self.leader = "candidate", -1
        self.term += 1
        self.vote, self.votes = self.number, {self.number}
        for number, link in self.links.items():
            last_term = self.term_at(self.last)
            link.send(PlainMessage(VOTE, self.number, number, self.term, last_term, self.last))
        self.count_votes()

    def write(self) -> None:
        """Without a disk there is nothing to wait for."""

    def count_votes(self) -> None:
        if self.role == "candidate" and 2 * len(self.votes) > len(self.servers):
            self.role, self.leader = "leader", self.number
            self.next = dict.fromkeys(self.servers, self.last + 1)
            self.match = dict.fromkeys(self.servers, 0)
            self.due_ms = self.now_ms
            self.append(CONFIGURATION, configuration(self.last + 1, 0, self.servers))
            self.advance()

    def follow(self, term: int) -> None:
        if term > self.term:
            self.term, self.vote, self.role, self.leader = term, 0, "follower", -1
            self.newcomer = self.leaver = None

    # The leader.

    def replicate(self) -> None:
        for number, link in self.links.items():
            if link.asked is None:
                self.feed(number, link)

    def feed(self, number: int, link: PlainLink) -> None:
        if self.newcomer and number == self.newcomer[0]:
            self.feed_newcomer(number, link)
        elif number == self.leaver and number in self.servers and self.last == self.commit:
            link.send(self.head(LEAVE, number, 0, self.last))
        elif self.next.setdefault(number, self.last + 1) < self.start:
            self.feed_snapshot(number, link)
        else:
            first = self.next[number]
            entries = self.log[first - self.start :][:APPEND_MAX]
            message = self.head(APPEND, number, self.term_at(first - 1), first - 1)
            link.send(message._replace(entries=tuple(entries)))

    def head(self, kind: int, to: int, last_term: int, last_index: int) -> PlainMessage:
        return PlainMessage(kind, self.number, to, self.term, last_term, last_index, self.commit)

    def feed_newcomer(self, number: int, link: PlainLink) -> None:
        if not self.joined:
            value = configuration(1, 0, self.servers)
            entry = PlainFarmEntry(self.term, CONFIGURATION, value)
            link.send(self.head(JOIN, number, 0, self.last)._replace(entries=(entry,)))
        elif self.next[number] < self.start:
            self.feed_snapshot(number, link)
        else:
            first = self.next[number]
            entries = self.log[first - self.start :][:SYNC_MAX]
            value = pack(entries, self.position(first))
            entry = PlainFarmEntry(self.term, PACK, value)
            link.send(self.head(SYNC, number, 0, first - 1)._replace(entries=(entry,)))

    def feed_snapshot(self, number: int, link: PlainLink) -> None:
        offset = self.sent.setdefault(number, 0)
        data = self.snapshot[offset : offset + BLOCK]
        config = configuration(1, 0, self.servers)
        value = struct.pack(">QQI", self.start - 1, self.start_term, len(config)) + config
        value += struct.pack(">QI", offset, len(data)) + data
        value += bytes([offset + len(data) == len(self.snapshot)])
        message = self.head(INSTALL, number, self.start_term, self.start - 1)
        link.send(message._replace(entries=(PlainFarmEntry(self.term, SNAPSHOT, value),)))

    def advance(self) -> None:
        """Commits what a majority has, if it is of the current term."""
        values = [self.match.get(number, 0) for number in self.servers if number != self.number]
        values.append(self.last)
        index = sorted(values)[(len(values) - 1) // 2]
        if index > self.commit and self.term_at(index) == self.term:
            self.commit_to(index)

    # Answers.

    def on_connected(self, number: int, now_ms: int) -> None:
        self.links[number].lost()
        self.links[number].up = True

    def on_lost(self, number: int) -> None:
        if number in self.links:
            self.links[number].lost()

    def on_responses(self, number: int, data: bytes, now_ms: int) -> None:
        self.now_ms = now_ms
        link = self.links.get(number)
        if link is None:
            return
        link.buffer += data
        while answer := take_answer(link.buffer):
            asked, link.asked = link.asked, None
            assert asked is not None, "an answer that nobody asked for"
            assert answer.kind == ANSWERS[asked.kind]
            assert answer.source == number
            assert answer.destination == self.number
            self.on_response(number, asked, answer)

    def on_response(self, number: int, asked: PlainMessage, answer: Answer) -> None:
        if answer.term > self.term and asked.kind in (VOTE, APPEND, INSTALL):
            self.follow(answer.term)
            return
        if asked.kind == VOTE:
            if answer.accepted and asked.term == self.term:
                self.votes.add(number)
                self.count_votes()
            return
        if self.role != "leader" or asked.term != self.term:
            return
        self.led[asked.kind](self, number, asked, answer)
        if number in self.links and self.links[number].asked is None and self.lags(number):
            self.feed(number, self.links[number])

    def lags(self, number: int) -> bool:
        is_newcomer = self.newcomer is not None and number == self.newcomer[0]
        return is_newcomer or self.next.get(number, self.last + 1) <= self.last

    def on_appended(self, number: int, asked: PlainMessage, answer: Answer) -> None:
        if answer.accepted:
            sent_to = asked.last_index + len(asked.entries)
            assert answer.next == sent_to + 1, "a server of JRaft would end here"
            self.next[number] = answer.next
            self.match[number] = max(self.match.get(number, 0), sent_to)
            self.advance()
            return
        assert answer.next > 1 or self.start == 1, "a compacted leader of JRaft would stall here"
        if 0 < answer.next < self.next[number]:
            self.next[number] = answer.next
        else:
            self.next[number] = max(1, self.next[number] - 1)

    def on_piece(self, number: int, asked: PlainMessage, answer: Answer) -> None:
        offset = self.sent[number]
        if not answer.accepted:
            self.sent[number] = 0
        elif answer.next == min(offset + BLOCK, len(self.snapshot)):
            self.sent[number] = answer.next
            if answer.next == len(self.snapshot):
                self.sent[number], self.next[number] = 0, asked.last_index + 1
        else:
            raise AssertionError(f"{answer.next} is not behind the piece at {offset}")

    def on_joined(self, number: int, asked: PlainMessage, answer: Answer) -> None:
        if answer.accepted:
            assert answer.next == 1, "a newcomer begins with an empty log"
            self.joined, self.next[number] = True, answer.next
        else:
            self.newcomer = None

    def on_synced(self, number: int, asked: PlainMessage, answer: Answer) -> None:
        assert answer.accepted
        self.next[number] = answer.next
        if self.newcomer and answer.next >= self.last - GAP:
            (number, endpoint), self.newcomer = self.newcomer, None
            servers = {**self.servers, number: endpoint}
            self.append(CONFIGURATION, configuration(self.last + 1, 0, servers))
            self.servers = servers
            self.replicate()

    def on_leaving(self, number: int, asked: PlainMessage, answer: Answer) -> None:
        assert answer.accepted
        servers = {each: where for each, where in self.servers.items() if each != number}
        self.append(CONFIGURATION, configuration(self.last + 1, 0, servers))
        self.leaver = None
        self.replicate()

    led: dict[int, Callable[["Plain", int, PlainMessage, Answer], None]] = {
        APPEND: on_appended,
        INSTALL: on_piece,
        JOIN: on_joined,
        SYNC: on_synced,
        LEAVE: on_leaving,
    }

    # Requests.

    def accept(self, grant: object) -> int:
        self._numbers += 1
        self.inbound[self._numbers] = Inbound()
        return self._numbers

    def on_closed(self, connection: int) -> None:
        self.inbound.pop(connection, None)

    def on_requests(self, connection: int, data: bytes, now_ms: int) -> None:
        self.now_ms = now_ms
        inbound = self.inbound[connection]
        inbound.buffer += data
        while message := take_request(inbound.buffer):
            accepted, next_index, to = self.on_request(message)
            kind = ANSWERS[message.kind]
            inbound.out += RESPONSE.pack(kind, self.number, to, self.term, next_index, accepted)

    def on_request(self, message: PlainMessage) -> tuple[bool, int, int]:
        """Accepted, next index, destination."""
        if message.kind in (CLIENT, ADD, REMOVE):
            accepted = self.role == "leader" and self.asked[message.kind](self, message)
            next_index = 0 if message.kind == CLIENT and not accepted else self.last + 1
            return accepted, next_index, self.leader
        assert message.destination == self.number
        if message.kind != JOIN:
            self.follow(message.term)
        accepted, next_index = self.asked_by_servers[message.kind](self, message)
        return accepted, next_index, message.source

    def heard(self, message: PlainMessage) -> bool:
        """Whether it comes from our leader."""
        if message.term < self.term:
            return False
        assert self.role != "leader", "somebody leads our term"
        self.role, self.leader = "follower", message.source
        self.due_ms = self.now_ms + self.random.randint(*self.election_ms)
        return True

    def on_vote(self, message: PlainMessage) -> tuple[bool, int]:
        assert not message.entries
        assert message.commit == 0
        mine = (self.term_at(self.last), self.last)
        fits = (message.last_term, message.last_index) >= mine
        granted = message.term == self.term and fits and self.vote in (0, message.source)
        if granted and not self.left:
            self.vote = message.source
            self.due_ms = self.now_ms + self.random.randint(*self.election_ms)
            return True, 0
        return False, 0

    def on_append(self, message: PlainMessage) -> tuple[bool, int]:
        at = message.last_index
        known = self.start - 1 <= at <= self.last
        fits = known and self.term_at(at) == message.last_term
        if not self.heard(message) or not (fits or at < self.start - 1):
            return False, self.last + 1
        for index, entry in enumerate(message.entries, at + 1):
            assert entry.kind in (APPLICATION, CONFIGURATION)
            if index >= self.start and (index > self.last or self.term_at(index) != entry.term):
                assert index > self.commit, "what is committed stays"
                self.put(index, entry)
        end = at + len(message.entries)
        self.commit_to(min(message.commit, end))
        return True, end + 1

    def on_join(self, message: PlainMessage) -> tuple[bool, int]:
        (entry,) = message.entries
        assert entry.kind == CONFIGURATION
        assert message.last_term == 0
        assert self.number not in servers_of(entry.value), "the newcomer is in it already"
        if not self.joining:
            return False, self.last + 1
        self.follow(message.term)
        self.leader, self.commit = message.source, 0
        return True, self.last + 1

    def on_sync(self, message: PlainMessage) -> tuple[bool, int]:
        assert message.last_term == 0
        assert self.joining
        assert self.start <= message.last_index + 1 <= self.last + 1, "a hole in the log"
        (entry,) = message.entries
        assert entry.kind == PACK
        base, entries = unpack(entry.value)
        first = message.last_index + 1
        assert base == self.position(first), "offsets are positions in our own file"
        self.heard(message)
        for index, each in enumerate(entries, first):
            self.put(index, each)
        return True, self.last + 1

    def on_leave(self, message: PlainMessage) -> tuple[bool, int]:
        assert not message.entries
        assert message.last_term == 0
        return True, self.last + 1

    def on_install(self, message: PlainMessage) -> tuple[bool, int]:
        (entry,) = message.entries
        index, term, size = struct.unpack_from(">QQI", entry.value)
        assert (message.last_term, message.last_index) == (term, index)
        config, at = entry.value[20 : 20 + size], 20 + size
        offset, size = struct.unpack_from(">QI", entry.value, at)
        data, done = entry.value[at + 12 : -1], entry.value[-1]
        assert len(data) == size
        self.heard(message)
        if offset == 0:
            self.incoming.clear()
        if offset != len(self.incoming):
            return False, 0
        self.incoming += data
        if done and index > self.commit:
            self.snapshot, self.log = bytes(self.incoming), []
            self.start, self.start_term, self.commit = index + 1, term, index
            self.servers = {**servers_of(config)}
        return True, offset + size

    def on_client(self, message: PlainMessage) -> bool:
        for entry in message.entries:
            assert entry.kind == APPLICATION
            self.append(APPLICATION, entry.value)
        self.replicate()
        return True

    def on_add(self, message: PlainMessage) -> bool:
        (entry,) = message.entries
        number, size = struct.unpack_from(">ii", entry.value)
        if self.newcomer or number in self.servers:
            return False
        self.newcomer, self.joined = (number, entry.value[8 : 8 + size].decode()), False
        return True

    def on_remove(self, message: PlainMessage) -> bool:
        (number,) = struct.unpack(">i", message.entries[0].value)
        if number == self.number or number not in self.servers or self.leaver is not None:
            return False
        self.leaver = number
        return True

    asked: dict[int, Callable[["Plain", PlainMessage], bool]] = {
        CLIENT: on_client,
        ADD: on_add,
        REMOVE: on_remove,
    }
    asked_by_servers: dict[int, Callable[["Plain", PlainMessage], tuple[bool, int]]] = {
        VOTE: on_vote,
        APPEND: on_append,
        JOIN: on_join,
        SYNC: on_sync,
        LEAVE: on_leave,
        INSTALL: on_install,
    }
