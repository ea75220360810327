"""WHISPER and SHOUT in C against a twin that decodes each message by itself."""

from random import Random

import pytest
import zmq

from kelek.native.net.messages import Arena, Frames
from kelek.native.net.sockets import Drain, native_socket
from kelek.native.net.zre import FRAMES_MAX, PeerRows, Said, Wire
from kelek.protocols.zre import codec
from kelek.protocols.zre.values import CONTENT_FRAMES_MAX, SEQUENCES, Malformed, Version

Message = list[bytes]


class TrafficTwin:
    """What each peer has said last, in a dict."""

    def __init__(self) -> None:
        self.rows: dict[bytes, tuple[int, Version]] = {}
        self.last_sequence: dict[int, int] = {}
        self.last_seen_ms: dict[int, int] = {}
        self.sequences: dict[int, int] = {}

    def receive_all(self, messages: list[Message], now_ms: int) -> tuple[int, list[Said]]:
        """The same, of messages with routing id and address."""
        messages_read: list[Said] = []
        for position, message in enumerate(messages):
            found = self._judge(message)
            if found is None:
                return position, messages_read
            row, sequence, command = found
            self.last_sequence[row], self.last_seen_ms[row] = sequence, now_ms
            if isinstance(command, codec.Whisper):
                messages_read.append((row, None, command.content))
            elif isinstance(command, codec.Shout):
                messages_read.append((row, command.group.encode(), command.content))
        return len(messages), messages_read

    def _judge(self, message: Message) -> tuple[int, int, codec.Command] | None:
        if len(message) < 3 or message[0] not in self.rows:
            return None
        row, version = self.rows[message[0]]
        try:
            sequence, command = codec.decode(message[2:], version)
        except Malformed:
            return None
        if not isinstance(command, codec.Whisper | codec.Shout | codec.PingOk):
            return None
        if isinstance(command, codec.Shout) and not command.group.isascii():
            return None
        if sequence != (self.last_sequence[row] + 1) % self.sequences[row]:
            return None
        return row, sequence, command


class TrafficPeer:
    """One that speaks, mostly well."""

    def __init__(self, rng: Random, version: Version) -> None:
        self.rng, self.version = rng, version
        self.routing_id = codec.routing_id(b"\x01" + rng.randbytes(15), version)
        self.sent = rng.choice([0, SEQUENCES - 20, SEQUENCES - 2, 510])

    def message(self) -> Message:
        rng = self.rng
        contents = 1 if self.version is Version.V1 else rng.choice([1, 1, 1, 2, 5])
        content = [rng.randbytes(rng.choice([0, 3, 300])) for _ in range(contents)]
        commands: list[codec.Command] = [
            codec.Whisper(content),
            codec.Shout(rng.choice(["", "g", "G" * 255, "é"]), content),
            codec.PingOk(),
            codec.Ping(),
            codec.Join("g", 3),
        ]
        command = rng.choices(commands, [10, 10, 4, 1, 1])[0]
        self.sent = (self.sent + 1) % SEQUENCES
        frames = codec.encode(self.sent, command, self.version)
        if rng.random() < 0.1:
            frames = self._broken(frames)
        return [self.routing_id, b"127.0.0.1", *frames]

    def _broken(self, frames: Message) -> Message:
        rng, head = self.rng, bytearray(frames[0])
        what = rng.randrange(5)
        if what == 0:
            head[rng.randrange(len(head))] ^= 1 << rng.randrange(8)
        elif what == 1:
            return [bytes(head[: rng.randrange(len(head))]), *frames[1:]]
        elif what == 2:
            return [bytes(head) + b"x", *frames[1:]]
        elif what == 3:
            return frames[:1]
        else:
            return [*frames, *[b"x"] * rng.choice([1, 1023, 1024])]
        return [bytes(head), *frames[1:]]


@pytest.mark.parametrize("seed", range(30))
def test_a_history_of_traffic_is_its_twins(seed: int) -> None:
    """What is taken in, and where it stops, is what the twin says; peers come and go."""
    rng = Random(seed)
    wire, twin = Wire(), TrafficTwin()
    peers: dict[int, TrafficPeer] = {}
    for round_number in range(60):
        for _ in range(20 if round_number == 0 else rng.randrange(3)):
            peer = TrafficPeer(rng, rng.choice(list(Version)))
            row = wire.add(Frames())
            peers[row] = peer
            if rng.random() < 0.9:
                wire.greeted(row, peer.routing_id, peer.version)
                twin.rows[peer.routing_id] = row, peer.version
            wire.peer(row).want = twin.last_sequence[row] = peer.sent
            twin.sequences[row], twin.last_seen_ms[row] = SEQUENCES, 0
        if rng.random() < 0.5:
            row = rng.choice(list(peers))
            twin.rows.pop(peers.pop(row).routing_id, None)
            wire.remove(row)
        sending = [*peers.items(), (-1, TrafficPeer(rng, Version.V2))]
        messages, senders = [], []
        for _ in range(rng.randint(1, 60)):
            row, peer = rng.choice(sending)
            messages.append(peer.message())
            senders.append((row, peer.sent))
        arena, position = Arena.from_messages(messages), 0
        while position < len(messages):
            stopped, messages_read = wire.take(arena, position, round_number)
            assert (stopped - position, messages_read) == twin.receive_all(
                messages[position:], round_number
            )
            for row in peers:
                known = wire.peer(row).want, wire.peer(row).heard_ms
                assert known == (twin.last_sequence[row], twin.last_seen_ms[row])
            position = stopped + 1
            for row, sent in senders[stopped:position]:
                if row >= 0:  # The caller goes on behind what it stopped at.
                    wire.peer(row).want = twin.last_sequence[row] = sent


