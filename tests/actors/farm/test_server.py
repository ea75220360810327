"""Real farm servers over real connections: elections, commits, restarts, authentication."""

import socket
import ssl
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trustme

import kelek
from kelek.actors.farm import users as farm_users
from kelek.protocols.garlicfarm.server import append_policy, membership
from kelek.protocols.garlicfarm.server.logins import WRONG_MAX
from kelek.protocols.garlicfarm.wire import codec
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
    issue_certificate,
)


@pytest.mark.parametrize("tls", [True, False])
def test_three_servers_survive_the_loss_of_their_leader(tls: bool) -> None:
    """The restarted leader catches up."""
    with FarmServers(tls=tls) as farm:
        farm.start()
        farm.append(b"first")
        leader = farm.leader()
        farm.kill(leader)
        index = farm.append(b"second", b"third").next_index - 1
        farm.start(leader, bootstrap=False)
        farm.wait(
            lambda: all(farm.status(n).get("commit_index", 0) >= index for n in (1, 2, 3)),
            "they do not agree",
        )


def is_member(farm: FarmServers, number: int) -> bool:
    """Whether it is a member, in any role."""
    return bool(farm.status(number).get("raft_role", "waiting") != "waiting")


def change(farm: FarmServers, request: Request) -> bool:
    """Whether the leader accepts a change."""
    with suppress(OSError, EOFError), farm.connect(farm.leader()) as admin:
        return admin.ask(request).is_accepted
    return False


def test_a_server_joins_and_leaves() -> None:
    with FarmServers(ids=(1, 2), initial=(1,)) as farm:
        farm.start()
        farm.append(*(b"%d" % number for number in range(300)))
        assert not is_member(farm, 2)
        server = ClusterServer(2, farm.endpoint(2))
        farm.wait(lambda: change(farm, membership.add_server_request(server)), "it is refused")
        farm.wait(lambda: is_member(farm, 2), "it does not become a member")
        index = farm.append(b"later").next_index - 1
        farm.wait(lambda: farm.status(2)["commit_index"] >= index)
        farm.wait(lambda: change(farm, membership.remove_server_request(2)), "it is refused")

        def members() -> list[str]:
            """The members in the log lines of server 1."""
            return [
                line.rpartition("members=")[2]
                for line in farm.log(1).splitlines()
                if "members=" in line
            ]

        farm.wait(lambda: "1,2" in members() and members()[-1] == "1", "it is not removed")
        farm.append(b"alone")


def test_a_joining_server_starts_from_a_snapshot() -> None:
    """Server 1 has compacted its log; server 2 starts from its snapshot, also after a restart."""
    settings = "snapshot_entries: 50, snapshot_trailing_entries: 0"
    with FarmServers(ids=(1, 2), initial=(1,), farm=settings, node="post_interval_ms: 0") as farm:
        farm.start()
        document = b'{"cluster":"farm","date":1,"id":1,"router":{"uptime":7}}'
        farm.append(document, *(b"%d" % number for number in range(200)), user=SERVERS)
        farm.wait(lambda: farm.status(1).get("snapshot_index", 0) > 200, "there is no snapshot")
        server = ClusterServer(2, farm.endpoint(2))
        farm.wait(lambda: change(farm, membership.add_server_request(server)), "it is refused")
        farm.wait(lambda: is_member(farm, 2), "it does not become a member")
        assert "snapshot" not in farm.log(2), "server 2 made no snapshot of its own"
        index = farm.append(b"later").next_index - 1
        farm.wait(lambda: farm.status(2)["applied_index"] >= index)
        farm.kill(2)
        farm.start(2, bootstrap=False)
        index = farm.append(b"restarted").next_index - 1
        farm.wait(lambda: farm.status(2).get("applied_index", 0) >= index, "it does not catch up")
        for number in (1, 2):
            with kelek.Farm(
                {number: f"tls://127.0.0.1:{farm.ports[number]}"},
                user=USER,
                password=PASSWORD,
                ca_file=str(farm.ca),
            ) as client:
                (found,) = client.documents()["documents"]
                assert found["document"]["router"] == {"uptime": 7}


