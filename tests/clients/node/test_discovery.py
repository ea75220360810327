"""zre://CLUSTER urls: the urls that they resolve to, and announcements that are ignored."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import kelek
from kelek.clients.farm.operations import Credentials
from kelek.clients.farm.operations import make_client as farm_client
from kelek.clients.log.operations import make_client as log_client
from kelek.clients.node.discovery import (
    cluster_of,
    discover_nodes,
    discovered_node,
    parse_zre_url,
    resolve_urls,
)
from kelek.clients.table.operations import make_client as table_client
from kelek.console.node.commands import name_of
from kelek.protocols.zre import services
from kelek.protocols.zre.values import Version

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
