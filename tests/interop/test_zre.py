"""Nodes of ZRE from elsewhere: pyre's (version 2), and version 1 from the text alone."""

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from kelek.tests.interop.zre_nodes import PLAIN, PYRE, NodeProcess, meet, talk
from kelek.tests.ports import free_udp_port

GROUP = "room"


def find_and_talk(kinds: Sequence[str]) -> None:
    """Has nodes of these kinds find each other, whisper, shout, and leave their group."""
    port = free_udp_port()
    with ExitStack() as stack:
        nodes = []
        for number, kind in enumerate(kinds):
            name, headers = f"{kind}-{number}", {"X-NUMBER": str(number)}
            node = NodeProcess(kind, port, name=name, headers=headers)
            nodes.append(stack.enter_context(node))
        meet(nodes, GROUP)
        talk(nodes, GROUP, "a word")
        nodes[0].tell("leave", group=GROUP)
        for number, node in enumerate(nodes):
            for peer, other in enumerate(nodes):
                if other is not node:
                    (entered,) = node.said("ENTER", peer=other.uuid)
                    assert entered["headers"] == {"X-NUMBER": str(peer)}, f"seen by {number}"
                    assert not node.said("EXIT", peer=other.uuid)
            if node is not nodes[0]:
                node.wait_for("LEAVE", peer=nodes[0].uuid, group=GROUP)
        for node in nodes:
            node.stop()
            assert not any(node.said(bad) for bad in ("GAP", "STATUS", "MALFORMED", "FULL"))


@pytest.mark.parametrize("kind", [PLAIN, PYRE])
def test_the_nodes_from_elsewhere_talk_among_themselves(kind: str) -> None:
    find_and_talk([kind] * 2)
