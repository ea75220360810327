"""Our nodes of ZRE among others: pyre's (version 2), and version 1 from the text alone."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from kelek.bench.ports import free_udp_port
from kelek.tests.interop.zre.zre_nodes import OURS, PLAIN, PYRE, NodeProcess, meet, pairs, talk

GROUP = "room"
BAD = ("GAP", "STATUS", "MALFORMED", "FULL")  # What a plain node says when it is told nonsense.


@contextmanager
def running(kinds: Sequence[str], **options: Any) -> Iterator[list[NodeProcess]]:
    port = free_udp_port()
    with ExitStack() as stack:
        nodes = []
        for number, kind in enumerate(kinds):
            name, headers = f"{kind}-{number}", {"X-NUMBER": str(number)}
            node = NodeProcess(kind, port, name=name, headers=headers, **options)
            nodes.append(stack.enter_context(node))
        yield nodes


def check_talk(nodes: Sequence[NodeProcess]) -> None:
    """They find each other with their headers, whisper, shout, leave their group and go."""
    meet(nodes, GROUP)
    talk(nodes, GROUP, "a word")
    nodes[0].tell("leave", group=GROUP)
    for node, other in pairs(nodes):
        (entered,) = node.said("ENTER", peer=other.uuid)
        assert entered["headers"] == {"X-NUMBER": str(nodes.index(other))}
        assert not node.said("EXIT", peer=other.uuid)
        if other is nodes[0]:
            node.wait_for("LEAVE", peer=other.uuid, group=GROUP)
    for node in nodes:
        node.stop()
        assert not any(node.said(bad) for bad in BAD)


@pytest.mark.parametrize(
    "kinds",
    [
        (PLAIN, PLAIN),
        (PYRE, PYRE),
        (OURS, OURS, PYRE),
        (PYRE, OURS, PYRE),
        (OURS, OURS, PLAIN),
        (PLAIN, OURS, PLAIN),
        (PLAIN, OURS, PYRE, OURS),
    ],
)
def test_nodes_talk(kinds: Sequence[str]) -> None:
    """Ours speak version 2 among themselves, and version 1 to nodes that greet in it."""
    with running(kinds) as nodes:
        check_talk(nodes)
        for node, other in pairs(nodes):
            if node.kind == OURS:
                (entered,) = node.said("ENTER", peer=other.uuid)
                assert entered["version"] == (1 if other.kind == PLAIN else 2)


@pytest.mark.parametrize("kind", [PYRE, PLAIN])
def test_a_killed_node_is_missed_and_welcome_again(kind: str) -> None:
    times: dict[str, Any] = {"evasive_s": 1, "dead_s": 3}
    with running([OURS, OURS, kind], **times) as nodes:
        *ours, other = nodes
        meet(nodes, GROUP)
        other.kill()
        for node in ours:
            node.wait_for("EXIT", peer=other.uuid)
            names = [one["event"] for one in node.events if one.get("peer") == other.uuid]
            # A machine that stands still for seconds makes nodes miss each other, too.
            assert names[:2] == ["ENTER", "JOIN"]
            assert "EVASIVE" in names[2:-1]
        with NodeProcess(kind, other.port, **times) as again:
            meet([*ours, again], GROUP)
            ours[0].kill()
            again.wait_for("EXIT", peer=ours[0].uuid)


def test_a_goodbye_is_received() -> None:
    with running([OURS, PYRE, OURS]) as nodes:
        meet(nodes, GROUP)
        gone = nodes[2]
        gone.stop()
        for node in nodes[:2]:
            node.wait_for("EXIT", peer=gone.uuid)
        nodes[1].stop()
        nodes[0].wait_for("EXIT", peer=nodes[1].uuid)
        nodes[0].tell("count")
        assert nodes[0].wait_for("COUNTERS")["goodbyes"] == 2
