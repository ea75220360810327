"""Drain and send_batch over real sockets; pyzmq at the other end is their twin."""

import errno
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from kelek._native import ffi, lib
from kelek.native.broker.relay import send_messages
from kelek.native.net import sockets
from kelek.native.net.messages import Arena, Frames
from kelek.native.net.sockets import Drain, libzmq_paths, send_batch
from kelek.tests.native.broker import bundle_twin

Socket = zmq.Socket[bytes]
Pair = Callable[..., tuple[Socket, Socket]]
DEADLINE_MS = 60_000


@pytest.fixture
def pair(ipc_dir: Path, context: zmq.Context[Socket]) -> Iterator[Pair]:
    """Makes (bound, connected) sockets of two types over ipc, without a HWM unless one is given."""

    sockets_made: list[Socket] = []

    def make(bound_type: int, connected_type: int, hwm: int = 0) -> tuple[Socket, Socket]:
        bound, connected = context.socket(bound_type), context.socket(connected_type)
        for socket in (bound, connected):
            socket.linger = 0
            socket.sndhwm = socket.rcvhwm = hwm
            sockets_made.append(socket)
        bound.bind(f"ipc://{ipc_dir}/s")
        connected.connect(f"ipc://{ipc_dir}/s")
        return bound, connected

    yield make
    for socket in sockets_made:
        socket.close()


def receive(drain: Drain, socket: Socket, count: int) -> list[list[bytes]]:
    """The next count messages, waiting for them."""
    messages: list[list[bytes]] = []
    while len(messages) < count:
        assert drain.more or socket.poll(DEADLINE_MS), f"{len(messages)} of {count} messages came"
        messages += drain.receive().messages()
    assert len(messages) == count
    return messages


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    rng = random.Random(1)
    sent = [
        [rng.randbytes(rng.choice([0, 1, 5, 300, 5000])) for _ in range(rng.randint(1, 9))]
        for _ in range(2000)
    ]
    drain = Drain(bound, message_bytes_max=1 << 20, arena_bytes=9000, frames=20)
    frames = Frames()
    for message in sent:
        frames.add(message)
    assert len(frames) == 2000
    assert send_batch(connected, frames, "keep") == 2000
    assert len(frames) == 0
    assert receive(drain, bound, 2000) == sent
    assert drain.dropped == 0


def test_a_router_tells_where_its_messages_come_from(context: zmq.Context[Socket]) -> None:
    """A frame behind the routing id: the address, or nothing where there is none."""
    router, over_tcp, within = (
        context.socket(kind) for kind in (zmq.ROUTER, zmq.DEALER, zmq.DEALER)
    )
    port = router.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=30_000)
    router.bind("inproc://addressed")
    over_tcp.routing_id, within.routing_id = b"tcp", b"inproc"
    over_tcp.connect(f"tcp://127.0.0.1:{port}")
    within.connect("inproc://addressed")
    drain = Drain(router, message_bytes_max=1 << 20, addressed=True)
    over_tcp.send_multipart([b"a", b"b"])
    assert receive(drain, router, 1) == [[b"tcp", b"127.0.0.1", b"a", b"b"]]
    within.send(b"c")
    assert receive(drain, router, 1) == [[b"inproc", b"", b"c"]]
    for socket in (router, over_tcp, within):
        socket.close(linger=0)


def test_nothing_waits(pair: Pair) -> None:
    bound, _ = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=100)
    assert drain.receive().count == 0
    assert not drain.more
    with pytest.raises(IndexError):
        drain.receive().message(0)


def test_router_answers(pair: Pair) -> None:
    router, dealer = pair(zmq.ROUTER, zmq.DEALER)
    drain, answers = (Drain(s, message_bytes_max=100) for s in (router, dealer))
    dealer.send_multipart([b"id", b"", b"x"])
    [[routing_id, *rest]] = receive(drain, router, 1)
    assert rest == [b"id", b"", b"x"]
    frames = Frames()
    frames.add([routing_id, b"id", b"\x01"])
    assert send_batch(router, frames) == 1
    assert receive(answers, dealer, 1) == [[b"id", b"\x01"]]


