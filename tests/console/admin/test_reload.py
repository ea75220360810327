"""`supervisor reload` of nodes with keys: a node joins while a client appends."""

import threading
from concurrent.futures import ThreadPoolExecutor

import kelek
from kelek.tests.console import kelek_runner
from kelek.tests.secure_cluster import DEADLINE_S, SecureCluster
from kelek.tests.waiting import PACE_S


def test_a_node_with_a_key_joins_without_a_failed_request() -> None:
    """The steps of docs/operations/changes.md: the topology, a reload, a start, a member."""
    cluster = SecureCluster()
    key = cluster.allow("client", "log.read log.append")
    admin = cluster.allow("admin", "admin log.read")
    server_keys = cluster.server_keys("url")
    stop, done = threading.Event(), list[int]()

    def append() -> None:
        with kelek.Log([*server_keys], "safe", key=key, server_keys=server_keys) as log:
            while not stop.wait(PACE_S):
                done.append(log.append(b"%d" % len(done)))

    try:
        cluster.start()
        cluster.wait(lambda: "all-ready" in cluster.log())
        with ThreadPoolExecutor(1) as pool:
            appending = pool.submit(append)
            try:
                cluster.wait(lambda: bool(done))
                cluster.add_node("n4")
                shown = cluster.supervisor("reload", "topology.yaml")
                after_reload = len(done)
                cluster.supervisor(
                    "start", "topology.yaml", "--node", "n4", "--one-process", "--detach"
                )
                url = cluster.urls["n4.url"]
                cluster_of = ("-t", cluster.topology, "--own-key", admin)
                added = kelek_runner.ok("log", "members", "add", "n4", url, *cluster_of)
                cluster.wait(lambda: len(done) > after_reload + 1)
            finally:
                stop.set()
            appending.result(DEADLINE_S)
        assert (
            f"n4 is new: `supervisor start --node n4`, then `kelek log members add n4 {url}`"
            in (shown)
        )
        assert shown.count("unit=node") == 3, "one node after the other"
        assert added.startswith("n4 is a member")
        assert "n4" in kelek_runner.ok("log", "members", "list", *cluster_of)
        assert done == sorted({*done})
        cluster.supervisor("stop", "topology.yaml", "--node", "n4")
    finally:
        cluster.stop()
