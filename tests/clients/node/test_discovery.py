"""zre://CLUSTER urls: the urls that they resolve to, and announcements that are ignored."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.bench.ports import free_ports
from kelek.clients.farm.operations import Credentials
from kelek.clients.farm.operations import make_client as farm_client
from kelek.clients.io.keys import KeyArguments
from kelek.clients.io.urls import cluster_of, resolve_urls
from kelek.clients.log.operations import make_client as log_client
from kelek.clients.node.discovery import (
    discover_nodes,
    discovered_node,
    parse_zre_url,
)
from kelek.clients.table.operations import make_client as table_client
from kelek.console.node.commands import name_of
from kelek.protocols.access.certificates import encode_key
from kelek.protocols.zre import services
from kelek.protocols.zre.values import Version
from kelek.tests.clients.curve_gate import CurveGate, new_key, write_key
from kelek.tests.clients.table.table_servers import TableServers

LOG_URL, TABLES_URL = "tcp://127.0.0.1:7201", "tcp://127.0.0.1:7100"
CLUSTER_HEADERS = {services.CLUSTER: "hall", services.LOG: LOG_URL}
Announce = Callable[[str, dict[str, str]], kelek.Node]


@pytest.fixture
def announce(port: int) -> Iterator[Announce]:
    """Starts nodes that announce headers."""
    with ExitStack() as stack:

        def start(name: str, headers: dict[str, str]) -> kelek.Node:
            tuning = kelek.NodeTuning(port=port, interface="lo")
            return stack.enter_context(kelek.Node(name, headers, tuning=tuning))

        yield start


def zre_url(port: int, name: str, timeout_ms: int = 60_000) -> str:
    return f"zre://{name}?interface=lo&port={port}&timeout_ms={timeout_ms}"


def peer(**headers: str) -> kelek.PeerInfo:
    named = {f"X-{key.upper().replace('_', '-')}": value for key, value in headers.items()}
    return kelek.PeerInfo(b"\1" * 16, "n1", "tcp://10.0.0.1:61001", Version.V2, named)


def test_a_zre_url_resolves_to_the_urls_of_its_cluster(announce: Announce, port: int) -> None:
    announce("n1", {**CLUSTER_HEADERS, services.TABLES: TABLES_URL})
    announce("n2", {services.CLUSTER: "hall", services.WORKERS: "tcp://127.0.0.1:7301"})
    announce("m1", {services.CLUSTER: "other", services.LOG: "tcp://127.0.0.1:7401"})
    hall = zre_url(port, "hall")
    assert resolve_urls(hall, services.TABLES) == (TABLES_URL,)
    assert resolve_urls(["tcp://10.0.0.1:1", hall], services.LOG) == ("tcp://10.0.0.1:1", LOG_URL)
    assert resolve_urls([LOG_URL], services.LOG) == (LOG_URL,)
    client = log_client(hall, "demo", "auto", None)
    assert client.setup.urls == (LOG_URL,)
    assert client.setup.cluster == b"hall"
    announce("n3", {services.CLUSTER: "hall", services.FARM: "tls://127.0.0.1:7401"})
    farm = farm_client(hall, "farm", Credentials("u", "p", None), kelek.FarmTuning())
    assert farm.setup.addresses == (("127.0.0.1", 7401),)
    worker = kelek.Worker(kelek.service("s")(lambda body: body), hall)
    assert worker.urls == ("tcp://127.0.0.1:7301",)
    assert table_client(hall, None).setup.urls == (TABLES_URL,)
    found = discover_nodes(kelek.NodeTuning(port=port, interface="lo"), 60_000, lambda one: True)
    assert {"hall", "other"} >= {one.cluster for one in found}


def test_discovery_of_a_missing_service_times_out(announce: Announce, port: int) -> None:
    announce("n1", CLUSTER_HEADERS)
    with pytest.raises(kelek.NodeError, match=f"offers {services.BROKER} within 500 ms"):
        kelek.Broker(zre_url(port, "hall", 500))
    with pytest.raises(kelek.NodeError, match="within 1 ms"):
        kelek.Log(zre_url(port, "elsewhere", 1))


def test_a_peer_can_only_announce_its_own_address() -> None:
    own, other = "tcp://10.0.0.1:7201", "tcp://10.0.0.2:7201"
    found = discovered_node(
        peer(kelek_cluster="hall", kelek_log=f"{other},{own}", kelek_tables=other)
    )
    assert found is not None
    assert found.services == {services.LOG: (own,)}
    for url in ("", "x", "tcp://10.0.0.1:0", "tcp://10.0.0.11:7201", "ipc:///tmp/x", ",,"):
        assert discovered_node(peer(kelek_log=url)) is None
    assert discovered_node(peer(location="lab")) is None


@pytest.mark.parametrize(
    "url", ["zre://", "zre://a/b", "zre://a?port=x", "zre://a?colour=red", "zre://a?port=-1"]
)
def test_invalid_zre_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="zre://"):
        parse_zre_url(url)


def test_options_of_a_zre_url() -> None:
    parsed = parse_zre_url("zre://hall?interface=lo&broadcast=127.255.255.255&port=99&timeout_ms=7")
    assert (parsed.cluster, parsed.timeout_ms) == ("hall", 7)
    assert parsed.tuning == kelek.NodeTuning(99, "lo", "127.255.255.255")
    assert parse_zre_url("zre://hall").tuning == kelek.NodeTuning()
    assert cluster_of([LOG_URL, "zre://hall"]) == "hall"
    assert cluster_of(LOG_URL) == ""


def test_a_node_without_a_name_is_shown_by_its_uuid() -> None:
    assert name_of(peer()._replace(name="")) == "010101"


# ---- with keys ----

OWN, NODE, OTHER = (new_key(name) for name in ("own", "n1", "other"))


@pytest.fixture
def secured(tmp_path: Path, port: int) -> Iterator[Callable[..., kelek.Node]]:
    """Starts nodes with CURVE that allow OWN, and announce headers."""
    with ExitStack() as stack:

        def start(name: str, headers: dict[str, str], key: Any = NODE) -> kelek.Node:
            tuning = kelek.NodeTuning(port=port, interface="lo")
            path = write_key(tmp_path, key)
            allow = [public(OWN)]
            node = kelek.Node(name, headers, tuning=tuning, key=path, allow=allow)
            return stack.enter_context(node)

        yield start


def public(key: Any) -> str:
    return encode_key(key.public_key)


def test_discovered_urls_have_the_pinned_key_that_their_node_has_proven(
    secured: Callable[..., kelek.Node], tmp_path: Path, port: int
) -> None:
    secured("n1", {**CLUSTER_HEADERS, services.TABLES: TABLES_URL})
    log_2 = "tcp://127.0.0.1:7202"
    secured("n2", {services.CLUSTER: "hall", services.LOG: log_2}, OTHER)
    pins = KeyArguments(write_key(tmp_path, OWN), [public(NODE), public(OTHER)])
    assert set(resolve_urls(zre_url(port, "hall"), services.LOG, pins)) == {LOG_URL, log_2}
    assert pins.server_keys == {
        LOG_URL: public(NODE), TABLES_URL: public(NODE), log_2: public(OTHER)
    }  # fmt: skip
    given = {LOG_URL: public(OTHER), "tcp://10.0.0.1:1": None, "tcp://10.0.0.1:2": public(NODE)}
    pins = KeyArguments(tmp_path / "own.key_secret", given)
    resolve_urls(zre_url(port, "hall"), services.LOG, pins)
    assert pins.server_keys == {**given, TABLES_URL: public(NODE), log_2: public(OTHER)}


def test_a_table_by_discovery_with_keys(
    secured: Callable[..., kelek.Node], tmp_path: Path, port: int
) -> None:
    """A node with another key announces its own url first: it is not asked."""
    gate = CurveGate(NODE)
    gate.allow(OWN)
    (number,) = free_ports(1)
    url = f"tcp://127.0.0.1:{number}"
    secured("forger", {**CLUSTER_HEADERS, services.TABLES: "tcp://127.0.0.1:9"}, OTHER)
    secured("n1", {**CLUSTER_HEADERS, services.TABLES: url})
    key = write_key(tmp_path, OWN)
    with closing(TableServers(tmp_path, urls=[url], gate=gate)):
        for pins in ([public(NODE)], public(NODE), {"tcp://10.0.0.1:1": public(NODE)}):
            with kelek.Table(zre_url(port, "hall"), 1, key=key, server_keys=pins) as table:
                table.put(b"k", b"v")
                assert table.get(b"k") == b"v"


def test_a_url_whose_server_has_another_key_than_its_node_is_refused(
    secured: Callable[..., kelek.Node], tmp_path: Path, port: int
) -> None:
    gate = CurveGate(OTHER)
    gate.allow(OWN)
    (number,) = free_ports(1)
    url = f"tcp://127.0.0.1:{number}"
    secured("n1", {**CLUSTER_HEADERS, services.TABLES: url})
    key = write_key(tmp_path, OWN)
    pins = [public(NODE), public(OTHER)]
    with (
        closing(TableServers(tmp_path, urls=[url], gate=gate)),
        kelek.Table(zre_url(port, "hall"), 1, key=key, server_keys=pins, timeout_ms=1500) as table,
        pytest.raises(kelek.TableUnavailable, match=r"another key|each handshake"),
    ):
        table.get(b"k")


def test_why_nodes_were_not_found(
    secured: Callable[..., kelek.Node], announce: Announce, tmp_path: Path, port: int
) -> None:
    url = zre_url(port, "hall", 1500)
    key = write_key(tmp_path, OWN)

    def problem(**keys: Any) -> str:
        with pytest.raises(kelek.NodeError) as error:
            kelek.Log(url, **keys)
        return str(error.value)

    secured("n1", CLUSTER_HEADERS)
    assert "give key and server_keys" in problem()
    assert "other keys than server_keys" in problem(key=key, server_keys=[public(OTHER)])
    stranger = write_key(tmp_path, new_key("stranger"))
    assert "the grant zre" in problem(key=stranger, server_keys=[public(NODE)])
    announce("n2", {services.CLUSTER: "elsewhere"})
    assert "nodes without CURVE are there" in problem(key=stranger, server_keys=[public(NODE)])


def test_a_farm_by_discovery_with_keys(
    secured: Callable[..., kelek.Node], tmp_path: Path, port: int
) -> None:
    """A node with another key announces its own url first: it is not asked. A farm has TLS."""
    secured("forger", {services.CLUSTER: "hall", services.FARM: "tls://127.0.0.1:9"}, OTHER)
    secured("n1", {services.CLUSTER: "hall", services.FARM: "tls://127.0.0.1:7401"})
    key = write_key(tmp_path, OWN)
    login: dict[str, Any] = {"user": "u", "password": "p"}
    url, pins = zre_url(port, "hall"), KeyArguments(key, [public(NODE)])
    made = farm_client(url, "farm", Credentials("u", "p", None), kelek.FarmTuning(), pins)
    assert made.setup.addresses == (("127.0.0.1", 7401),)
    kelek.Farm(url, key=key, server_keys=[public(NODE)], **login).close()
    with pytest.raises(kelek.NodeError, match="give key and server_keys"):
        kelek.Farm(zre_url(port, "hall", 1500), **login)
    with pytest.raises(kelek.KeyUnusable, match="are for zre:// urls"):
        kelek.Farm("tls://127.0.0.1:7401", key=key, server_keys=[public(NODE)], **login)
    with pytest.raises(kelek.KeyUnusable, match="give both, or neither"):
        kelek.Farm(url, key=key, **login)


def test_a_list_of_keys_is_for_discovery(tmp_path: Path) -> None:
    key = write_key(tmp_path, OWN)
    for keys in ([public(NODE)], (public(NODE), public(OTHER))):
        with pytest.raises(kelek.KeyUnusable, match="a list of server keys is for zre:// urls"):
            kelek.Log(LOG_URL, key=key, server_keys=keys)
    for missing in ({"key": key}, {"server_keys": [public(NODE)]}):
        with pytest.raises(kelek.KeyUnusable, match="give both, or neither"):
            kelek.Log("zre://hall", **missing)
    with pytest.raises(kelek.KeyUnusable, match="40 characters"):
        kelek.Log("zre://hall?interface=lo", key=key, server_keys=["short"])
