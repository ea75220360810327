"""A kelek.Node in a process of its own: zre_words.py says how it is told."""

import argparse
import sys
import threading

import kelek
from kelek.tests.interop.zre.zre_words import NodeCommands


def say(event: kelek.Event, words: NodeCommands) -> None:
    """What other nodes say in the same words, and the names."""
    values: dict[str, object] = {}
    if event.peer is not None:
        values = {"peer": event.peer.uuid.hex(), "name": event.peer.name}
    if event.kind is kelek.EventKind.ENTER and event.peer is not None:
        values["headers"] = event.peer.headers
        values["version"] = int(event.peer.version)
    if event.group:
        values["group"] = event.group
    if event.content:
        values["content"] = [frame.decode("latin-1") for frame in event.content]
    words.say(event.kind.value, **values)


def obey(node: kelek.Node, word: dict[str, str], words: NodeCommands) -> None:
    if word["do"] == "count":
        words.say("COUNTERS", **node.counters)
    else:
        words.obey(node, word)


def listen(words: NodeCommands, node: kelek.Node) -> None:
    for event in node.events():
        say(event, words)


def run(options: argparse.Namespace, words: NodeCommands) -> None:
    tuning = kelek.NodeTuning(
        port=options.port,
        interface=options.host,
        broadcast_address=options.broadcast,
        greeting=options.version,
        evasive_ms=int(options.evasive_s * 1000),
        silent_ms=int(options.evasive_s * 2000),
        expired_ms=int(options.dead_s * 1000),
    )
    keys = {"key": options.key, "allow": options.allow}
    with kelek.Node(options.name, options.headers, tuning=tuning, **keys) as node:
        words.say("READY", uuid=node.uuid.hex())
        listener = threading.Thread(target=listen, args=(words, node))
        listener.start()
        for word in words.all():
            obey(node, word, words)
    listener.join()


if __name__ == "__main__":
    given = NodeCommands()
    run(given.options(sys.argv[1:]), given)
