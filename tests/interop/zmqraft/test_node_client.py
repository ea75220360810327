"""The npm package's own client against a cluster of ours."""

import base64
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kelek.tests.interop.conftest import InteropCluster, new_folder
from kelek.tests.interop.zmqraft.node_package import (
    NodeClient,
    NodeProcess,
    node_client,
    node_subscriber,
)

DEADLINE_S = 60.0
KILLS = 3
WINDOW = 16
EACH = 300  # Updates between two kills.


@pytest.fixture
def client(cluster: InteropCluster, node_home: Path) -> Iterator[NodeClient]:
    with node_client(node_home, list(cluster.urls.values())) as found:
        yield found


def test_it_updates_and_reads_entries(client: NodeClient) -> None:
    first = client.update(b"by the npm package")
    second = client.update(bytes(range(256)) * 1024)  # More than one message of 64 KiB.
    assert second > first
    client.wait_applied(second)
    entries = {entry["index"]: entry for entry in client.entries(first - 1)}
    assert entries[first]["data"] == b"by the npm package"
    assert entries[second]["data"] == bytes(range(256)) * 1024
    assert entries[first]["kind"] == 0


def test_it_reads_a_part(client: NodeClient) -> None:
    last = [client.update(b"%d" % number) for number in range(20)][-1]
    client.wait_applied(last)
    entries = client.entries(last - 12, 5)
    assert [entry["index"] for entry in entries] == list(range(last - 11, last - 6))


def test_a_repeat_gets_the_first_index(client: NodeClient) -> None:
    reqid = f"{int(time.time()):08x}" + os.urandom(8).hex()
    index = client.update(b"once", reqid)
    assert client.update(b"once", reqid) == index
    client.wait_applied(index)
    assert [entry["reqid"] for entry in client.entries(index - 1)].count(reqid) == 1


def test_it_learns_the_leader_and_the_members(client: NodeClient, cluster: InteropCluster) -> None:
    config = client.ask("config")
    assert dict(config["peers"]) == cluster.urls
    info = client.ask("info")
    assert info["isLeader"] is True
    assert info["leaderId"] in cluster.urls
    index = client.update(b"one more")
    info = client.ask("info")
    assert info["firstIndex"] == 1
    assert info["lastIndex"] >= info["commitIndex"] >= index
    assert isinstance(info["pruneIndex"], int)


def test_nothing_is_lost_or_doubled_through_three_leader_kills(node_home: Path) -> None:
    folder = new_folder()
    cluster = InteropCluster(folder, {"n1": "kelek", "n2": "kelek", "n3": "kelek"})
    try:
        with node_client(node_home, list(cluster.urls.values())) as client:
            client.update(b"the cluster is up")
            indexes: dict[bytes, int] = {}
            killed = [_load(client, cluster, indexes, kill) for kill in range(KILLS)]
            _load(client, cluster, indexes, KILLS, kills=False)
            assert len(set(killed)) == KILLS
            client.wait_applied(max(indexes.values()))
            entries = [entry for entry in client.entries() if entry["data"].startswith(b"update ")]
        found = {entry["data"]: entry["index"] for entry in entries}
        assert len(entries) == len(found), "doubled"
        assert found == indexes
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def test_its_subscriber_gets_every_entry_once_and_in_order(node_home: Path) -> None:
    """Those written before it came, those broadcast, and those around a leader's death."""
    folder = new_folder()
    cluster = InteropCluster(folder, {"n1": "kelek", "n2": "kelek", "n3": "kelek"})
    try:
        with node_client(node_home, list(cluster.urls.values())) as client:
            indexes: dict[bytes, int] = {}
            _load(client, cluster, indexes, 0, kills=False)
            with node_subscriber(node_home, list(cluster.urls.values())) as subscriber:
                _read(subscriber, max(indexes.values()))
                last_index = client.update(b"broadcast")
                [*_, entry] = _read(subscriber, last_index, last_index)
                assert entry["data"] == b"broadcast"
                _load(client, cluster, indexes, 1)
                found = _read(subscriber, max(indexes.values()), last_index + 1)
        told = {entry["data"] for entry in found if entry["kind"] == 0}
        assert told == {name for name, index in indexes.items() if index > last_index}
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def _read(subscriber: NodeProcess, last_index: int, first_index: int = 1) -> list[dict[str, Any]]:
    """The entries from first to last, which come in their order and without a gap."""
    found = []
    for index in range(first_index, last_index + 1):
        entry = json.loads(subscriber.line())
        assert entry.get("index") == index, entry
        found.append({**entry, "data": base64.b64decode(entry["data"])})
    return found


def _load(
    client: NodeClient,
    cluster: InteropCluster,
    indexes: dict[bytes, int],
    part: int,
    kills: bool = True,
) -> int:
    """Keeps a window of updates under way; halfway the leader's peer process is killed."""
    names = [b"update %d of %d" % (number, part) for number in range(EACH)]
    open_: dict[int, bytes] = {}
    pid = 0
    for number, name in enumerate(names):
        if kills and number == EACH // 2:
            pid = cluster.pid(_leader(cluster))
            os.kill(pid, signal.SIGKILL)
        if len(open_) == WINDOW:
            _take(client, open_, indexes)
        open_[client.begin_update(name)] = name
    while open_:
        _take(client, open_, indexes)
    return pid


def _take(client: NodeClient, open_: dict[int, bytes], indexes: dict[bytes, int]) -> None:
    number = next(iter(open_))
    found = client.answer(number)
    assert "error" not in found, found["error"]
    indexes[open_.pop(number)] = found["index"]


def _leader(cluster: InteropCluster) -> str:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        for row in cluster.status():
            if row.get("raft_role") == "leader":
                return str(row["node"])
    raise AssertionError("nobody leads")
