"""What commands that are clients need of a topology, and how they get it without reading YAML.

A supervisor leaves it in its run directories, beside the text of the file. A command takes it if
that text is still the file's: to load and check YAML would be a seventh of its time.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...version import __version__
from ..runtime import run_dir

if TYPE_CHECKING:
    from .topology import Topology

FILE = "clients.json"


class ClientNode(NamedTuple):
    """A node's endpoints for clients; "": it has none. The fields are as those of NodeTopology."""

    url: str
    tables_url: str
    clients_url: str
    workers_url: str
    dialect: str


class ClientBroker(NamedTuple):
    """The fields of `broker:` that its clients and workers use."""

    heartbeat_interval_ms: int
    client_header: str
    worker_header: str
    deadline_header: str
    named_header: str


class ClientTopology(NamedTuple):
    """A topology as clients see it.

    path               as the operator wrote it
    nodes              all nodes by name
    local_tables       of `zerodb:`
    timeout_ms         of `clients:`, and the next one
    key_file           the secret key of clients that give none; "": there is none
    server_keys        the public key of the server at each url, "" without CURVE; None: the file
                       has no `security:`
    """

    path: str
    cluster: str
    nodes: Mapping[str, ClientNode]
    local_tables: Sequence[int]
    timeout_ms: int
    election_grace_ms: int
    broker: ClientBroker
    key_file: str = ""
    server_keys: Mapping[str, str] | None = None


def load(path: str) -> ClientTopology:
    """That of a file. Raises OperatorError."""
    if found := _left(path):
        return found
    from . import topology as topologies  # It loads YAML.

    return of(topologies.load(path))


def of(topology: "Topology") -> ClientTopology:
    """That of a topology."""
    security = topology.security
    return ClientTopology(
        topology.path,
        topology.cluster,
        {name: _fields(ClientNode, node) for name, node in topology.nodes.items()},
        topology.zerodb.local_tables,
        topology.clients.timeout_ms,
        topology.clients.election_grace_ms,
        _fields(ClientBroker, topology.broker),
        topology.resolve(security.key_file) if security and security.key_file else "",
        topology.server_keys if security else None,
    )


def leave(topology: "Topology", folder: run_dir.RunDir) -> None:
    """Writes it for commands. With `security:` it depends on more files, and none is left."""
    if topology.security is None:
        found = [__version__, topology.text, *of(topology)]
        folder.write(FILE, json.dumps(found))


def _fields(kind: Any, settings: object) -> Any:
    return kind(*(getattr(settings, field) for field in kind._fields))


def _left(path: str) -> ClientTopology | None:
    """What a supervisor of this user has left for the file as it is now; None: nothing."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        text = Path(path).read_text("utf-8-sig")
        for file in run_dir.of_topology(path).glob(f"*/{FILE}"):
            if file.stat().st_uid != os.getuid():
                continue
            version, of_text, *fields = json.loads(file.read_text("utf-8"))
            if (version, of_text) == (__version__, text):
                found = ClientTopology(*fields)
                return found._replace(
                    path=path,
                    nodes={name: ClientNode(*each) for name, each in found.nodes.items()},
                    broker=ClientBroker(*found.broker),
                )
    return None
