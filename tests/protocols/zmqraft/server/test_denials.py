"""Refused requests of clients are answered; other refused messages are not."""

import pytest

from kelek.native.net.messages import Arena, Frames
from kelek.protocols.access import rights
from kelek.protocols.access.grants import Right
from kelek.protocols.zmqraft.server.denials import ANSWERED, answer_denied
from kelek.protocols.zmqraft.wire import values as v

ROUTE, REQID = b"\0abcd", b"request-id-1"
KEY, FOREIGN = 3, 7  # Slots.


def answers(*messages: list[bytes], slot: int = KEY) -> list[list[bytes]]:
    out = Frames()
    answer_denied(Arena.from_messages(list(messages), slot), FOREIGN, out)
    return [list(frames) for frames in out.messages()]


def test_requests_of_clients_are_answered() -> None:
    needed = {kind for kind, right in rights.LOG.items() if right != Right.PEER}
    assert needed - {v.HELLO} == ANSWERED


@pytest.mark.parametrize("kind", sorted(ANSWERED))
def test_an_answer_names_the_request(kind: bytes) -> None:
    assert answers([ROUTE, REQID, kind, b"demo", b"x"]) == [[ROUTE, REQID, v.NOT_ALLOWED, kind]]


@pytest.mark.parametrize("kind", sorted({*rights.LOG, v.NOT_ALLOWED, b"", b"\xff"} - ANSWERED))
def test_messages_of_peers_are_not_answered(kind: bytes) -> None:
    assert answers([ROUTE, REQID, kind, b"demo", b"n1"]) == []


@pytest.mark.parametrize(
    "message", [[ROUTE], [ROUTE, REQID], [ROUTE, b"", b"="], [ROUTE, b"i" * 13, b"="]]
)
def test_malformed_messages_are_not_answered(message: list[bytes]) -> None:
    assert answers(message) == []


def test_foreign_peers_get_no_answer() -> None:
    assert answers([ROUTE, REQID, b"=", b"demo", b"x"], slot=FOREIGN) == []


def test_an_answer_exceeds_its_request_by_a_type_at_most() -> None:
    for kind in ANSWERED:
        (answer,) = answers([ROUTE, b"i", kind])
        assert sum(map(len, answer)) <= len(ROUTE) + 1 + len(kind) + len(v.NOT_ALLOWED)


def test_each_message_of_an_arena_is_answered() -> None:
    found = answers(
        [ROUTE, REQID, b"=", b"x"], [ROUTE, REQID, b"+", b"x"], [b"\0efgh", b"id", b"%", b"x"]
    )
    assert [frames[:2] for frames in found] == [[ROUTE, REQID], [b"\0efgh", b"id"]]