def test_users_without_admin_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    with FarmServers(ids=(1,)) as farm:
        farm.start()
        assert farm.leader() == 1
        with farm.connect(1, user="peer", password="the servers' own") as client:
            request = membership.add_server_request(ClusterServer(7, "tcp://127.0.0.1:1"))
            assert not client.ask(request).is_accepted
            entry = FarmLogEntry(0, ValueType.APPLICATION, b"{}")
            assert client.ask(Request(MessageType.CLIENT_REQUEST, entries=(entry,))).is_accepted
        with monkeypatch.context() as patch, farm.connect(1) as client:
            patch.setattr(append_policy, "AUDITS_MAX", 0)  # No room for an audit.
            assert not client.ask(request).is_accepted
        assert "audit-lost farm=farm count=1\n" in farm.log(1)


def client_of(farm: FarmServers, user: str, **files: Any) -> kelek.Farm:
    """A client of server 1; the user's password is its name."""
    url = f"tls://127.0.0.1:{farm.ports[1]}"
    return kelek.Farm(url, user=user, password=user, ca_file=str(farm.ca), **files)


def add_users(farm: FarmServers, *users: str) -> None:
    text = (farm.folder / "passwords").read_text()
    for user in users:
        text = with_user(text, "farm", user, user)
    farm.write_secret("passwords", text)


def test_roles_of_users() -> None:
    with FarmServers(ids=(1,), farm="roles: {ann: [read], bob: [append], chief: [admin]}") as farm:
        add_users(farm, "ann", "bob", "chief", "dora")
        farm.start()
        farm.append(b"first")
        with client_of(farm, "ann") as ann, client_of(farm, "bob") as bob:
            assert [entry.value for entry in ann.entries() if entry.user == USER] == [b"first"]
            with pytest.raises(kelek.FarmRefused, match="lacks the role `append`"):
                ann.append(b"no")
            bob.append(b"second")
            assert bob.status()["state"] == "leader"
            with pytest.raises(kelek.FarmDenied, match="the user has no role for this"):
                list(bob.entries())
            with pytest.raises(kelek.FarmDenied, match="no administrator"):
                bob.publish(1)
            assert [e.value for e in ann.entries() if e.user in (USER, "bob")][1:] == [b"second"]
        with client_of(farm, "chief") as chief, client_of(farm, "dora") as dora:
            chief.publish(1)
            with pytest.raises(kelek.FarmDenied, match="the user has no role for this"):
                dora.status()


def certificate_of(farm: FarmServers, user: str) -> dict[str, str]:
    return {
        f"{name}_file": f"{farm.folder}/{user}.{stem}.pem"
        for name, stem in (("certificate", "cert"), ("key", "key"))
    }


def refused(farm: FarmServers, user: str, kind: type[Exception], why: str, **files: str) -> None:
    with client_of(farm, user, **files) as client, pytest.raises(kind, match=why):
        client.status()


def test_client_certificates() -> None:
    """A password alone does not let a client in, nor another user's certificate. Servers show
    their own certificates.
    """
    settings = "certificate_users: {laptop.example: [ann]}"
    with FarmServers(ids=(1, 2), farm=settings, node="client_ca_file: ca.pem") as farm:
        issue_certificate(farm.folder, common_name="demo", stem="demo.")
        issue_certificate(farm.folder, "laptop.example", stem="ann.")
        issue_certificate(farm.folder, common_name="bob", stem="bob.")
        add_users(farm, "ann", "bob")
        farm.start()
        farm.stem = "demo."
        farm.append(b"committed by both servers")
        with client_of(farm, "ann", **certificate_of(farm, "ann")) as client:
            client.append(b"by ann")
        refused(
            farm, "bob", kelek.FarmDenied, "or another certificate", **certificate_of(farm, "ann")
        )
        with client_of(farm, "bob", **certificate_of(farm, "bob")) as client:
            assert client.status()["leader"] in (1, 2)
        refused(farm, "bob", kelek.FarmUntrusted, r"certificate required; name your own with c")
        leaf = trustme.CA().issue_cert(common_name="bob")
        farm.write_secret("bob.key.pem", leaf.private_key_pem.bytes().decode())
        leaf.cert_chain_pems[0].write_to_path(farm.folder / "bob.cert.pem")
        refused(
            farm,
            "bob",
            kelek.FarmUntrusted,
            r"refuses the client's certificate: .*ca",
            **certificate_of(farm, "bob"),
        )


def test_the_status_shows_the_days_of_a_certificate() -> None:
    with FarmServers(ids=(1,)) as farm:
        end = datetime.now(UTC) + timedelta(days=5, hours=1)
        issue_certificate(farm.folder, "127.0.0.1", not_after=end)
        farm.start()
        farm.wait(lambda: farm.status(1).get("certificate_days") == 5, "it has another number")
        assert farm.status(1)["certificate"].endswith("/cert.pem expires in 5 days")
        assert farm.view(1)["connections"]["certificate_days"] == 5
        assert farm.log(1).count(" certificate-expires ") == 1


