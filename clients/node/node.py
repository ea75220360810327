"""kelek.Node: a node of ZRE, that finds its peers by itself.

A thread of the process, shared by all of its nodes, answers peers while nobody waits here.
"""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from ...protocols.zre.peers import Event
from ..broker.body import Content
from .base import BaseNode, Target, until_of


class Node(BaseNode):
    """A node: it beacons from its first moment until close().

        with kelek.Node("lamp", {"X-PLACE": "hall"}) as node:
            node.join("lights")
            for event in node.events():
                if event.kind is kelek.EventKind.SHOUT:
                    node.whisper(event.peer, b"heard")

    name      that peers see; default: the beginning of its UUID
    headers   names and values that peers are given with its greeting
    tuning    where it beacons, which peers it greets unheard, when they are held to be gone

    Any thread may use it. Raises ValueError for what can't be said, OSError when there is no such
    interface or address here, NodeError once it is closed.
    """

    # ---- what is said ----

    def whisper(self, peer: Target, content: Content) -> bool:
        """Sends content, bytes, a str or a list of frames, to a peer. False: it is not there.

        While the peer has no room it waits; after patience_ms the peer is held to be gone. A peer
        of version 1 takes one frame.
        """
        frames = self._frames(content)
        if self._whispered(peer, frames):
            return True
        self._wait_for_room()
        return self._whisper(peer, [frames]) >= 0

    def whisper_many(self, peer: Target, contents: Iterable[Content]) -> bool:
        """As whisper(), many messages in one go. False: the peer is not there, or was lost before
        the last of them."""
        left = self._all_frames(contents)
        while left:
            self._wait_for_room()
            count = self._whisper(peer, left)
            if count < 0:
                return False
            left = left[count:]
        return True

    def shout(self, group: str, content: Content) -> int:
        """Sends content to all others in a group, and returns how many they are."""
        self._wait_for_room()
        return self._shout(group, [self._frames(content)])[1]

    def shout_many(self, group: str, contents: Iterable[Content]) -> int:
        """As shout(), many messages in one go; how many peers got the last one."""
        left, peers = self._all_frames(contents), 0
        while left:
            self._wait_for_room()
            count, peers = self._shout(group, left)
            left = left[count:]
        return peers

    def _wait_for_room(self) -> None:
        if self._place.stuck:
            with self._held():
                self._hub.wait(self._has_room, None)

    # ---- what happens ----

    def receive(self, timeout_ms: int | None = None) -> list[Event]:
        """Waits until something happens, and returns all that has, in order.

        Empty: nothing within that time, or the node is closed. Whoever reads too late keeps his
        peers waiting: beyond 65,536 unread events, or 64 MiB, the mailbox is not read.
        """
        with self._held():
            if not self._place.events:
                self._hub.wait(self._has_news, until_of(timeout_ms))
            return self._taken()

    def events(self, timeout_ms: int | None = None) -> Iterator[Event]:
        """All that happens, one after the other: ENTER, EXIT, JOIN, LEAVE, EVASIVE, SILENT, LEADER,
        WHISPER, SHOUT, each with the peer's name and headers.

        It ends when the node is closed, or when nothing has happened for timeout_ms.
        """
        while True:
            with self._held():
                if not self._place.events:
                    self._hub.wait(self._has_news, until_of(timeout_ms))
                event = self._next()
            if event is None:
                return
            yield event

    # ---- the end ----

    def close(self) -> None:
        """Says goodbye, and ends it."""
        if self._end():
            self._hub.wait_closed(self._place)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
