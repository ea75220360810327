"""Peers of a log in memory, behind real sockets."""

from pathlib import Path

from kelek.tests.clients.router_thread import RouterThread
from kelek.tests.protocols.zmqraft.fake_cluster import FakeCluster, FakePeer


class LogPeers(RouterThread[FakePeer]):
    """Three peers on ipc. n1 leads."""

    def __init__(self, folder: Path) -> None:
        self.model = FakeCluster()
        for peer in self.model.peers:
            peer.url = f"ipc://{folder}/{peer.name}"
        self.model.peers[0].leads = True
        super().__init__({peer.url: peer for peer in self.model.peers})

    def elect(self, name: str) -> None:
        """Makes a peer the leader."""
        self.send_command("elect", name)

    def on_command(self, command: str, argument: str) -> None:
        for peer in self.model.peers:
            peer.leads = peer.name == argument
