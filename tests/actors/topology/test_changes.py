"""Differences between two readings of a topology, and which of them nodes that run refuse."""

from pathlib import Path

import pytest

from kelek.actors.topology import topology
from kelek.actors.topology.changes import changes, fingerprint, refusals

TEXT = """\
cluster: ring
raft: {heartbeat_ms: 50}
nodes:
  n1: {url: 'ipc:///a', peer_url: 'ipc:///ap'}
  n2: {url: 'ipc:///b', peer_url: 'ipc:///bp'}
"""


@pytest.fixture
def old(tmp_path: Path) -> topology.Topology:
    return reading(tmp_path, TEXT)


def reading(folder: Path, text: str) -> topology.Topology:
    path = folder / "t.yaml"
    path.write_text(text)
    return topology.load(str(path))


def test_changes_have_values_and_the_place_of_the_new_one(
    old: topology.Topology, tmp_path: Path
) -> None:
    text = TEXT.replace("50", "70").replace("  n2", "  n3: {url: 'ipc:///d', peer_url: i}\n  n2")
    new = reading(tmp_path, text.replace("peer_url: i", "peer_url: 'ipc:///dp'"))
    added, changed = changes(old, new)
    assert (changed.key, changed.old, changed.new) == ("raft.heartbeat_ms", 50, 70)
    assert changed.place == f"{tmp_path}/t.yaml:2:22"
    assert (added.key, added.old, added.new["url"]) == ("nodes.n3", None, "ipc:///d")
    assert refusals([added, changed], ["n1", "n2"]) == []


def test_comments_defaults_and_the_order_of_keys_are_no_changes(
    old: topology.Topology, tmp_path: Path
) -> None:
    head, *lines = TEXT.splitlines()
    new = reading(tmp_path, "\n".join(["# A comment.", *lines, head, "data: var"]))
    assert changes(old, new) == []
    assert fingerprint(old) == fingerprint(new)
    assert fingerprint(old) != fingerprint(reading(tmp_path, TEXT.replace("50", "51")))


@pytest.mark.parametrize(
    ("part", "instead", "key", "way_out"),
    [
        ("cluster: ring", "cluster: rung", "cluster", "kelek recover --cluster"),
        ("cluster: ring", "cluster: ring\ndata: other", "data", "supervisor stop"),
        ("cluster: ring", "cluster: ring\nzerodb: {workers: 2}", "zerodb.workers", "former number"),
        ("ipc:///ap", "ipc:///aq", "nodes.n1.peer_url", "kelek log members remove n1"),
        ("'ipc:///b'", "'ipc:///e'", "nodes.n2.url", "kelek log members remove n2"),
        (TEXT.splitlines()[-1], "", "nodes.n2", "first `kelek log members remove n2`"),
    ],
)
def test_what_nodes_that_run_cannot_adopt(
    old: topology.Topology, tmp_path: Path, part: str, instead: str, key: str, way_out: str
) -> None:
    found = changes(old, reading(tmp_path, TEXT.replace(part, instead)))
    [(refused, _, how)] = refusals(found, ["n1", "n2"])
    assert refused == key
    assert way_out in how
    if key.startswith("nodes."):
        assert refusals(found, []) == [], "of a node that is no member"
