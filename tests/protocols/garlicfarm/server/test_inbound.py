"""What each role may request of a farm's leader: every type of request, and every kind of entry."""

from functools import partial

import pytest

from kelek.protocols.access import rights
from kelek.protocols.access.grants import Right
from kelek.protocols.garlicfarm.app.orders import Order, OrderKind, encode_order
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.membership import add_server_request, remove_server_request
from kelek.protocols.garlicfarm.wire.messages import RESPONSE_TYPES, MessageType, Request
from kelek.tests.protocols.garlicfarm.farm_cluster import (
    FarmRequester,
    client_request,
    elected_farm,
    server,
)

SESSIONS = {
    "none": PeerSession("ann", None, False, False, False, False),
    "read": PeerSession("ann", None, False, False, True, False),
    "append": PeerSession("ann", None, False, False, False, True),
    "admin": PeerSession("ann", None, True, False, False, False),
    "server": PeerSession("ann", None, False, True, True, True),
}


def is_answered(client: FarmRequester) -> bool:
    return bool(client.answers or client.closed)


def result_of(session: PeerSession, *requests: Request) -> list[str]:
    """What the leader does with each request: accepted, refused, closed."""
    cluster, leader = elected_farm()
    cluster.ask(client_request(b"one"))
    found = []
    for request in requests:
        client = FarmRequester(cluster, leader, session)
        client.send(request)
        cluster.run_until(partial(is_answered, client))
        is_accepted = bool(client.answers) and client.answers[0].is_accepted
        found.append("accepted" if is_accepted else "closed" if client.closed else "refused")
    return found


@pytest.mark.parametrize(
    ("role", "results"),
    [
        ("none", ["refused"] * 5),
        ("read", ["accepted", *["refused"] * 4]),
        ("append", ["accepted", "accepted", *["refused"] * 3]),
        ("admin", ["accepted", "refused", "accepted", "refused", "accepted"]),
        ("server", ["accepted", "accepted", "refused", "refused", "refused"]),
    ],
)
def test_requests_of_clients(role: str, results: list[str]) -> None:
    order = encode_order(Order(OrderKind.PUBLISH, "farm", 1, "ann", publish=2))
    requests = [
        client_request(),
        client_request(b"two"),
        client_request(order),
        client_request(order, b"three"),
        add_server_request(server(9)),
    ]
    assert result_of(SESSIONS[role], *requests) == results


SERVER_TYPES = [kind for kind, right in rights.FARM.items() if right == Right.PEER]


@pytest.mark.parametrize("role", ["none", "read", "append", "admin"])
def test_no_role_sends_requests_of_servers(role: str) -> None:
    clients = {MessageType.CLIENT_REQUEST, MessageType.ADD_SERVER, MessageType.REMOVE_SERVER}
    assert {*SERVER_TYPES, *clients} == RESPONSE_TYPES.keys()
    requests = [Request(kind, 2, 1, 1) for kind in SERVER_TYPES]
    assert result_of(SESSIONS[role], *requests) == ["closed"] * len(requests)


@pytest.mark.parametrize("role", ["none", "read", "append", "server"])
def test_only_administrators_remove_servers(role: str) -> None:
    assert result_of(SESSIONS[role], remove_server_request(2)) == ["refused"]
