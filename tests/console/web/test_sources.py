"""The page of a cluster with keys: it sees what its key may see, and without a key only what the
supervisor reports. One process."""

import http.client
import itertools
import json
from contextlib import closing
from typing import Any

import pytest

import kelek
from kelek.bench.ports import free_ports
from kelek.tests.secure_cluster import SecureCluster

pytest.importorskip("starlette", reason="kelek[web] is not installed")
pytest.importorskip("uvicorn", reason="kelek[web] is not installed")


def fetch(port: int, path: str) -> tuple[int, Any]:
    """(status, JSON); status 0: nothing listens. Of a stream the second view, which has answers; a
    page asks again for one that ends, as it does when the page adopts a topology."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        try:
            connection.request("GET", path)
        except ConnectionRefusedError:
            return 0, None
        answer = connection.getresponse()
        if answer.getheader("content-type", "").startswith("text/event-stream"):
            lines = (line for line in answer if line.startswith(b'data: {"view"'))
            views = list(itertools.islice(lines, 2))
            if len(views) < 2:
                return fetch(port, path)
            return answer.status, json.loads(views[1][6:])["content"]
        return answer.status, json.loads(answer.read())


def test_the_page_has_the_rights_of_its_key() -> None:
    cluster = SecureCluster(names=("n1", "n2"))
    with_key, without = free_ports(2)
    page_key = cluster.allow("page", "observer tables:7:r")
    owner = cluster.allow("owner", "tables:*:rw jobs admin")
    text = cluster.topology.read_text()
    text = text.replace("  n1: {", f"  n1: {{web: {{address: '127.0.0.1:{with_key}', key_file: "
                        f"{page_key}}}, ", 1)  # fmt: skip
    text = text.replace("  n2: {", f"  n2: {{web: {{address: '127.0.0.1:{without}'}}, ", 1)
    cluster.topology.write_text(text)
    try:
        cluster.start()
        cluster.wait(lambda: "all-ready" in cluster.log())
        servers = cluster.server_keys("zerodb.url")
        for number in (7, 8):
            with kelek.Table([*servers], number, timeout_ms=60_000, key=owner,
                             server_keys=servers) as table:  # fmt: skip
                table.put(b"key", b"value")
        assert fetch(with_key, "/rows?table=7")[1]["rows"][0]["value"] == "value"
        status, refused = fetch(with_key, "/rows?table=8")
        assert (status, "grant" in refused["problem"]) == (403, True), refused
        status, refused = fetch(without, "/rows?table=7")
        assert status == 403
        assert "key_file" in refused["problem"]
        services = fetch(with_key, "/events?view=services")[1]
        assert services["problem"] == ""
        assert len(services["brokers"]) == 2
        tables = fetch(without, "/events?view=tables")[1]
        assert "the page has no key" in tables["tables"]["problem"]
        assert len(tables["servers"]) == 2, "what the supervisor reports needs no key"
        peers = fetch(without, "/events?view=raft")[1]["peers"]
        assert {it["role"] for it in peers} == {"leader", "follower"}
    finally:
        cluster.stop()


def test_the_page_adopts_another_url_of_a_broker_with_its_key() -> None:
    """Its node has no broker that changes, so none of its actors restarts."""
    cluster = SecureCluster(names=("n1", "n2"))
    port, new = free_ports(2)
    page = f"web: {{address: '127.0.0.1:{port}', key_file: {cluster.allow('page', 'observer')}}}"
    cluster.topology.write_text(cluster.topology.read_text().replace("n2: {", f"n2: {{{page}, ", 1))
    changed = {**cluster.urls, "n1.broker.clients_url": f"tcp://127.0.0.1:{new}"}

    def urls() -> dict[str, str]:
        services = fetch(port, "/events?view=services")[1]
        assert services["problem"] == ""
        return {row["node"]: row["url"] for row in services["brokers"]}

    try:
        cluster.start()
        cluster.wait(lambda: "all-ready" in cluster.log())
        assert urls() == {it: cluster.urls[f"{it}.broker.clients_url"] for it in ("n1", "n2")}
        text = cluster.topology.read_text()
        old = cluster.urls["n1.broker.clients_url"]
        cluster.topology.write_text(text.replace(old, changed["n1.broker.clients_url"]))
        shown = cluster.supervisor("reload", "topology.yaml")
        assert "restarted node=n1 unit=node " in shown
        assert "updated node=n2 unit=node " in shown
        assert urls() == {it: changed[f"{it}.broker.clients_url"] for it in ("n1", "n2")}
    finally:
        cluster.stop()