@pytest.mark.parametrize("seed", range(8))
def test_a_mailbox_is_read_in_one_batch(context: zmq.Context[zmq.Socket[bytes]], seed: int) -> None:
    """One message, a few, many, and one that the arena is too small for: as the twin says."""
    rng = Random(seed)
    wire, twin = Wire(), TrafficTwin()
    with context.socket(zmq.ROUTER) as mailbox, context.socket(zmq.DEALER) as dealer:
        peer = TrafficPeer(rng, rng.choice(list(Version)))
        dealer.setsockopt(zmq.ROUTING_ID, peer.routing_id)
        mailbox.bind("inproc://mailbox")
        dealer.connect("inproc://mailbox")
        drain = Drain(
            mailbox, message_bytes_max=1 << 20, arena_bytes=1 << 10, frames=1 << 6, addressed=True
        )
        row = wire.add(Frames())
        wire.greeted(row, peer.routing_id, peer.version)
        twin.rows[peer.routing_id] = row, peer.version
        twin.sequences[row] = SEQUENCES
        assert wire.receive(drain, 1) == (0, 0, 0, [])
        for round_number in range(20):
            wire.peer(row).want = twin.last_sequence[row] = peer.sent
            messages = [peer.message() for _ in range(rng.choice([1, 1, 2, 16, 17, 30]))]
            for message in messages:
                dealer.send_multipart(message[2:])
            left, more = messages, True
            while more:
                count, size, position, messages_read = wire.receive(drain, round_number)
                found, left, more = left[:count], left[count:], drain.more
                assert [one[2:] for one in drain.arena.messages()] == [one[2:] for one in found]
                assert size == drain.arena.size
                assert (position, messages_read) == twin.receive_all(found, round_number)
                want = (peer.sent - len(left)) % SEQUENCES
                wire.peer(row).want = twin.last_sequence[row] = want
            assert not left


@pytest.mark.parametrize("seed", range(10))
def test_sent_messages_are_those_of_the_twin(seed: int) -> None:
    rng = Random(seed)
    wire = Wire()
    outs = [Frames(64, 4) for _ in range(30)]
    rows = [wire.add(out) for out in outs]
    versions = [rng.choice(list(Version)) for _ in outs]
    expected: list[list[Message]] = [[] for _ in outs]
    sent = [0] * len(outs)
    for row, version in zip(rows, versions, strict=True):
        wire.peer(row).send_version = version
    for _ in range(50):
        to = rng.sample(range(len(outs)), rng.randint(0, len(outs)))
        group = rng.choice([None, "", "g", "é" * 127])
        content = rng.randbytes(rng.choice([0, 1, 200, 5000]))
        wire.say(
            PeerRows([rows[i] for i in to]), None if group is None else group.encode(), content
        )
        for i in to:
            sent[i] += 1
            command = codec.Whisper([content]) if group is None else codec.Shout(group, [content])
            expected[i].append(codec.encode(sent[i], command, versions[i]))
    assert [out.messages() for out in outs] == expected


@pytest.mark.parametrize("version", Version)
def test_messages_of_one_sender_need_no_routing_id(version: Version) -> None:
    wire = Wire()
    row = wire.add(Frames())
    contents = [[b"x" * i] for i in range(20)]
    arena = Arena.from_messages(
        [codec.encode(i + 1, codec.Whisper(c), version) for i, c in enumerate(contents)]
    )
    assert FRAMES_MAX == CONTENT_FRAMES_MAX
    assert wire.take(arena, 0, 5, row) == (0, [])  # It has not greeted us.
    wire.greeted(row, codec.routing_id(b"\x07" * 16, version), version)
    assert wire.take(arena, 0, 5, row) == (
        20,
        [(row, None, content) for content in contents],
    )


@pytest.mark.parametrize("version", Version)
def test_a_whisper_leaves_at_once_or_not_at_all(
    context: zmq.Context[zmq.Socket[bytes]], version: Version
) -> None:
    """What leaves is what the twin encodes; what can't leave has changed nothing."""
    wire, out = Wire(), Frames(64, 4)
    row = wire.add(out)
    wire.peer(row).send_version = version
    with context.socket(zmq.DEALER) as dealer, context.socket(zmq.ROUTER) as mailbox:
        dealer.setsockopt(zmq.SNDHWM, 2)
        socket = native_socket(dealer)
        assert not wire.whisper(row, b"nobody is there", socket)
        mailbox.setsockopt(zmq.RCVHWM, 2)
        mailbox.bind("inproc://mailbox")
        dealer.connect("inproc://mailbox")
        sent = 0
        while wire.whisper(row, bytes([sent]), socket):
            sent += 1
        assert 2 <= sent <= 4  # Until there is no room.
        for i in range(sent):
            frames = mailbox.recv_multipart()[1:]
            assert frames == codec.encode(i + 1, codec.Whisper([bytes([i])]), version)
        assert not wire.whisper(row, bytes(64), socket)  # It has no room in `out`.
        wire.say(PeerRows([row]), None, b"waits")
        assert not wire.whisper(row, b"before it", socket)
        assert out.messages() == [codec.encode(sent + 1, codec.Whisper([b"waits"]), version)]
        assert wire.peer(row).sent == sent + 1