@pytest.mark.parametrize("size", [20 << 20, (4 << 20) + 1])
def test_a_frame_larger_than_the_arena_is_delivered_whole(pair: Pair, size: int) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=32 << 20)
    large = random.Random(size).randbytes(size)
    for message in ([b"a"], [b"b", large, b"c"], [b"d"]):
        connected.send_multipart(message)
    assert receive(drain, bound, 3) == [[b"a"], [b"b", large, b"c"], [b"d"]]


def test_a_grown_arena_shrinks_again(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=1 << 20, arena_bytes=1000, frames=10)
    connected.send_multipart([bytes(500_000)] + [b"."] * 50)
    receive(drain, bound, 1)
    assert drain.is_grown
    for i in range(300):
        connected.send(b"%d" % i)
        assert receive(drain, bound, 1) == [[b"%d" % i]]
    assert not drain.is_grown


def test_messages_over_a_limit_are_dropped_whole(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=1000, message_frames_max=10, arena_bytes=300)
    sent = [
        [b"first"],
        [b"x" * 1001],
        [b"fits", b"y" * 996],
        [b"over", b"y" * 997],
        [b"x" * 500, b"x" * 500, b"x", b"more", b"and more"],
        [b"."] * 10,
        [b"."] * 11,
        [b"last", b""],
    ]
    for message in sent:
        connected.send_multipart(message)
    expected = [sent[0], sent[2], sent[5], sent[7]]
    assert receive(drain, bound, 4) == expected
    assert drain.dropped == 4


def test_endless_more_frames_are_thrown_away(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=1 << 16, message_frames_max=64)
    frames = Frames()
    frames.add([b"1234"] * 600_000)
    frames.add([b"after"])
    assert send_batch(connected, frames, "keep") == 2
    assert receive(drain, bound, 1) == [[b"after"]]
    assert drain.dropped == 1
    assert not drain.is_grown


def test_an_unreachable_peer_loses_only_its_own(pair: Pair) -> None:
    router, dealer = pair(zmq.ROUTER, zmq.DEALER)
    router.router_mandatory = 1
    drain, answers = (Drain(s, message_bytes_max=100) for s in (router, dealer))
    dealer.send(b"hello")
    [[routing_id, _]] = receive(drain, router, 1)
    frames = Frames()
    for to, text in [(b"gone", b"0"), (routing_id, b"1"), (b"gone", b"2"), (routing_id, b"3")]:
        frames.add([to, text, b"end"])
    assert send_batch(router, frames) == 2
    assert (frames.dropped, len(frames), frames.count) == (2, 0, 0)
    assert receive(answers, dealer, 2) == [[b"1", b"end"], [b"3", b"end"]]


def test_a_full_router_drops_and_goes_on(pair: Pair) -> None:
    router, dealer = pair(zmq.ROUTER, zmq.DEALER, hwm=1)
    router.router_mandatory = 1
    drain, arrived = (Drain(s, message_bytes_max=1 << 20) for s in (router, dealer))
    dealer.send(b"hello")
    [[routing_id, _]] = receive(drain, router, 1)
    frames = Frames()
    for i in range(2000):
        frames.add([routing_id, bytes(1 << 14), b"%d" % i])
    sent = send_batch(router, frames)
    assert 0 < sent < 2000
    assert sent + frames.dropped == 2000
    assert len(frames) == 0
    # libzmq aborts when a socket closes without linger under a half sent message (libzmq#3442).
    numbers = [int(message[1]) for message in receive(arrived, dealer, sent)]
    assert numbers == sorted(set(numbers))


