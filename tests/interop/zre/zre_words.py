"""What the nodes of the interop tests have in common: what they are told, and how they answer.

A node is a process. Orders come on stdin, one JSON object a line: {"do": "join", "group": ...},
leave, {"do": "whisper", "to": UUID in hex, "content": ...}, {"do": "shout", "group", "content"};
the end of stdin ends it politely. What happens it says on stdout in the same manner: {"event":
"READY", "uuid": ...} at first, then ENTER, EXIT, JOIN, LEAVE, WHISPER, SHOUT with `peer`.
"""

import argparse
import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import Any

READ_BYTES = 1 << 16


class NodeCommands:
    """The node's side of it."""

    def __init__(self) -> None:
        self.source = sys.stdin
        self.over = False
        self._rest = b""
        os.set_blocking(self.source.fileno(), False)

    @staticmethod
    def options(arguments: list[str]) -> argparse.Namespace:
        """What a node is begun with."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--name", default="")
        parser.add_argument("--host", default="127.0.0.1", help="its own address")
        parser.add_argument("--broadcast", default="127.255.255.255")
        parser.add_argument("--port", type=int, required=True, help="of UDP")
        parser.add_argument("--headers", type=json.loads, default={})
        parser.add_argument("--evasive-s", type=float, default=5.0)
        parser.add_argument("--dead-s", type=float, default=30.0)
        parser.add_argument("--version", type=int, default=2, help="that it greets in; ours only")
        parser.add_argument("--key", help="path of its secret CURVE key; ours only")
        parser.add_argument("--allow", help="directory of allowed keys, or *; ours only")
        return parser.parse_args(arguments)

    def say(self, event: str, **values: object) -> None:
        # One write: print() makes two, and what another thread says would come in between.
        sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
        sys.stdout.flush()

    def taken(self) -> list[dict[str, Any]]:
        """The orders that have come."""
        try:
            data = os.read(self.source.fileno(), READ_BYTES)
        except BlockingIOError:
            return []
        self.over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    @staticmethod
    def obey(node: Any, word: dict[str, str], peer_of: Callable[[str], object] = str) -> None:
        """Does what an order says with a node of kelek or pyre."""
        content = word.get("content", "").encode("latin-1")
        match word["do"]:
            case "join" | "leave" as change:
                getattr(node, change)(word["group"])
            case "whisper":
                node.whisper(peer_of(word["to"]), content)
            case "shout":
                node.shout(word["group"], content)

    def all(self) -> Iterator[dict[str, Any]]:
        """Every order as it comes, until the end of stdin."""
        while not self.over:
            select.select([self.source], [], [])
            yield from self.taken()