def test_optional_client_certificates() -> None:
    """A password is enough, but a certificate must be the user's."""
    node = "client_ca_file: ca.pem, client_certificates: optional"
    with FarmServers(ids=(1,), node=node) as farm:
        issue_certificate(farm.folder, common_name="ann", stem="ann.")
        add_users(farm, "ann", "bob")
        farm.start()
        farm.append(b"with a password")
        with client_of(farm, "ann", **certificate_of(farm, "ann")) as client:
            client.append(b"with both")
        refused(
            farm, "bob", kelek.FarmDenied, "or another certificate", **certificate_of(farm, "ann")
        )


def change_password(farm: FarmServers, password: str) -> None:
    """Replaces both files, as `kelek farm user passwd` does."""
    text = with_user((farm.folder / "passwords").read_text(), "farm", "peer", password)
    farm.write_secret("passwords", text)
    farm.write_secret("secret", f"{password}\n")


def elections(farm: FarmServers) -> int:
    """The number of elections so far."""
    return sum(farm.log(number).count("role=leader") for number in farm.running)


def test_running_servers_change_their_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links survive or are reconnected, no server campaigns, and the former password expires."""
    monkeypatch.setattr(farm_users, "FORMER_PASSWORD_MS", 2500)
    old, new = PASSWORDS["peer"], "another one"
    with FarmServers(ids=(1, 2, 3)) as farm:
        farm.start()
        farm.append(b"before")
        elected = elections(farm)
        change_password(farm, new)
        farm.wait(lambda: all("secret user=peer" in farm.log(number) for number in farm.running))
        farm.append(b"after the change")
        farm.connect(1, user="peer", password=old).close()
        farm.wait(
            lambda: all(farm.log(number).count("users farm=farm") == 2 for number in (1, 2, 3))
        )
        farm.append(b"with new links")
        assert elections(farm) == elected
        farm.connect(1, user="peer", password=new).close()
        with pytest.raises(PermissionError, match="wrong"):
            farm.connect(1, user="peer", password=old)
        farm.kill(1)
        farm.start(1, bootstrap=False)
        index = farm.append(b"restarted").next_index - 1
        farm.wait(lambda: farm.status(1).get("commit_index", 0) >= index, "it is refused")


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


def test_the_password_file_is_reloaded() -> None:
    """A removed user is disconnected, a new one is accepted; a file that others can read is
    ignored.
    """
    with FarmServers(ids=(1,)) as farm:
        farm.start()
        farm.leader()
        client = farm.connect(1)
        text = (farm.folder / "passwords").read_text()
        lines = [line for line in text.splitlines() if not line.startswith("demo:")]
        farm.write_secret("passwords", "\n".join(lines) + "\n")
        with pytest.raises(EOFError):
            client.answer()
        client.close()
        (farm.folder / "passwords").chmod(0o644)
        farm.write_secret("passwords", text)
        farm.wait(lambda: "others can read" in farm.log(1), "the file is accepted")
        (farm.folder / "passwords").chmod(0o600)

        def connects() -> bool:
            try:
                farm.connect(1).close()
            except PermissionError:
                return False
            return True

        farm.wait(connects, "it is refused")


def test_certificates_are_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CA changes too; open connections stay. Unusable files are reported and ignored."""
    monkeypatch.setattr(farm_users, "CHECK_INTERVAL_MS", 50)
    with FarmServers(ids=(1, 2)) as farm:
        farm.start()
        farm.append(b"first")
        with farm.connect(1) as client:
            (farm.folder / "cert.pem").write_text("no certificate")
            farm.wait(lambda: "is not usable" in farm.log(1), "there is no error")
            farm.connect(1).close()
            other = trustme.CA()
            leaf = other.issue_cert("127.0.0.1")
            leaf.private_key_pem.write_to_path(farm.folder / "key.pem")
            leaf.cert_chain_pems[0].write_to_path(farm.folder / "cert.pem")
            other.cert_pem.write_to_path(farm.ca)
            for number in (1, 2):
                farm.wait(partial(has_certificate, farm, number), "it uses the old certificate")
            assert client.ask(Request(MessageType.CLIENT_REQUEST)).source == 1
        farm.kill(2)
        farm.start(2, bootstrap=False)
        farm.append(b"links accept it too")


