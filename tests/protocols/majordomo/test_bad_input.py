"""What the messages of another key can't do, and what a key can't do that is refused or revoked."""

from collections.abc import Sequence

import pytest

from kelek.native.broker.exchange import PROBE_MS
from kelek.native.net.messages import Arena, Frames
from kelek.protocols.majordomo.broker import SIDES, BrokerMachine, BrokerSetup
from kelek.protocols.majordomo.codec import decode_failure

Message = list[bytes]
C, W, N = b"KLKC01", b"KLKW01", b"KLKN01"
REQUEST, READY = [C, b"\1", b"echo", b"id"], [W, b"\1", b"echo"]
OWNER, OTHER = 0, 1  # The slots of their keys.
BYE = [W, b"\6"]
CREDIT = 100_000


def taken(frames: Frames) -> list[Message]:
    messages = frames.messages()
    frames.clear()
    return messages


class KeyedBroker:
    """A broker at endpoints with keys."""

    def __init__(self) -> None:
        self.machine = BrokerMachine(BrokerSetup(key_name="key {}".format), 0)
        self.now_ms = 0

    def client(self, slot: int, *messages: Message) -> list[Message]:
        """What clients are sent then."""
        self.machine.on_requests(Arena.from_messages(messages, slot), self.now_ms)
        return self.ready()

    def worker(self, slot: int, *messages: Message) -> list[Message]:
        """What workers are sent then."""
        self.machine.on_answers(Arena.from_messages(messages, slot), self.now_ms)
        self.machine.ready(self.now_ms)
        return taken(self.machine.workers)

    def ready(self) -> list[Message]:
        self.machine.ready(self.now_ms)
        return taken(self.machine.clients)

    def denied(
        self, slot: int, *messages: Message, sides: Sequence[str] = SIDES
    ) -> list[list[Message]]:
        self.machine.on_denied(Arena.from_messages(messages, slot), self.now_ms, sides)
        return [taken(self.machine.clients), taken(self.machine.workers)]

    @property
    def workers(self) -> list[tuple[bytes, int]]:
        infos = self.machine.worker_infos()
        return sorted((info.routing_id, info.slot) for info in infos)


@pytest.fixture
def broker() -> KeyedBroker:
    return KeyedBroker()


def named(credit: int, command: bytes = b"\1", *body: bytes) -> Message:
    options = b"\xff" * 8 + credit.to_bytes(8, "big") + b"my name"
    return [N, command, b"echo", b"id", options, *body]


def final(request: Message, body: bytes) -> Message:
    """Of the worker that was sent a request."""
    routing_id, header, _, address, empty, request_id, *_ = request
    return [routing_id, header, b"\4", address, empty, request_id, body]


def test_a_worker_whose_routing_id_another_key_has_is_lost(broker: KeyedBroker) -> None:
    broker.worker(OWNER, [b"w", *READY])
    broker.client(OWNER, [b"c", *REQUEST, b"secret"])
    (work,) = taken(broker.machine.workers)
    assert broker.worker(OTHER, final(work, b"forged")) == [[b"w", *BYE]]
    assert broker.ready() == []
    assert broker.workers == []
    assert broker.worker(OTHER, final(work, b"forged")) == []  # One DISCONNECT.
    (again,) = broker.worker(OWNER, [b"v", *READY])
    assert again[0] == b"v"
    broker.worker(OWNER, final(again, b"right"))
    assert [message[-1] for message in broker.ready()] == [b"right"]


def test_ready_under_the_routing_id_of_another_keys_worker(broker: KeyedBroker) -> None:
    broker.worker(OWNER, [b"w", *READY])
    broker.client(OWNER, [b"c", *REQUEST, b"x"])
    assert len(taken(broker.machine.workers)) == 1
    (again,) = broker.worker(OTHER, [b"w", *READY])  # Its own connection: it may offer echo.
    assert again[0] == b"w"
    assert broker.workers == [(b"w", OTHER)]


