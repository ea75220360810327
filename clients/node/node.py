"""kelek.Node: a ZRE node, which discovers its peers.

A thread shared by all nodes of the process answers peers while no method waits.
"""

from collections.abc import Iterator

from ...protocols.zre.peers import Event
from ..broker.body import Content
from ..io.operations import Blocking, Step, Wait
from ..io.public import public
from .base import BaseNode, Target, deadline_of


@public()
class Node(BaseNode, Blocking):
    """A node: it beacons from its creation until close().

        with kelek.Node("lamp", {"X-PLACE": "hall"}) as node:
            node.join("lights")
            print(node.shout("lights", b"on"), "others heard it")

    name      for peers; "": the first characters of its UUID
    headers   names and values that the node's HELLO carries
    tuning    interface, static peers, times and limits
    key       path of a secret key: the node has CURVE, and finds only nodes
              with CURVE
    allow     the keys of the nodes that it greets then: a directory of public
              keys with the grant zre, or public keys in Z85; "*": any key

    events() receive()          the events of other nodes, without end; at once
    join() leave()              a group
    shout() shout_many()        sends to all other members of a group
    whisper() whisper_many()    sends to one peer
    peer(uuid) peers            one peer; all that have greeted
    groups, peer_groups         the node's own groups; the peers in each group
    elect(group) leader(group)  takes part in an election; the leader's UUID
    name, uuid, headers         of this node
    endpoint, public_key        of its mailbox
    counters, closed            counts of events; whether it is closed
    close()                     says goodbye and closes

    Any thread may use it. "*" encrypts, but refuses no node. Raises ValueError
    for invalid arguments, OSError when the interface or address does not exist
    here, NodeError after close().
    """

    # ---- sending ----

    def whisper(self, peer: Target, content: Content) -> bool:
        """Sends content (bytes, a str or a list of frames) to a peer. False: no
        such peer.

        Waits while the peer has no room; after patience_ms the peer is lost. A
        peer of version 1 accepts one frame.
        """
        frames = self._frames(content)
        if self._try_whisper(peer, frames):
            return True
        return self.whisper_many(peer, [content])

    def shout(self, group: str, content: Content) -> int:
        """Sends content to all other members of a group, and returns their
        number."""
        if self._reactor_node.unsent:
            return self.shout_many(group, [content])
        return self._shout(group, [self._frames(content)])[1]

    def _do(self, step: Step) -> None:
        assert isinstance(step, Wait)
        with self._locked():
            self._reactor.wait_until(step.is_done, None)

    # ---- receiving ----

    def receive(self, timeout_ms: int | None = None) -> list[Event]:
        """Waits for events, and returns all unread ones in order.

        Empty: none within timeout_ms, or the node is closed. Beyond 65,536
        unread events, or 64 MiB, the node does not read its mailbox, and its
        peers wait.
        """
        with self._locked():
            if not self._reactor_node.events:
                self._reactor.wait_until(self._has_events, deadline_of(timeout_ms))
            return self._pop_events()

    def events(self, timeout_ms: int | None = None) -> Iterator[Event]:
        """Iterates over events: ENTER, EXIT, CHANGED, JOIN, LEAVE, EVASIVE,
        SILENT, LEADER, WHISPER, SHOUT, each with the peer's name and headers.

        Ends when the node is closed, or after timeout_ms without an event.
        """
        while True:
            with self._locked():
                if not self._reactor_node.events:
                    self._reactor.wait_until(self._has_events, deadline_of(timeout_ms))
                event = self._pop_event()
            if event is None:
                return
            yield event

    # ---- closing ----

    def close(self) -> None:
        """Sends goodbyes, and waits until the node's sockets are closed."""
        if self._close():
            self._reactor.wait_closed(self._reactor_node)
