"""A node of pyre (PyPI: zeromq-pyre), in a process of its own: zre_words.py says how it is told.

Nothing of kelek's protocols is used. It greets in version 2. pyre beacons where the machine's
first interface does, and never on the loopback: for that its beacon is told the addresses.
"""

import argparse
import ipaddress
import os
import sys
import threading
import uuid
from typing import NoReturn

import zmq
from pyre import Pyre, PyreEvent, zbeacon
from pyre.pyre_peer import PyrePeer

from kelek.tests.interop.zre.zre_words import NodeCommands


def use_addresses(host: str, broadcast: str) -> None:
    """Makes pyre beacon from this address, instead of the first that is not the loopback's."""

    def prepare(beacon: zbeacon.ZBeacon) -> None:
        beacon.address = ipaddress.IPv4Address(host)
        beacon.network_address = beacon.address
        beacon.broadcast_address = ipaddress.IPv4Address(broadcast)
        beacon.interface_name = "given"

    zbeacon.ZBeacon._prepare_socket = prepare


def said(event: PyreEvent, words: NodeCommands) -> None:
    values: dict[str, object] = {"peer": event.peer_uuid.hex, "name": event.peer_name}
    if event.headers is not None:
        values["headers"] = event.headers
    if event.group is not None:
        values["group"] = event.group
    if event.msg is not None:
        values["content"] = [frame.decode("latin-1") for frame in event.msg]
    words.say(event.type, **values)


def end(failure: threading.ExceptHookArgs) -> NoReturn:
    """Of a thread of pyre's: nothing would answer any more."""
    sys.excepthook(failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def run(options: argparse.Namespace, words: NodeCommands) -> None:
    threading.excepthook = end
    use_addresses(options.host, options.broadcast)
    PyrePeer.PEER_EVASIVE, PyrePeer.PEER_EXPIRED = int(options.evasive_s), int(options.dead_s)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    node = Pyre(options.name or None, ctx=context)
    for key, value in options.headers.items():
        node.set_header(key, value)
    node.set_port(str(options.port).encode())  # It is documented as a number, and sent as it is.
    node.start()
    words.say("READY", uuid=node.uuid().hex)
    poller = zmq.Poller()
    poller.register(words.source, zmq.POLLIN)
    poller.register(node.socket(), zmq.POLLIN)
    while not words.over:
        ready = dict(poller.poll())
        for word in words.taken() if words.source.fileno() in ready else []:
            words.obey(node, word, lambda to: uuid.UUID(hex=to))
        for event in node.recent_events() if node.socket() in ready else []:
            said(event, words)
    node.stop()


if __name__ == "__main__":
    given = NodeCommands()
    run(given.options(sys.argv[1:]), given)
    sys.stdout.flush()
    os._exit(0)  # pyre leaves sockets of its threads to the collector: its context never ends.
