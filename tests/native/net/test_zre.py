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
        self.places: dict[bytes, tuple[int, Version]] = {}
        self.want: dict[int, int] = {}
        self.heard_ms: dict[int, int] = {}
        self.sequences: dict[int, int] = {}

    def take(self, messages: list[Message], now_ms: int) -> tuple[int, list[Said]]:
        """The same, of messages with routing id and address."""
        said: list[Said] = []
        for position, message in enumerate(messages):
            found = self._judge(message)
            if found is None:
                return position, said
            place, sequence, command = found
            self.want[place], self.heard_ms[place] = sequence, now_ms
            if isinstance(command, codec.Whisper):
                said.append((place, None, command.content))
            elif isinstance(command, codec.Shout):
                said.append((place, command.group.encode(), command.content))
        return len(messages), said

    def _judge(self, message: Message) -> tuple[int, int, codec.Command] | None:
        if len(message) < 3 or message[0] not in self.places:
            return None
        place, version = self.places[message[0]]
        try:
            sequence, command = codec.decode(message[2:], version)
        except Malformed:
            return None
        if not isinstance(command, codec.Whisper | codec.Shout | codec.PingOk):
            return None
        if isinstance(command, codec.Shout) and not command.group.isascii():
            return None
        if sequence != (self.want[place] + 1) % self.sequences[place]:
            return None
        return place, sequence, command


class TrafficPeer:
    """One that speaks, mostly well."""

    def __init__(self, dice: Random, version: Version) -> None:
        self.dice, self.version = dice, version
        self.routing_id = codec.routing_id(b"\x01" + dice.randbytes(15), version)
        self.sent = dice.choice([0, SEQUENCES - 20, SEQUENCES - 2, 510])

    def message(self) -> Message:
        dice = self.dice
        contents = 1 if self.version is Version.V1 else dice.choice([1, 1, 1, 2, 5])
        content = [dice.randbytes(dice.choice([0, 3, 300])) for _ in range(contents)]
        commands: list[codec.Command] = [
            codec.Whisper(content),
            codec.Shout(dice.choice(["", "g", "G" * 255, "é"]), content),
            codec.PingOk(),
            codec.Ping(),
            codec.Join("g", 3),
        ]
        command = dice.choices(commands, [10, 10, 4, 1, 1])[0]
        self.sent = (self.sent + 1) % SEQUENCES
        frames = codec.encode(self.sent, command, self.version)
        if dice.random() < 0.1:
            frames = self._broken(frames)
        return [self.routing_id, b"127.0.0.1", *frames]

    def _broken(self, frames: Message) -> Message:
        dice, head = self.dice, bytearray(frames[0])
        what = dice.randrange(5)
        if what == 0:
            head[dice.randrange(len(head))] ^= 1 << dice.randrange(8)
        elif what == 1:
            return [bytes(head[: dice.randrange(len(head))]), *frames[1:]]
        elif what == 2:
            return [bytes(head) + b"x", *frames[1:]]
        elif what == 3:
            return frames[:1]
        else:
            return [*frames, *[b"x"] * dice.choice([1, 1023, 1024])]
        return [bytes(head), *frames[1:]]


@pytest.mark.parametrize("seed", range(30))
def test_a_history_of_traffic_is_its_twins(seed: int) -> None:
    """What is taken in, and where it stops, is what the twin says; peers come and go."""
    dice = Random(seed)
    wire, twin = Wire(), TrafficTwin()
    peers: dict[int, TrafficPeer] = {}
    for turn in range(60):
        for _ in range(20 if turn == 0 else dice.randrange(3)):
            peer = TrafficPeer(dice, dice.choice(list(Version)))
            place = wire.add(Frames())
            peers[place] = peer
            if dice.random() < 0.9:
                wire.greeted(place, peer.routing_id, peer.version)
                twin.places[peer.routing_id] = place, peer.version
            wire.peer(place).want = twin.want[place] = peer.sent
            twin.sequences[place], twin.heard_ms[place] = SEQUENCES, 0
        if dice.random() < 0.5:
            place = dice.choice(list(peers))
            twin.places.pop(peers.pop(place).routing_id, None)
            wire.remove(place)
        speakers = [*peers.items(), (-1, TrafficPeer(dice, Version.V2))]
        messages, senders = [], []
        for _ in range(dice.randint(1, 60)):
            place, peer = dice.choice(speakers)
            messages.append(peer.message())
            senders.append((place, peer.sent))
        arena, position = Arena.from_messages(messages), 0
        while position < len(messages):
            stopped, said = wire.take(arena, position, turn)
            assert (stopped - position, said) == twin.take(messages[position:], turn)
            for place in peers:
                known = wire.peer(place).want, wire.peer(place).heard_ms
                assert known == (twin.want[place], twin.heard_ms[place])
            position = stopped + 1
            for place, sent in senders[stopped:position]:
                if place >= 0:  # The caller goes on behind what it stopped at.
                    wire.peer(place).want = twin.want[place] = sent


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("seed", range(8))
def test_what_waits_in_a_mailbox_is_taken_in_one_go(
    context: zmq.Context[zmq.Socket[bytes]], seed: int
) -> None:
    """One message, a few, many, and one that the arena is too small for: as the twin says."""
    dice = Random(seed)
    wire, twin = Wire(), TrafficTwin()
    with context.socket(zmq.ROUTER) as mailbox, context.socket(zmq.DEALER) as dealer:
        peer = TrafficPeer(dice, dice.choice(list(Version)))
        dealer.setsockopt(zmq.ROUTING_ID, peer.routing_id)
        mailbox.bind("inproc://mailbox")
        dealer.connect("inproc://mailbox")
        drain = Drain(
            mailbox, message_bytes_max=1 << 20, arena_bytes=1 << 10, frames=1 << 6, addressed=True
        )
        place = wire.add(Frames())
        wire.greeted(place, peer.routing_id, peer.version)
        twin.places[peer.routing_id] = place, peer.version
        twin.sequences[place] = SEQUENCES
        assert wire.receive(drain, 1) == (0, 0, 0, [])
        for turn in range(20):
            wire.peer(place).want = twin.want[place] = peer.sent
            messages = [peer.message() for _ in range(dice.choice([1, 1, 2, 16, 17, 30]))]
            for message in messages:
                dealer.send_multipart(message[2:])
            left, more = messages, True
            while more:
                count, size, position, said = wire.receive(drain, turn)
                found, left, more = left[:count], left[count:], drain.more
                assert [one[2:] for one in drain.arena.messages()] == [one[2:] for one in found]
                assert size == drain.arena.size
                assert (position, said) == twin.take(found, turn)
                want = (peer.sent - len(left)) % SEQUENCES
                wire.peer(place).want = twin.want[place] = want
            assert not left