def has_certificate(farm: FarmServers, number: int) -> bool:
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
        values_of = {"one": {b"a", b"b"}, "two": {b"c"}}
        for name, values in values_of.items():
            farm.append(*values, name=name)
        for name, values in values_of.items():
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
        farm.append(b"first")


def test_a_client_that_reads_no_answers_is_not_read() -> None:
    """Other connections are not affected."""
    with FarmServers(ids=(1,), tls=False, node="connections_max: 8") as farm:
        farm.start()
        farm.leader()
        with farm.connect(1) as greedy:
            data = codec.encode_request(Request(MessageType.CLIENT_REQUEST)) * 1000
            greedy.sock.setblocking(False)
            sent = 0
            with suppress(BlockingIOError):
                while True:  # It never reads, so the server stops reading from it.
                    sent += greedy.sock.send(data[sent % len(data) :])
            farm.append(b"others are served")
            greedy.sock.settimeout(DEADLINE_S)
            for _ in range(sent // codec.REQUEST_HEADER.size):
                assert greedy.answer().is_accepted


def test_wrong_passwords_delay_an_address() -> None:
    """Not other addresses, and no links that are up. Links reconnect at once, unless a guessed
    password was that of the servers' user."""
    with FarmServers(ids=(1, 2)) as farm:
        farm.start()
        farm.append(b"before")
        elected = elections(farm)
        for _ in range(WRONG_MAX):
            with pytest.raises(PermissionError, match="wrong"):
                farm.connect(1, password="guessed")
        with pytest.raises(
            PermissionError, match=r"too many wrong passwords from here; wait [12] s"
        ):
            farm.connect(1)
        url = f"tls://127.0.0.1:{farm.ports[1]}"
        with (
            kelek.Farm(url, user=USER, password=PASSWORD, ca_file=str(farm.ca)) as client,
            pytest.raises(kelek.FarmDenied, match="too many wrong passwords"),
        ):
            client.status()
        assert farm.log(1).count("logins-delayed address=127.0.0.1\n") == 1, "rarely"
        farm.connect(1, user="peer", password=PASSWORDS["peer"]).close()
        for _ in range(WRONG_MAX):  # Of the servers' own user.
            with pytest.raises(PermissionError):
                farm.connect(1, user="peer", password="guessed")
        with pytest.raises(PermissionError, match="too many wrong passwords"):
            farm.connect(1, user="peer", password=PASSWORDS["peer"])
        farm.source = "127.0.0.2"
        farm.connect(1).close()
        farm.connect(1, user="peer", password=PASSWORDS["peer"]).close()
        farm.append(b"after")
        assert elections(farm) == elected


def test_connections_are_limited() -> None:
    with FarmServers(ids=(1,), tls=False, node="connections_max: 8") as farm:
        farm.start()
        farm.leader()
        client = farm.connect(1)
        with ExitStack() as stack:
            silent = [stack.enter_context(farm.dial(1)) for _ in range(8)]
            assert silent[0].recv(1) == b"", "the oldest one without a login is closed"
            with farm.connect(1) as late:
                assert late.ask(Request(MessageType.CLIENT_REQUEST)).is_accepted
            assert client.ask(Request(MessageType.CLIENT_REQUEST)).is_accepted
            assert farm.view(1)["connections"].get("silent_timeouts", 0) == 0, "nor after 5 s"
            assert farm.view(1)["connections"]["connections_refused"] >= 2
        client.close()


def test_links_check_the_server_name_of_the_certificate() -> None:
    """No link comes up, so no server leads; the log has the reason."""
    with FarmServers(ids=(1, 2), node="server_name: elsewhere.example") as farm:
        farm.start()
        farm.wait(lambda: "elsewhere.example" in farm.log(1), "there is no error")
        assert "link-up" not in farm.log(1)
        assert farm.status(1).get("raft_role") != "leader"


def test_tls_1_2_is_accepted_on_request_only() -> None:
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


def test_committed_entries_survive_sigkill() -> None:
    """All servers are killed with SIGKILL at once; committed entries stay."""
    with FarmServers(processes=True, node="post_interval_ms: 0") as farm:
        farm.start()
        before = farm.append(b"committed").next_index
        for number in (1, 2, 3):
            farm.kill(number)
        farm.start(bootstrap=False)
        assert farm.append(b"more").next_index > before + 1, "after a new leader's Configuration"
        assert [farm.stop(number) for number in (1, 2, 3)] == [0, 0, 0]
