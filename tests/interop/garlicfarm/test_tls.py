"""A server written from the specification alone in a farm over TLS: it joins, follows, votes and
leads.
"""

from collections.abc import Callable
from contextlib import suppress

import pytest

from kelek.protocols.garlicfarm.app.posters import POSTER_PREFIX
from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.wire.messages import ClusterServer
from kelek.tests.actors.farm.farm_servers import FarmServers
from kelek.tests.interop.garlicfarm.farm_plain import (
    APPLICATION,
    CLIENT,
    PlainFarmEntry,
    PlainMessage,
    take_answer,
)
from kelek.tests.interop.garlicfarm.farm_tls import FarmUser, HandshakeRefused, PlainServer
from kelek.tests.protocols.garlicfarm.farm_cluster import client_request

PLAIN = 9
SECRET = "the servers' own"


NEVER_MS = (600_000, 900_000)


def values_of(server: PlainServer) -> list[bytes]:
    """Its committed values; a repeated request counts once."""
    with server.lock:
        plain = server.plain
        log = plain.log[: plain.commit - plain.start + 1]
        values = [each.value for each in log if each.kind == APPLICATION]
        return list(dict.fromkeys(value for value in values if not value.startswith(POSTER_PREFIX)))


def has_led(server: PlainServer) -> bool:
    """Whether it leads, and a kelek server has confirmed an entry of its term."""
    with server.lock:
        plain = server.plain
        return plain.role == "leader" and plain.term_at(plain.commit) == plain.term


def add(farm: FarmServers, number: int, endpoint: str, is_in: Callable[[], bool]) -> None:
    """Repeats AddServer until it is a member."""

    def ask() -> bool:
        with suppress(OSError, EOFError), farm.connect(farm.leader()) as admin:
            admin.ask(membership.add_server_request(ClusterServer(number, endpoint)))
        return is_in()

    farm.wait(ask, f"{number} does not join")


def ask_plain(server: PlainServer, value: bytes) -> bool:
    """A ClientRequest of the independent client."""
    with server.who.enter(server.port) as sock:
        sock.sendall(
            PlainMessage(CLIENT, 0, 0, 0, entries=(PlainFarmEntry(0, APPLICATION, value),)).encode()
        )
        buffer = bytearray()
        while (answer := take_answer(buffer)) is None:
            data = sock.recv(100)
            assert data
            buffer += data
        return bool(answer.accepted)


def test_a_plain_server_joins_follows_votes_and_leads() -> None:
    with FarmServers(ids=(1, 2), initial=(1,), node="post_interval_ms: 0") as farm:
        farm.start()
        told = [b"value %d" % number for number in range(20)]
        farm.append(*told)
        who = FarmUser("peer", SECRET, farm.ca)
        server = PlainServer(PLAIN, who, farm.folder)
        try:
            with server.lock:
                server.plain.beat_ms, server.plain.election_ms = 50, NEVER_MS
            add(farm, PLAIN, f"tcp://127.0.0.1:{server.port}", lambda: not server.plain.joining)
            add(farm, 2, farm.endpoint(2), lambda: farm.status(2).get("raft_role") == "follower")
            index = farm.append(b"all three").next_index - 1
            told.append(b"all three")
            farm.wait(lambda: values_of(server) == told, "it does not follow")
            farm.wait(lambda: farm.status(2)["commit_index"] >= index, "2 does not follow")

            farm.kill(1)  # It votes: without it 2 would not win.
            farm.append(b"without 1")
            told.append(b"without 1")
            farm.wait(lambda: values_of(server) == told, "it does not follow 2")

            farm.kill(2)  # It leads: 1 has less of a log.
            with server.lock:
                server.plain.election_ms, server.plain.due_ms = (700, 1400), 0
            farm.start(1, bootstrap=False)
            farm.wait(lambda: has_led(server), "it does not lead")
            farm.start(2, bootstrap=False)
            told.append(b"led")

            def follow() -> bool:
                """Whoever leads by now; it says yes before the commit."""
                if values_of(server) != told:
                    if not ask_plain(server, b"led"):
                        with suppress(OSError, EOFError), farm.connect(1) as client:
                            client.ask(client_request(b"led"))
                    return False
                end = server.plain.commit
                return all(farm.status(n).get("commit_index", 0) >= end for n in (1, 2))

            farm.wait(follow, "they do not follow it")
            assert server.failures == []
            refused = [
                line for n in (1, 2) for line in farm.log(n).splitlines() if " refused " in line
            ]
            assert refused == []
            assert all(farm.status(number)["malformed"] == 0 for number in (1, 2)), farm.report()
        finally:
            server.close()


def test_both_algorithms_and_a_wrong_password() -> None:
    with FarmServers(ids=(1,)) as farm:
        farm.start()
        who = FarmUser("peer", SECRET, farm.ca)
        assert list(who.challenges(farm.ports[1])) == ["SHA-256", "MD5"]
        for algorithm in ("SHA-256", "MD5"):
            who.enter(farm.ports[1], algorithm).close()
        with pytest.raises(HandshakeRefused, match="401"):
            FarmUser("peer", "wrong", farm.ca).enter(farm.ports[1])
