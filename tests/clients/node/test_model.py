"""Nodes that start, stop, join, leave and send in random order, against a model."""

import time
from random import Random
from typing import NamedTuple

import pytest

import kelek
from kelek.bench.ports import free_udp_port

DEADLINE_S = 60
GROUPS = ("red", "green")
NODES = 3
STEPS = 60
WEIGHTS = {"toggle": 1, "agree": 1, "read": 2, "join": 2, "leave": 1, "whisper": 4, "shout": 3}


class SentMessage(NamedTuple):
    sender: bytes  # A UUID.
    receiver: bytes  # A UUID.
    text: bytes


class LiveNodes:
    """The live nodes by number, the messages that they received, and those sent to one of them."""

    def __init__(self) -> None:
        self.tuning = kelek.NodeTuning(port=free_udp_port(), interface="lo")
        self.live: dict[int, kelek.Node] = {}
        self.received: dict[bytes, list[SentMessage]] = {}
        self.whispers: list[SentMessage] = []
        self.shouts: list[tuple[bytes, bytes]] = []
        self.count = 0

    def step(self, dice: Random) -> None:
        (what,) = dice.choices([*WEIGHTS], [*WEIGHTS.values()])
        number, other = dice.sample(range(NODES), 2)
        node = self.live.get(number)
        if what == "agree":
            self.wait_until_they_agree()
        elif what == "toggle" and node is not None:
            self.live.pop(number).close()
        elif what == "toggle":
            self.start(number)
        elif node is not None and what == "read":
            self.read(node)
        elif node is not None and what == "whisper":
            if other in self.live:
                self.whisper(node, self.live[other])
        elif node is not None:
            self.in_group(node, what, dice.choice(GROUPS))

    def start(self, number: int) -> None:
        self.live[number] = kelek.Node(f"n{number}", tuning=self.tuning)
        self.received[self.live[number].uuid] = []

    def in_group(self, node: kelek.Node, what: str, group: str) -> None:
        if what == "join":
            node.join(group)
        elif what == "leave":
            node.leave(group)
        else:
            self.shouts.append((node.uuid, self.text()))
            node.shout(group, self.shouts[-1][1])

    def whisper(self, node: kelek.Node, other: kelek.Node) -> None:
        message = SentMessage(node.uuid, other.uuid, self.text())
        if node.whisper(other.uuid, message.text):
            self.whispers.append(message)

    def text(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def read(self, node: kelek.Node, timeout_ms: int = 0) -> None:
        for event in node.receive(timeout_ms):
            if event.kind.value in ("WHISPER", "SHOUT") and event.peer is not None:
                message = SentMessage(event.peer.uuid, node.uuid, event.content[0])
                self.received[node.uuid].append(message)

    def agree(self) -> bool:
        """Whether all nodes agree on peers and groups."""
        for node in self.live.values():
            others = [other for other in self.live.values() if other is not node]
            if {peer.uuid for peer in node.peers} != {other.uuid for other in others}:
                return False
            for group in GROUPS:
                seen = {peer.uuid for peer in node.peer_groups.get(group, [])}
                if seen != {other.uuid for other in others if group in other.groups}:
                    return False
        return True

    def wait_until_they_agree(self) -> None:
        until = time.monotonic() + DEADLINE_S
        while not self.agree():
            assert time.monotonic() < until, {n: node.counters for n, node in self.live.items()}
            for node in self.live.values():
                self.read(node, 5)

    def check_messages(self) -> None:
        """All whispers arrive in the sender's order; no shout arrives twice."""
        for node in self.live.values():
            self.read(node)
            for sender in {message.sender for message in self.received[node.uuid] + self.whispers}:
                received = [it for it in self.received[node.uuid] if it.sender == sender]
                whispers = [it for it in self.whispers if it[:2] == (sender, node.uuid)]
                assert [it for it in received if it in whispers] == whispers
                shouted = [it.text for it in received if it not in whispers]
                assert shouted == [
                    text for who, text in self.shouts if who == sender and text in shouted
                ]


@pytest.mark.parametrize("seed", range(10))
def test_nodes_agree_and_whispers_arrive_once(seed: int) -> None:
    nodes, dice = LiveNodes(), Random(seed)
    try:
        for number in range(NODES):
            nodes.start(number)
        nodes.wait_until_they_agree()
        for _ in range(STEPS):
            nodes.step(dice)
        nodes.wait_until_they_agree()
        nodes.check_messages()
    finally:
        for node in nodes.live.values():
            node.close()
