"""Peers of a log in memory, behind real sockets."""

from collections.abc import Sequence
from pathlib import Path

from kelek.tests.clients.curve_gate import CurveGate
from kelek.tests.clients.router_thread import RouterThread
from kelek.tests.protocols.zmqraft.fake_cluster import FakeCluster, FakePeer


class LogPeers(RouterThread[FakePeer]):
    """Three peers on ipc. n1 leads."""

    def __init__(
        self, folder: Path, urls: Sequence[str] = (), gate: CurveGate | None = None
    ) -> None:
        """urls: in place of those on ipc; gate: they have CURVE"""
        self.model = FakeCluster()
        urls = urls or [f"ipc://{folder}/{peer.name}" for peer in self.model.peers]
        for peer, url in zip(self.model.peers, urls, strict=True):
            peer.url = url
        self.model.peers[0].leads = True
        super().__init__({peer.url: peer for peer in self.model.peers}, gate)

    def elect(self, name: str) -> None:
        """Makes a peer the leader."""
        self.send_command("elect", name)

    def on_command(self, command: str, argument: str) -> None:
        for peer in self.model.peers:
            peer.leads = peer.name == argument
