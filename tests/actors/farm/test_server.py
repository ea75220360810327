"""Real farm servers over real connections: elections, commits, restarts, authentication."""

import socket
import ssl
from contextlib import ExitStack, suppress
from functools import partial

import pytest
import trustme

import kelek
from kelek.actors.farm import listener
from kelek.actors.farm import tls as farm_tls
from kelek.actors.farm import users as farm_users
from kelek.protocols.garlicfarm.server import append_policy, membership
from kelek.protocols.garlicfarm.wire import codec, handshake
from kelek.protocols.garlicfarm.wire.htdigest import with_user
from kelek.protocols.garlicfarm.wire.messages import (
    ClusterServer,
    FarmLogEntry,
    MessageType,
    Request,
    ValueType,
)
from kelek.tests.actors.farm.farm_servers import (
    DEADLINE_S,
    PASSWORD,
    PASSWORDS,
    SERVERS,
    USER,
    FarmServers,
)
from kelek.tests.interop.garlicfarm.farm_tls import old_hello


@pytest.mark.parametrize("tls", [True, False])
def test_a_farm_of_three(tls: bool) -> None:
    """It elects, commits, survives the loss of its leader, which then catches up."""
    with FarmServers(tls=tls) as farm:
        farm.start()
        farm.put(b"first")
        leader = farm.leader()
        farm.kill(leader)
        index = farm.put(b"second", b"third").next_index - 1
        farm.start(leader, bootstrap=False)
        farm.wait(
            lambda: all(farm.status(n).get("commit_index", 0) >= index for n in (1, 2, 3)),
            "they do not agree",
        )


def is_in(farm: FarmServers, number: int) -> bool:
    """Whether it is a member, in any role."""
    return bool(farm.status(number).get("raft_role", "waiting") != "waiting")


def order(farm: FarmServers, request: Request) -> bool:
    """Whether the leader accepts a change."""
    with suppress(OSError, EOFError), farm.connect(farm.leader()) as admin:
        return admin.ask(request).is_accepted
    return False


def test_a_server_joins_and_leaves() -> None:
    with FarmServers(ids=(1, 2), begin=(1,)) as farm:
        farm.start()
        farm.put(*(b"%d" % number for number in range(300)))
        assert not is_in(farm, 2)
        server = ClusterServer(2, farm.endpoint(2))
        farm.wait(lambda: order(farm, membership.add_server_request(server)), "it may not come")
        farm.wait(lambda: is_in(farm, 2), "it is not taken in")
        index = farm.put(b"behind").next_index - 1
        farm.wait(lambda: farm.status(2)["commit_index"] >= index)
        farm.wait(lambda: order(farm, membership.remove_server_request(2)), "it may not go")

        def seen() -> list[str]:
            """The members as server 1 has seen them."""
            return [
                line.rpartition("members=")[2]
                for line in farm.log(1).splitlines()
                if "members=" in line
            ]

        farm.wait(lambda: "1,2" in seen() and seen()[-1] == "1", "it does not go")
        farm.put(b"alone")


def test_a_joining_server_continues_from_a_snapshot() -> None:
    """Server 1 has compacted its log; server 2 starts from its snapshot, also after a restart."""
    settings = "snapshot_entries: 50, snapshot_trailing_entries: 0"
    with FarmServers(ids=(1, 2), begin=(1,), farm=settings, node="post_interval_ms: 0") as farm:
        farm.start()
        document = b'{"cluster":"farm","date":1,"id":1,"router":{"uptime":7}}'
        farm.put(document, *(b"%d" % number for number in range(200)), user=SERVERS)
        farm.wait(lambda: farm.status(1).get("snapshot_index", 0) > 200, "it makes no snapshot")
        server = ClusterServer(2, farm.endpoint(2))
        farm.wait(lambda: order(farm, membership.add_server_request(server)), "it may not come")
        farm.wait(lambda: is_in(farm, 2), "it is not taken in")
        assert "snapshot" not in farm.log(2), "it has made none of its own"
        index = farm.put(b"behind").next_index - 1
        farm.wait(lambda: farm.status(2)["applied_index"] >= index)
        farm.kill(2)
        farm.start(2, bootstrap=False)
        index = farm.put(b"again").next_index - 1
        farm.wait(lambda: farm.status(2).get("applied_index", 0) >= index, "it does not come back")
        for number in (1, 2):
            with kelek.Farm(
                {number: f"tls://127.0.0.1:{farm.ports[number]}"},
                user=USER,
                password=PASSWORD,
                ca_file=str(farm.ca),
            ) as client:
                (found,) = client.documents()["documents"]
                assert found["document"]["router"] == {"uptime": 7}