def test_a_key_that_is_ignored_does_not_block_another_one(broker: KeyedBroker) -> None:
    assert broker.worker(OTHER, [b"w", W, b"PING"]) == [[b"w", *BYE]]
    broker.worker(OWNER, [b"w", *READY])
    assert broker.workers == [(b"w", OWNER)]
    assert broker.worker(OTHER, [b"w", *READY]) == []  # Still ignored; but its connection is new.
    assert broker.workers == []


@pytest.mark.parametrize("route", [b"c", b"new"])
def test_the_name_of_another_keys_client(broker: KeyedBroker, route: bytes) -> None:
    broker.worker(OWNER, [b"w", *READY, b"\0\5"])
    broker.client(OWNER, [b"c", *named(CREDIT, b"\1", b"x")])
    (work,) = taken(broker.machine.workers)
    # Neither CREDIT, CANCEL nor a repeat finds the request.
    broker.client(OTHER, [route, *named(0, b"\4")], [route, *named(0, b"\5")])
    assert broker.client(OTHER, [route, *named(CREDIT, b"\1", b"thief's")]) == []
    (other,) = taken(broker.machine.workers)
    assert other[-1] == b"thief's"
    broker.worker(OWNER, final(work, b"owner's answer"))
    # With the owner's routing id the thief shows that the owner's connection has ended.
    expected = [] if route == b"c" else [b"owner's answer"]
    assert [message[-1] for message in broker.ready()] == expected
    broker.worker(OWNER, final(other, b"thief's answer"))
    assert [(message[0], message[-1]) for message in broker.ready()] == [(route, b"thief's answer")]


def test_the_owner_comes_back_by_its_name(broker: KeyedBroker) -> None:
    broker.worker(OWNER, [b"w", *READY])
    broker.client(OWNER, [b"c", *named(CREDIT, b"\1", b"x")])
    (work,) = taken(broker.machine.workers)
    broker.client(OTHER, [b"c", *named(CREDIT, b"\1", b"y")])
    broker.client(OWNER, [b"d", *named(CREDIT, b"\1", b"x")])
    broker.worker(OWNER, final(work, b"answer"))
    assert [(message[0], message[-1]) for message in broker.ready()] == [(b"d", b"answer")]


def test_a_revoked_key_loses_its_workers_and_requests(broker: KeyedBroker) -> None:
    broker.worker(OTHER, [b"w", *READY])
    broker.client(OWNER, [b"c", *REQUEST, b"x"])
    assert [message[0] for message in taken(broker.machine.workers)] == [b"w"]
    broker.worker(OWNER, [b"v", *READY])
    broker.machine.on_key_changed(OTHER, None, broker.now_ms)
    broker.machine.ready(broker.now_ms)
    bye, again = taken(broker.machine.workers)
    assert bye == [b"w", *BYE]
    assert again[0] == b"v"
    broker.client(OTHER, [b"o", C, b"\1", b"echo", b"waits", b"x"])  # v has no room.
    broker.machine.on_key_changed(OTHER, None, broker.now_ms)
    assert broker.machine.exchange.held[0] == 1
    broker.worker(OWNER, final(again, b"answer"))
    assert [message[0] for message in broker.ready()] == [b"c"]
    assert taken(broker.machine.workers) == []


def test_requests_in_work_of_a_revoked_key_are_cancelled(broker: KeyedBroker) -> None:
    broker.worker(OWNER, [b"w", W, b"\7", b"echo", b"\0\5"])
    deadline = (60_000).to_bytes(8, "big")
    broker.client(OTHER, [b"o", b"KLKD01", b"\1", b"echo", b"id", deadline, b"x"])
    (work,) = taken(broker.machine.workers)
    broker.machine.on_key_changed(OTHER, None, broker.now_ms)
    broker.now_ms += PROBE_MS
    broker.machine.ready(broker.now_ms)
    assert [message[2] for message in taken(broker.machine.workers)] == [b"\x08"]  # CANCEL
    broker.worker(OWNER, final(work, b"late"))
    assert broker.ready() == []


