"""Commands with keys: of --url, of the environment, and of a topology."""

import asyncio
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import kelek
from kelek.bench.ports import free_ports, free_udp_port
from kelek.console.client_keys import VARIABLE
from kelek.protocols.access.certificates import encode_key
from kelek.protocols.zre import services
from kelek.tests.clients.curve_gate import CurveGate, new_key, write_key
from kelek.tests.clients.log.log_peers import LogPeers
from kelek.tests.clients.table.table_servers import TableServers
from kelek.tests.console.kelek_runner import fails, ok
from kelek.tests.secure_cluster import SecureCluster
from kelek.tests.test_docs import CLIENT_KEYS, commands, section

ADMIN = new_key("admin")
URL, SERVER_KEY = "tcp://127.0.0.1:7100", "yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"


@pytest.fixture
def gate() -> CurveGate:
    return CurveGate()


@pytest.fixture
def key(tmp_path: Path, gate: CurveGate) -> Path:
    gate.allow(ADMIN)
    return write_key(tmp_path, ADMIN)


@pytest.fixture
def table_url(tmp_path: Path, gate: CurveGate) -> Iterator[str]:
    url = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with closing(TableServers(tmp_path, urls=[url], gate=gate)):
        yield url


def test_a_url_with_keys(
    table_url: str, gate: CurveGate, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ("--url", table_url, "--server-key", gate.public_key)
    ok("table", "put", 1, "k", "v", *server, "--own-key", key)
    assert ok("table", "get", 1, "k", *server, "--own-key", key) == "v\n"
    monkeypatch.setenv(VARIABLE, str(key))
    assert ok("table", "get", 1, "k", *server) == "v\n"
    assert table_url in ok("table", "jobs", *server)


def test_discovered_urls_with_keys(
    table_url: str, gate: CurveGate, key: Path, tmp_path: Path
) -> None:
    """The node of the search has the command's key, so its nodes must allow it."""
    port = free_udp_port()
    node_key = write_key(tmp_path, gate.key)
    headers = {services.CLUSTER: "hall", services.TABLES: table_url}
    tuning = kelek.NodeTuning(port=port, interface="lo")
    own = encode_key(ADMIN.public_key)
    url = f"zre://hall?interface=lo&port={port}&timeout_ms=60000"
    other = ("--server-key", encode_key(new_key("other").public_key))
    server = ("--url", url, "--own-key", key, "--server-key", gate.public_key, *other)
    with kelek.Node("n1", headers, tuning=tuning, key=node_key, allow=[own]):
        ok("table", "put", 1, "k", "v", *server)
        assert ok("table", "get", 1, "k", *server) == "v\n"
        quick = url.replace("60000", "1500")
        _, problem = fails("table", "get", 1, "k", "--url", quick, "--own-key", key, *other)
        assert "nodes with other keys than server_keys are there" in problem
        _, problem = fails("table", "get", 1, "k", "--url", quick)
        assert "give key and server_keys" in problem
    assert (
        "--own-key, --server-key: "
        in fails("table", "get", 1, "k", "--url", url, "--own-key", key, "--server-key", "short")[1]
    )


def test_keys_that_do_not_fit_are_refused(
    table_url: str, gate: CurveGate, key: Path, tmp_path: Path
) -> None:
    def problem(*words: object) -> str:
        return fails("table", "get", 1, "k", "--url", table_url, *words)[1]

    server, own = ("--server-key", gate.public_key), ("--own-key", key)
    assert "--server-key: the client's key is missing; --own-key" in problem(*server)
    assert "--own-key: the server's key is missing" in problem(*own)
    assert "2 keys for 1 servers" in problem(*server, *server, *own)
    assert "40 characters of Z85" in problem("--server-key", "x", *own)
    assert "copy it here, or kelek keys new" in problem(*server, "--own-key", tmp_path / "none")
    public = key.with_name("orders.key")
    public.write_text(key.read_text())
    public.with_name("orders.key_secret").touch()
    public.chmod(0o644)
    assert f"is a public key; name {public}_secret" in problem(*server, "--own-key", public)
    assert "needs a key" in problem("--timeout", 2)  # libzmq may miss the reason.
    unknown = write_key(tmp_path, new_key("unknown"))
    assert "the server refused the key" in problem(*server, "--own-key", unknown, "--timeout", 2)
    other = ("--server-key", CurveGate().public_key)
    assert "another key than the pinned one" in problem(*other, *own, "--timeout", 2)
    key.chmod(0o644)
    assert f"chmod 600 {key}" in problem(*server, *own)


def test_a_topology_names_the_keys(
    tmp_path: Path, gate: CurveGate, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, peer_url, table_url = (f"tcp://127.0.0.1:{port}" for port in free_ports(3))
    (tmp_path / "keys").mkdir()
    file = tmp_path / "topology.yaml"

    def write(security: str) -> None:
        file.write_text(
            f"cluster: demo\nsecurity: {security}\nnodes:\n  n1:\n    url: {url}\n"
            f"    peer_url: {peer_url}\n"
            f"    server_key: '{gate.public_key}'\n    zerodb: {{url: {table_url}}}\n"
        )

    write(f"{{key_file: {key.name}}}")
    peers = [url, *(f"ipc://{tmp_path}/{name}" for name in ("n2", "n3"))]
    tables = CurveGate(gate.key)  # The same keys in another context.
    tables.allow(ADMIN)
    with (
        closing(LogPeers(tmp_path, peers, gate)),
        closing(TableServers(tmp_path, urls=[table_url], gate=tables)),
    ):
        assert ok("log", "append", "one", "-t", file) == "1\n"
        ok("table", "put", 1, "k", "v", "-t", file)
        write("{}")
        assert "its nodes serve clients with a key only" in fails("log", "info", "-t", file)[1]
        monkeypatch.setenv(VARIABLE, str(key))
        assert ok("table", "get", 1, "k", "-t", file) == "v\n"
        words = ("table", "get", 1, "k", "-t", file, "--server-key", gate.public_key)
        assert "--server-key: it is for --url" in fails(*words)[1]


# ---- a secured cluster ----


@pytest.fixture(scope="module")
def cluster() -> Iterator[SecureCluster]:
    running = SecureCluster("broker: {store: {}, services: {mail: {durable: true}}}\n")
    try:
        running.allow("ann", "log.read log.append tables:*:rw services:* jobs observer admin")
        running.allow("bob", "tables:7:r")
        running.allow("mail", "worker:mail")
        running.start()
        running.wait(lambda: running.log().count("ready node=n") >= 3 * 7)
        yield running
    finally:
        running.stop()


def key_of(cluster: SecureCluster, name: str) -> str:
    return str(cluster.keys / f"{name}.key_secret")


def test_commands_on_a_secured_cluster(
    cluster: SecureCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ("-t", cluster.topology)
    monkeypatch.setenv(VARIABLE, key_of(cluster, "ann"))
    ok("log", "append", "one", *file)
    assert "leader" in ok("log", "info", *file)
    assert "n3" in ok("log", "members", "list", *file)
    assert "up to" in ok("log", "snapshot", *file)
    ok("table", "put", 7, "k", "v", *file)
    assert "copied 1 rows" in ok("table", "copy", 7, 8, *file)
    assert "copy" in ok("table", "jobs", *file)
    ok("broker", "workers", *file)
    monkeypatch.setenv(VARIABLE, key_of(cluster, "bob"))
    assert ok("table", "get", 7, "k", *file) == "v\n"
    for words in (("put", 7, "k", "w"), ("get", 8, "k"), ("copy", 7, 9)):
        problem = fails("table", *words, *file)[1]
        assert "has no grant for this request; `kelek keys allow` grants tables" in problem
    code, line = fails("broker", "services", "--timeout", 1, *file)
    assert (code, "refused the key" in line, "supervisor start" in line) == (1, True, False)


def test_clients_of_a_secured_cluster(
    cluster: SecureCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker's store, the table server and the peers connect by the nodes' keys."""
    ann, bob = key_of(cluster, "ann"), key_of(cluster, "bob")
    logs, tables = cluster.server_keys("url"), cluster.server_keys("zerodb.url")
    with kelek.Log(logs, "safe", key=ann, server_keys=logs) as log:
        before = log.append(b"1")
        with closing(log.watch(before)) as entries:
            log.append(b"2")
            assert next(entries).data == b"2"
    assert not caplog.records, "the leader's broadcast_url has the leader's key"
    with kelek.Table(tables, 7, key=bob, server_keys=tables) as table:
        with pytest.raises(kelek.NotAllowed):
            table.put(b"k", b"v")
        with pytest.raises(kelek.NotAllowed):
            table.truncate()

    @kelek.service("mail")
    async def mail(body: kelek.Body) -> bytes:
        return b"sent " + bytes(body)

    async def run() -> kelek.Body:
        workers = cluster.server_keys("broker.workers_url")
        serving = mail.serve(workers, key=key_of(cluster, "mail"), server_keys=workers)
        task = asyncio.create_task(serving)
        brokers = cluster.server_keys("broker.clients_url")
        async with kelek.AsyncBroker(brokers, key=ann, server_keys=brokers) as broker:
            answer = await broker.call("mail", b"x")
        task.cancel()
        return answer

    assert bytes(asyncio.run(run())) == b"sent x"


def test_the_examples_for_clients(
    cluster: SecureCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.allow("orders", "tables:7:rw")
    url = cluster.urls["n1.zerodb.url"]
    python, console, _spark = section(*CLIENT_KEYS)
    monkeypatch.chdir(cluster.folder)
    allowed = "key-allowed name=orders"
    cluster.wait(lambda: cluster.log().count(allowed) >= 3)
    exec(python.text.replace(URL, url).replace(SERVER_KEY, cluster.server_key("n1")), {})
    assert capsys.readouterr().out == "the key has no grant for this request\n"
    for command, shown in commands(console):
        words = shlex.split(command.replace(URL, url).replace(SERVER_KEY, cluster.server_key("n1")))
        assert ok(*words[1:]) == shown