@pytest.mark.parametrize("seed", range(10))
def test_what_is_said_is_what_the_twin_encodes(seed: int) -> None:
    dice = Random(seed)
    wire = Wire()
    outs = [Frames(64, 4) for _ in range(30)]
    places = [wire.add(out) for out in outs]
    versions = [dice.choice(list(Version)) for _ in outs]
    expected: list[list[Message]] = [[] for _ in outs]
    sent = [0] * len(outs)
    for place, version in zip(places, versions, strict=True):
        wire.peer(place).send_version = version
    for _ in range(50):
        to = dice.sample(range(len(outs)), dice.randint(0, len(outs)))
        group = dice.choice([None, "", "g", "é" * 127])
        content = dice.randbytes(dice.choice([0, 1, 200, 5000]))
        wire.say(
            PeerRows([places[i] for i in to]), None if group is None else group.encode(), content
        )
        for i in to:
            sent[i] += 1
            command = codec.Whisper([content]) if group is None else codec.Shout(group, [content])
            expected[i].append(codec.encode(sent[i], command, versions[i]))
    assert [out.messages() for out in outs] == expected


@pytest.mark.parametrize("version", Version)
def test_messages_of_one_sender_need_no_routing_id(version: Version) -> None:
    wire = Wire()
    place = wire.add(Frames())
    contents = [[b"x" * i] for i in range(20)]
    arena = Arena.from_messages(
        [codec.encode(i + 1, codec.Whisper(c), version) for i, c in enumerate(contents)]
    )
    assert FRAMES_MAX == CONTENT_FRAMES_MAX
    assert wire.take(arena, 0, 5, place) == (0, [])  # It has not greeted us.
    wire.greeted(place, codec.routing_id(b"\x07" * 16, version), version)
    assert wire.take(arena, 0, 5, place) == (20, [(place, None, content) for content in contents])


@pytest.mark.parametrize("version", Version)
def test_a_whisper_leaves_at_once_or_not_at_all(
    context: zmq.Context[zmq.Socket[bytes]], version: Version
) -> None:
    """What leaves is what the twin encodes; what can't leave has changed nothing."""
    wire, out = Wire(), Frames(64, 4)
    place = wire.add(out)
    wire.peer(place).send_version = version
    with context.socket(zmq.DEALER) as dealer, context.socket(zmq.ROUTER) as mailbox:
        dealer.setsockopt(zmq.SNDHWM, 2)
        socket = native_socket(dealer)
        assert not wire.whisper(place, b"nobody is there", socket)
        mailbox.setsockopt(zmq.RCVHWM, 2)
        mailbox.bind("inproc://mailbox")
        dealer.connect("inproc://mailbox")
        sent = 0
        while wire.whisper(place, bytes([sent]), socket):
            sent += 1
        assert 2 <= sent <= 4  # Until there is no room.
        for i in range(sent):
            frames = mailbox.recv_multipart()[1:]
            assert frames == codec.encode(i + 1, codec.Whisper([bytes([i])]), version)
        assert not wire.whisper(place, bytes(64), socket)  # It has no room in `out`.
        wire.say(PeerRows([place]), None, b"waits")
        assert not wire.whisper(place, b"before it", socket)
        assert out.messages() == [codec.encode(sent + 1, codec.Whisper([b"waits"]), version)]
        assert wire.peer(place).sent == sent + 1