def test_unknown_users_and_users_without_admin_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    with FarmServers(ids=(1,)) as farm:
        farm.start()
        assert farm.leader() == 1
        with pytest.raises(PermissionError, match="wrong"):
            farm.connect(1, password="no")
        with pytest.raises(PermissionError, match="404"):
            farm.connect(1, name="other")
        with farm.connect(1, user="peer", password="the servers' own") as client:
            request = membership.add_server_request(ClusterServer(7, "tcp://127.0.0.1:1"))
            assert not client.ask(request).is_accepted
            entry = FarmLogEntry(0, ValueType.APPLICATION, b"{}")
            assert client.ask(Request(MessageType.CLIENT_REQUEST, entries=(entry,))).is_accepted
        with monkeypatch.context() as patch, farm.connect(1) as client:
            patch.setattr(append_policy, "AUDITS_MAX", 0)  # No room for an audit.
            assert not client.ask(request).is_accepted
        assert "audit-lost farm=farm count=1\n" in farm.log(1)


def give_password(farm: FarmServers, password: str) -> None:
    """Replaces both files, as `kelek farm user passwd` does."""
    text = with_user((farm.place / "passwords").read_text(), "farm", "peer", password)
    farm.write_secret("passwords", text)
    farm.write_secret("secret", f"{password}\n")


def leaders_of(farm: FarmServers) -> int:
    """How often a server was elected."""
    return sum(farm.log(number).count("role=leader") for number in farm.running)


def test_servers_take_another_password_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links survive or are reconnected, no server campaigns, and the former password expires."""
    monkeypatch.setattr(farm_users, "FORMER_PASSWORD_MS", 1500)
    old, new = PASSWORDS["peer"], "another one"
    with FarmServers(ids=(1, 2, 3)) as farm:
        farm.start()
        farm.put(b"before")
        elected = leaders_of(farm)
        give_password(farm, new)
        farm.wait(lambda: all("secret user=peer" in farm.log(number) for number in farm.running))
        farm.put(b"behind it")
        farm.connect(1, user="peer", password=old).close()
        farm.wait(
            lambda: all(farm.log(number).count("users farm=farm") == 2 for number in (1, 2, 3))
        )
        farm.put(b"with new links")
        assert leaders_of(farm) == elected
        farm.connect(1, user="peer", password=new).close()
        with pytest.raises(PermissionError, match="wrong"):
            farm.connect(1, user="peer", password=old)
        farm.kill(1)
        farm.start(1, bootstrap=False)
        index = farm.put(b"it is back").next_index - 1
        farm.wait(lambda: farm.status(1).get("commit_index", 0) >= index, "it is not let in")


def test_a_farm_without_users_does_not_start() -> None:
    with FarmServers(ids=(1,)) as farm:
        farm.write_secret("passwords", "# nobody\n")
        with pytest.raises(AssertionError, match="passwords has no user of the farm farm; kelek"):
            farm.start()


def test_a_client_of_a_farm_without_users_gets_an_error() -> None:
    with FarmServers(ids=(1,)) as farm:
        farm.start()
        farm.write_secret("passwords", "# nobody\n")
        farm.wait(lambda: "users farm=farm count=0" in farm.log(1))
        url = f"tls://127.0.0.1:{farm.ports[1]}"
        with (
            kelek.Farm(url, user=USER, password=PASSWORD, ca_file=str(farm.ca)) as client,
            pytest.raises(kelek.FarmDenied, match="may have no user of this farm"),
        ):
            client.status()


def test_users_are_read_anew() -> None:
    """A removed user is disconnected, a new one is accepted; a file that others can read is
    ignored.
    """
    with FarmServers(ids=(1,)) as farm:
        farm.start()
        farm.leader()
        client = farm.connect(1)
        text = (farm.place / "passwords").read_text()
        lines = [line for line in text.splitlines() if not line.startswith("demo:")]
        farm.write_secret("passwords", "\n".join(lines) + "\n")
        with pytest.raises(EOFError):
            client.answer()
        client.close()
        (farm.place / "passwords").chmod(0o644)
        farm.write_secret("passwords", text)
        farm.wait(lambda: "others can read" in farm.log(1), "it takes what others can read")
        (farm.place / "passwords").chmod(0o600)

        def comes_in() -> bool:
            try:
                farm.connect(1).close()
            except PermissionError:
                return False
            return True

        farm.wait(comes_in, "it is not let in again")


def test_certificates_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another CA; open connections stay. Unusable files are reported and ignored."""
    monkeypatch.setattr(farm_tls, "CHECK_INTERVAL_MS", 50)
    with FarmServers(ids=(1, 2)) as farm:
        farm.start()
        farm.put(b"first")
        with farm.connect(1) as client:
            (farm.place / "cert.pem").write_text("no certificate")
            farm.wait(lambda: "is not usable" in farm.log(1), "it does not complain")
            farm.connect(1).close()
            other = trustme.CA()
            leaf = other.issue_cert("127.0.0.1")
            leaf.private_key_pem.write_to_path(farm.place / "key.pem")
            leaf.cert_chain_pems[0].write_to_path(farm.place / "cert.pem")
            other.cert_pem.write_to_path(farm.ca)
            for number in (1, 2):
                farm.wait(partial(shows, farm, number), "it shows the old one")
            assert client.ask(Request(MessageType.CLIENT_REQUEST)).source == 1
        farm.kill(2)
        farm.start(2, bootstrap=False)
        farm.put(b"their links believe it, too")