def test_other_grants_end_the_workers_without_one_alone(broker: KeyedBroker) -> None:
    broker.worker(OWNER, [b"w", *READY], [b"v", W, b"\1", b"mail"])
    broker.machine.on_key_changed(OWNER, lambda service: service == b"mail", broker.now_ms)
    assert broker.workers == [(b"v", OWNER)]
    assert taken(broker.machine.workers) == [[b"w", *BYE]]


# ---- refused messages: their first five frames ----


def test_refused_requests_are_answered_as_their_framing_can(broker: KeyedBroker) -> None:
    (answer,), to_workers = broker.denied(OTHER, [b"c", *REQUEST])
    assert answer[:5] == [b"c", C, b"\3", b"echo", b"id"]
    failure = decode_failure(answer[5:])
    assert failure is not None
    assert failure.code == 403
    assert to_workers == []
    assert broker.denied(OTHER, [b"c", *named(CREDIT)], sides=["client"])[0] == [answer]
    for request in ([b"", b"MDPC01", b"echo", b"x"], [b"MDPC02", b"\1", b"echo", b"x"]):
        assert broker.denied(OTHER, [b"c", *request]) == [[], []]
    (answers, _) = broker.denied(
        OTHER,
        [b"c", b"", b"MDPC01", b"mmi.service", b"x"],
        [b"c", b"MDPC02", b"\1", b"klk.workers", b"x"],
    )
    assert answers == [
        [b"c", b"", b"MDPC01", b"mmi.service", b"403"],
        [b"c", b"MDPC02", b"\3", b"klk.workers", b"403"],
    ]


@pytest.mark.parametrize(
    "frames",
    [
        [N, b"\4", b"echo", b"id"],
        [N, b"\5", b"echo", b"id"],
        [C, b"\1", b"echo"],
        [C, b"\1", b"", b"id"],
        [C, b"\1"],
        [C],
        [b"MDPC02", b"\1"],
        [b"", b"MDPC01"],
        [b"junk"],
        [],
    ],
)
def test_what_is_no_request_has_no_answer(broker: KeyedBroker, frames: Message) -> None:
    assert broker.denied(OTHER, [b"c", *frames]) == [[], []]


@pytest.mark.parametrize(
    ("ready", "bye"),
    [
        ([W, b"\1", b"bank"], BYE),
        ([W, b"\7", b"bank", b"\0\1"], BYE),
        ([b"MDPW02", b"\1", b"bank"], [b"MDPW02", b"\6"]),
        ([b"", b"MDPW01", b"\1", b"bank"], [b"", b"MDPW01", b"\5"]),
    ],
)
def test_a_refused_worker_gets_one_disconnect(
    broker: KeyedBroker, ready: Message, bye: Message
) -> None:
    assert broker.denied(OTHER, [b"w", *ready], [b"w", *ready]) == [[], [[b"w", *bye]]]
    assert broker.denied(OTHER, [b"w", *ready]) == [[], []]
    # Messages that the guard does not refuse have no effect either.
    assert broker.worker(OTHER, [b"w", W, b"PING"], [b"w", *READY]) == []
    assert broker.workers == []


def test_refused_messages_do_not_reach_connections_of_the_other_socket(broker: KeyedBroker) -> None:
    """A worker and a client at two sockets may have the same routing id."""
    broker.worker(OWNER, [b"w", *READY])
    broker.client(OWNER, [b"w", *REQUEST, b"x"])
    (work,) = taken(broker.machine.workers)
    assert broker.denied(OTHER, [b"w", *READY], sides=["client"]) == [[], []]
    assert broker.workers == [(b"w", OWNER)]
    assert broker.denied(OTHER, [b"w", *REQUEST], sides=["worker"]) == [[], []]
    broker.worker(OWNER, final(work, b"answer"))
    assert [message[-1] for message in broker.ready()] == [b"answer"]