def test_a_full_pipe_keeps_the_rest_in_order(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH, hwm=10)
    drain = Drain(bound, message_bytes_max=1000, arena_bytes=200)
    sent = [[b"%d" % i, b"x" * (i % 90)] for i in range(1000)]
    frames = Frames()
    for message in sent:
        frames.add(message)
    sent_count = send_batch(connected, frames, "keep")
    assert len(frames) == 1000 - sent_count > 0
    frames.add([b"added", b"later"])
    received: list[list[bytes]] = []
    while len(received) < 1001:
        if len(frames) and connected.poll(0, zmq.POLLOUT):
            send_batch(connected, frames, "keep")
        assert drain.more or bound.poll(DEADLINE_MS)
        received += drain.receive().messages()
    assert received == [*sent, [b"added", b"later"]]


def test_messages_are_sent_on_and_stay_where_they_are(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH, hwm=10)
    drain = Drain(bound, message_bytes_max=1000)
    messages = [[b"%d" % i, b"x"] for i in range(1000)]
    arena = Arena.from_messages(messages)
    position = 10
    received: list[list[bytes]] = []
    while len(received) < 990:
        if position < 1000 and connected.poll(0, zmq.POLLOUT):
            position, dropped = send_messages(connected, arena, position, "keep")
            assert dropped == 0
        assert drain.more or bound.poll(DEADLINE_MS)
        received += drain.receive().messages()
    assert position == 1000
    assert (received, arena.messages()) == (messages[10:], messages)


def test_a_closed_socket_is_refused(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=100)
    frames = Frames()
    frames.add([b"x"])
    bound.close()
    connected.close()
    for use in (drain.receive, lambda: send_batch(connected, frames)):
        with pytest.raises(OSError) as caught:
            use()
        assert caught.value.errno == errno.ENOTSOCK
    assert len(frames) == 1


def test_a_forked_child_is_refused(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=100)
    frames = Frames()
    frames.add([b"1"])
    send_batch(connected, frames)
    frames.add([b"2"])

    def refused(use: Callable[[], object]) -> bool:
        try:
            use()
        except OSError as error:
            return error.errno == errno.ENOTSOCK
        return False

    child = os.fork()
    if child == 0:
        took = refused(drain.receive) and refused(lambda: send_batch(connected, frames))
        os._exit(0 if took else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert send_batch(connected, frames) == 1
    assert receive(drain, bound, 2) == [[b"1"], [b"2"]]


def test_an_asyncio_socket_is_refused() -> None:
    with (
        zmq.asyncio.Context() as context,
        context.socket(zmq.PULL) as socket,
        pytest.raises(TypeError, match="asyncio"),
    ):
        Drain(socket, message_bytes_max=100)  # type: ignore[arg-type]


def test_a_terminated_context_is_an_error(ipc_dir: Path) -> None:
    context: zmq.Context[Socket] = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.bind(f"ipc://{ipc_dir}/s")
    drain = Drain(socket, message_bytes_max=100)
    ended = threading.Thread(target=context.term)
    ended.start()
    try:
        with pytest.raises(zmq.ContextTerminated):
            socket.recv()
        with pytest.raises(OSError) as caught:
            drain.receive()
        assert caught.value.errno in (zmq.ETERM, errno.ENOTSOCK)
    finally:
        socket.close()
        ended.join()


def test_signals_neither_lose_nor_cut(pair: Pair) -> None:
    """Interrupted many times, messages still come whole and in order."""
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=1 << 20, arena_bytes=5000)
    sent = [[b"%d" % i] * (i % 7 + 1) for i in range(20_000)]
    frames = Frames()
    for message in sent:
        frames.add(message)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        assert send_batch(connected, frames, "keep") == len(sent)
        assert receive(drain, bound, len(sent)) == sent
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_drain_that_goes_away_mid_message_frees_it(pair: Pair) -> None:
    bound, connected = pair(zmq.PULL, zmq.PUSH)
    drain = Drain(bound, message_bytes_max=1 << 20, arena_bytes=100, frames=4)
    for _ in range(3):
        connected.send_multipart([b"x" * 60, b"y" * 60])
    assert bound.poll(DEADLINE_MS)
    drain.receive()
    del drain


# ---- bundles of the broker protocol ----