def shows(farm: FarmServers, number: int) -> bool:
    """Whether the server's certificate is signed by the CA."""
    try:
        farm.dial(number).close()
    except ssl.SSLError:
        return False
    return True


def test_two_farms_in_one_process() -> None:
    """Each has its own log."""
    with FarmServers(names=("one", "two"), node="post_interval_ms: 0") as farm:
        farm.start()
        told = {"one": {b"a", b"b"}, "two": {b"c"}}
        for name, values in told.items():
            farm.put(*values, name=name)
        for name, values in told.items():
            leader = farm.leader(name)
            with kelek.Farm(
                {leader: f"tls://127.0.0.1:{farm.ports[leader]}"},
                name,
                user=USER,
                password=PASSWORD,
                ca_file=str(farm.ca),
            ) as client:
                assert {entry.value for entry in client.entries()} == values


def test_servers_without_a_handshake() -> None:
    """As JRaft's: plain TCP, and the messages at once."""
    with FarmServers(jraft=True) as farm:
        farm.start()
        farm.put(b"first")


def test_slow_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In sending a head, reading answers and closing; other connections are not affected."""
    with FarmServers(ids=(1,), tls=False, node="connections_max: 8") as farm:
        farm.start()
        farm.leader()
        with monkeypatch.context() as patch:
            patch.setattr(handshake, "HEAD_TIMEOUT_MS", 1000)
            patch.setattr(listener, "HEAD_TIMEOUT_MS", 1000)
            with farm.dial(1) as slow, farm.dial(1) as silent:
                slow.sendall(b"GET /GarlicFarm/farm/1/websocket HTTP/1.1\r\nHost: h\r\n")
                assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")
                assert silent.recv(4096) == b"", "who says nothing hears nothing"
        with farm.connect(1) as greedy:
            data = codec.encode_request(Request(MessageType.CLIENT_REQUEST)) * 1000
            greedy.sock.setblocking(False)
            sent = 0
            with suppress(BlockingIOError):
                while True:  # It never reads, so the server stops reading from it.
                    sent += greedy.sock.send(data[sent % len(data) :])
            farm.put(b"others are served")
            greedy.sock.settimeout(DEADLINE_S)
            for _ in range(sent // codec.REQUEST_HEADER.size):
                assert greedy.answer().is_accepted


def test_there_are_no_more_connections_than_may_be() -> None:
    with FarmServers(ids=(1,), tls=False, node="connections_max: 8") as farm:
        farm.start()
        farm.leader()
        client = farm.connect(1)
        with ExitStack() as stack:
            for _ in range(7):
                stack.enter_context(farm.dial(1))
            late = stack.enter_context(farm.dial(1))
            assert late.recv(1) == b"", "one too many"
            assert client.ask(Request(MessageType.CLIENT_REQUEST)).is_accepted
        client.close()


def test_a_link_believes_no_other_name_than_it_should() -> None:
    """No link comes up, so no server leads; the log has the reason."""
    with FarmServers(ids=(1, 2), node="server_name: elsewhere.example") as farm:
        farm.start()
        farm.wait(lambda: "elsewhere.example" in farm.log(1), "it does not complain")
        assert "link-up" not in farm.log(1)
        assert farm.status(1).get("raft_role") != "leader"


def test_versions_of_tls() -> None:
    with FarmServers(ids=(1,)) as farm:
        farm.start()
        context = ssl.create_default_context(cafile=str(farm.ca))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        sock = socket.create_connection(("127.0.0.1", farm.ports[1]), DEADLINE_S)
        with sock, pytest.raises(ssl.SSLError):
            context.wrap_socket(sock, server_hostname="127.0.0.1")
        farm.wait(lambda: farm.status(1).get("counters", {}).get("tls_failed") == 1)
    with FarmServers(ids=(1,), node="tls: '1.2'") as farm:
        farm.start()
        sock = socket.create_connection(("127.0.0.1", farm.ports[1]), DEADLINE_S)
        with context.wrap_socket(sock, server_hostname="127.0.0.1") as secured:
            assert secured.version() == "TLSv1.2"
        with socket.create_connection(("127.0.0.1", farm.ports[1]), DEADLINE_S) as bare:
            bare.sendall(old_hello(2))
            assert bare.recv(7) == b"\x15\x03\x02\0\2\2\x46", "protocol_version: not below 1.2"


def test_a_process_that_is_killed_loses_nothing() -> None:
    """All servers are killed with SIGKILL at once; committed entries stay."""
    with FarmServers(processes=True, node="post_interval_ms: 0") as farm:
        farm.start()
        before = farm.put(b"kept").next_index
        for number in (1, 2, 3):
            farm.kill(number)
        farm.start(bootstrap=False)
        assert farm.put(b"more").next_index > before + 1, "behind a new leader's Configuration"
        assert [farm.stop(number) for number in (1, 2, 3)] == [0, 0, 0]
