"""The shared reactor of nodes: its thread, dropped nodes, and forks."""

import os
import threading
import warnings

import pytest

import kelek
from kelek.tests.clients.node.nodes import DEADLINE_MS, Kind, Make, peer_of, tuned, wait_for


def test_a_dropped_node_leaves_the_network(make: Make, port: int) -> None:
    node = make("a")
    dropped = [kelek.Node("b", tuning=tuned(port))]
    peer_of(node, "b")
    with pytest.warns(ResourceWarning, match=r"unclosed kelek\.Node: use"):
        dropped.clear()
    wait_for(node, Kind.EXIT, "b")


def node_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kelek-nodes"]


def test_the_thread_ends_with_the_last_node(port: int) -> None:
    with kelek.Node(tuning=tuned(port)) as one, kelek.Node(tuning=tuned(port)) as two:
        peer_of(one, two.name)
        (thread,) = node_threads()
    thread.join(DEADLINE_MS / 1000)
    assert not node_threads()
    with kelek.Node(tuning=tuned(port)) as one, kelek.Node(tuning=tuned(port)) as two:
        peer_of(one, two.name)
        (another,) = node_threads()
        assert another is not thread


def test_a_forked_child_cannot_use_the_node(make: Make) -> None:
    node = make("a")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads.
        pid = os.fork()
    if pid == 0:
        try:
            node.join("g")
        except kelek.NodeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    node.join("g")