def small_messages(rng: random.Random) -> list[list[bytes]]:
    sizes = (0, 1, 9, 200, 255, 256, 5_000, 16_380, 20_000)
    return [
        [rng.randbytes(rng.choice(sizes[: rng.randint(1, 9)])) for _ in range(rng.randint(1, 6))]
        for _ in range(rng.randint(1, 60))
    ]


@pytest.mark.parametrize("seed", range(8))
def test_bundles_arrive_as_their_messages(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    router, dealer = pair(zmq.ROUTER, zmq.DEALER)
    drain = Drain(
        router,
        message_bytes_max=1 << 20,
        arena_bytes=rng.choice([200, 3000, 1 << 16]),
        frames=rng.choice([4, 16, 999]),
        opens_bundles=True,
    )
    sent = small_messages(rng)
    frames = Frames()
    for message in sent:
        frames.add(message)
    assert send_batch(dealer, frames, "keep", bundled=True) == len(sent)
    found = receive(drain, router, len(sent))
    assert [message[1:] for message in found] == sent
    assert len({message[0] for message in found}) == 1
    assert drain.bundles > 0


def test_only_messages_in_a_row_that_fit_share_a_bundle(pair: Pair) -> None:
    pull, push = pair(zmq.PULL, zmq.PUSH)
    sent = [[b"a"], [b"b", bytes(200)], [bytes(16_400)], [b"c"], [b"d"] * 256, [b"e"]]
    frames = Frames()
    for message in sent:
        frames.add(message)
    send_batch(push, frames, "keep", bundled=True)
    assert pull.poll(DEADLINE_MS)
    arrived = [pull.recv_multipart() for _ in range(5)]
    assert arrived == [
        [bundle_twin.encode(sent[:2])],
        sent[2],
        [bundle_twin.encode([sent[3]])],
        sent[4],
        [bundle_twin.encode([sent[5]])],
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_bundle_of_any_octets_is_its_twins(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    router, dealer = pair(zmq.ROUTER, zmq.DEALER)
    drain = Drain(
        router, message_bytes_max=1 << 16, message_frames_max=4, opens_bundles=True, frames=16
    )
    intact = 0
    for _ in range(400):
        frame = bytearray(bundle_twin.encode([
            [rng.randbytes(rng.randrange(9)) for _ in range(rng.randint(1, 4))]
            for _ in range(rng.randrange(5))
        ]))  # fmt: skip
        for _ in range(rng.choice((0, 0, 1))):
            frame[rng.randrange(len(frame))] = rng.choice((0, 1, 2, 3, rng.randrange(256)))
        sent = bytes(frame[: len(frame) - rng.choice((0, 0, rng.randrange(len(frame))))])
        dealer.send(sent)
        expected = bundle_twin.decode(sent, frames_max=3)
        intact += bool(expected)
        expected = expected or [[sent]]
        assert [message[1:] for message in receive(drain, router, len(expected))] == expected
    assert 40 < intact == drain.bundles < 360


def test_without_symbols_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ["/nowhere/libzmq.so", "libc.so.6"]
    with monkeypatch.context() as patched:
        patched.setattr(sockets, "libzmq_paths", lambda: iter(others))
        with pytest.raises(ImportError, match=r"libzmq .* was not found .* pyzmq's own wheel"):
            sockets.bind_libzmq.__wrapped__()
    sockets.bind_libzmq.__wrapped__()  # C keeps what it found last.


def test_every_place_of_libzmq_is_the_same_library() -> None:
    """Found through pyzmq's extension; the memory map and the wheel's folder agree with it."""
    paths = list(libzmq_paths())
    assert len(paths) >= 2
    version: Any = ffi.new("int *")
    for path in set(paths):
        assert lib.klk_sockets_bind(os.fsencode(path), version) == lib.KLK_OK
        assert version[0] == zmq.zmq_version_info()[0] * 10000 + (
            zmq.zmq_version_info()[1] * 100 + zmq.zmq_version_info()[2]
        )
