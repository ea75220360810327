"""Malformed and forbidden input to a farm server: it ends a connection or refuses a request, and
moves no term.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.peer import PENDING_REQUESTS_MAX
from kelek.protocols.garlicfarm.wire import codec
from kelek.protocols.garlicfarm.wire.messages import FarmLogEntry, MessageType, Request, ValueType
from kelek.protocols.raft.core import Role
from kelek.tests.protocols.garlicfarm.farm_cluster import (
    FarmCluster,
    FarmRequester,
    client_request,
    elected_farm,
    server,
)

USER = PeerSession("user", None, False, is_server=True)
APPEND, VOTE = MessageType.APPEND_ENTRIES, MessageType.REQUEST_VOTE
APPLICATION, CONFIGURATION = ValueType.APPLICATION, ValueType.CONFIGURATION


def settled() -> tuple[FarmCluster, int, int]:
    """A farm, its leader, and another member."""
    cluster, leader = elected_farm()
    cluster.ask(client_request(b"one"))
    cluster.run(1000)
    return cluster, leader, next(number for number in (1, 2, 3) if number != leader)


def from_(source: int, to: int, **fields: object) -> Request:
    return Request(VOTE, source, to, 1)._replace(**fields)  # type: ignore[arg-type]


Make = Callable[[int, int, int], Request]
CLOSED: dict[str, Make] = {
    "our own id": lambda leader, other, term: from_(leader, leader, term=term),
    "for somebody else": lambda leader, other, term: from_(other, 99, term=term),
    "AppendEntries at our own term": lambda leader, other, term: from_(
        other, leader, type=APPEND, term=term, last_log_term=1, last_log_index=1
    ),
    "SyncLog at our own term": lambda leader, other, term: from_(
        other, leader, type=MessageType.SYNC_LOG, term=term
    ),
    "a vote with entries": lambda leader, other, term: from_(
        other, leader, term=term, entries=(FarmLogEntry(1, APPLICATION, b""),)
    ),
    "JoinCluster without a Configuration": lambda leader, other, term: from_(
        other, leader, type=MessageType.JOIN_CLUSTER, term=term
    ),
    "a Configuration that is none": lambda leader, other, term: from_(
        other, leader, type=APPEND, term=9, entries=(FarmLogEntry(1, CONFIGURATION, b"x"),)
    ),
    "a LogPack in a log": lambda leader, other, term: from_(
        other, leader, type=APPEND, term=9, entries=(FarmLogEntry(1, ValueType.LOG_PACK, b""),)
    ),
    "entries of term 0": lambda leader, other, term: from_(
        other, leader, type=APPEND, term=9, entries=(FarmLogEntry(0, APPLICATION, b""),)
    ),
    "entries that go back in terms": lambda leader, other, term: from_(
        other, leader, type=APPEND, term=9,
        entries=(FarmLogEntry(2, APPLICATION, b""), FarmLogEntry(1, APPLICATION, b"")),
    ),
    "a term that no core has": lambda leader, other, term: from_(
        other, leader, type=APPEND, term=2**63 - 1
    ),
    "AddServer without a server": lambda leader, other, term: Request(MessageType.ADD_SERVER),
    "AddServer with an application entry": lambda leader, other, term: Request(
        MessageType.ADD_SERVER, entries=(FarmLogEntry(0, APPLICATION, b""),)
    ),
    "RemoveServer with an endpoint": lambda leader, other, term: membership.add_server_request(
        server(3)
    )._replace(type=MessageType.REMOVE_SERVER),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_what_ends_a_connection(name: str) -> None:
    cluster, leader, other = settled()
    terms = {number: peer.core.term for number, peer in cluster.peers.items()}
    client, fine = FarmRequester(cluster, leader), FarmRequester(cluster, leader)
    client.send(CLOSED[name](leader, other, terms[leader]))
    cluster.run_until(lambda: bool(client.closed))
    assert not client.answers
    assert cluster.peers[leader].malformed == 1
    fine.send(client_request(b"two"))
    cluster.run_until(lambda: bool(fine.answers))
    assert fine.answers[0].is_accepted
    assert {number: peer.core.term for number, peer in cluster.peers.items()} == terms
    assert cluster.leader == leader


REFUSED: dict[str, tuple[PeerSession, Make]] = {
    "a stranger's vote": (USER, lambda leader, other, term: from_(77, leader, term=term + 1000)),
    "a member's vote": (
        PeerSession("two", None, False, is_server=True),
        lambda leader, other, term: from_(
            other, leader, term=term + 1000, last_log_term=term + 1, last_log_index=99
        ),
    ),
    "a stranger's JoinCluster": (
        USER,
        lambda leader, other, term: from_(
            77, leader, type=MessageType.JOIN_CLUSTER, term=term + 1000,
            entries=(FarmLogEntry(1, CONFIGURATION, bytes(16)),),
        ),
    ),
    "a stranger's AppendEntries": (
        USER,
        lambda leader, other, term: from_(77, leader, type=APPEND, term=term + 1000),
    ),
    "a stranger's LeaveCluster": (
        USER,
        lambda leader, other, term: from_(
            77, leader, type=MessageType.LEAVE_CLUSTER, term=term
        ),
    ),
    "a change by somebody": (
        USER,
        lambda leader, other, term: membership.add_server_request(server(9)),
    ),
    "another one's removal": (
        PeerSession("two", 2, False),
        lambda leader, other, term: membership.remove_server_request(3)._replace(source=2),
    ),
    "entries of other kinds": (
        USER,
        lambda leader, other, term: Request(
            MessageType.CLIENT_REQUEST, entries=(FarmLogEntry(0, CONFIGURATION, bytes(16)),)
        ),
    ),
    "an entry that is too large": (
        USER,
        lambda leader, other, term: client_request(bytes((10 << 20) + 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    cluster, leader, other = settled()
    terms = {number: peer.core.term for number, peer in cluster.peers.items()}
    before = {number: len(disk.values()) for number, disk in cluster.disks.items()}
    grant, make = REFUSED[name]
    client = FarmRequester(cluster, leader, grant)
    client.send(make(leader, other, terms[leader]))
    cluster.run_until(lambda: bool(client.answers))
    cluster.run(3000)
    (answer,) = client.answers
    assert not answer.is_accepted
    assert not client.closed
    assert (answer.source, answer.term) == (leader, terms[leader])
    assert {number: peer.core.term for number, peer in cluster.peers.items()} == terms
    assert {number: len(disk.values()) for number, disk in cluster.disks.items()} == before


def test_a_user_of_another_server_is_refused() -> None:
    cluster, leader, other = settled()
    client = FarmRequester(cluster, leader, PeerSession("nine", 9, False))
    client.send(from_(other, leader))
    cluster.run_until(lambda: bool(client.closed))
    assert "nine" in client.closed


def test_too_many_requests_at_once() -> None:
    cluster, leader, _ = settled()
    cluster.cut_off(1, (2, 3))
    cluster.cut_off(2, (3,))
    client = FarmRequester(cluster, leader)
    client.send(*[client_request(b"x")] * PENDING_REQUESTS_MAX)
    cluster.run(5)
    assert not client.closed
    slots = cluster.peers[leader].inbound[client.connection].pending
    assert len(slots) == PENDING_REQUESTS_MAX
    assert not any(slot.request.entries for slot in slots), "what is in the log is kept twice"
    client.send(client_request(b"x"))
    cluster.run(5)
    assert "unanswered requests" in client.closed


def test_answers_come_in_the_order_of_the_requests() -> None:
    """Also when a later answer is known first."""
    cluster, leader, _ = settled()
    client = FarmRequester(cluster, leader)
    client.send(client_request(b"a"), membership.remove_server_request(99), client_request(b"b"))
    cluster.run_until(lambda: len(client.answers) == 3)
    assert [(int(answer.type), answer.is_accepted) for answer in client.answers] == [
        (4, True),
        (9, False),
        (4, True),
    ]


def test_a_server_that_never_answers() -> None:
    """Its connection is closed and reopened."""
    cluster, leader, other = settled()
    peer = cluster.peers[leader]
    link = peer.links[other]
    cluster.network.cut(str(other), str(leader), "hold")
    cluster.run_until(lambda: not link.is_up or bool(link.failure), 10_000)


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=80), max_size=5), st.integers(0, 2**32))
def test_junk_ends_a_connection_and_nothing_else(junk: list[bytes], seed: int) -> None:
    cluster, leader, other = settled()
    term = cluster.peers[leader].core.term
    random = cluster.random
    random.seed(seed)
    for data in junk:
        kind = random.choice(sorted(codec.REQUEST_TYPES))
        last_term, last_index, commit = (random.choice((0, 1, 2, term)) for _ in range(3))
        value_type = random.choice(list(ValueType))
        entries = tuple([FarmLogEntry(1, value_type, data)][: random.randint(0, 1)])
        client = FarmRequester(cluster, leader)
        source = random.choice((other, 77))
        client.send(Request(kind, source, leader, term, last_term, last_index, commit, entries))
        client.send_bytes(data)
    cluster.run(2000)
    assert cluster.peers[leader].core.role is Role.LEADER
    assert cluster.ask(client_request(b"two")).is_accepted
    cluster.check_same()
