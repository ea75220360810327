"""What the supervisor and the actors of a node agree on: the setup file, the host, the exit codes,
and the names of the processes that apply the log."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import zmq

from ...net.sockets import Socket
from ..errors import OperatorError
from ..topology.json_values import WAY_OUT, decode, encode
from ..topology.settings import NodeSettings

ACTORS = __package__.rpartition(".")[0]
EXIT_STOPPED = 0
EXIT_BROKEN = 1  # It failed while it ran: the supervisor restarts it.
EXIT_SETUP = 2  # It can't start like this: the operator has to change something.
EXIT_DAMAGED = 3  # It can't start with what is left of its data.
STATE_MACHINE = "state_machine"
TABLE_WORKER = "table_worker"


@dataclass(frozen=True, slots=True)
class ActorSetup:
    """Everything that an actor gets at its start: one JSON file of these keys, mode 0600."""

    node: str
    role: str
    name: str  # Unique in the node: the role, or role.2 and so on.
    cluster: str
    run_dir: str  # Where its pipes are (pipes.endpoint).
    data_dir: str  # The node's own directory below the topology's `data`.
    control: str  # Endpoint of the supervisor's ROUTER.
    epoch: int  # New at each start of the restart unit: nanoseconds, growing.
    bootstrap: bool  # An empty data directory is a first start: the operator said so.
    settings: NodeSettings  # What the topology says, with all defaults.
    places: Mapping[str, str]  # Setting -> FILE:LINE:COL: key.path, for the operator's errors.
    secret: str = ""  # Hexadecimal; brokers and servers of this supervisor share it.
    node_dir: str = ""  # The node's data directory, which has the audit file; "": data_dir.
    new_farms: tuple[str, ...] = ()  # Farms that start now: all their servers are empty.

    @classmethod
    def load(cls, path: str) -> Self:
        """Raises OperatorError for a file that this version did not write."""
        with open(path, encoding="utf-8") as file:
            return cls.of_json(file.read(), path)

    @classmethod
    def of_json(cls, text: str | bytes, place: str) -> Self:
        """Raises OperatorError for a text that this version did not write."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise OperatorError(place, f"not a setup file: {error}", WAY_OUT) from None
        return decode(cls, found, place)

    def to_json(self) -> str:
        return json.dumps(encode(self))


class Host(NamedTuple):
    """What carries an actor: a process of its own, or a thread of the supervisor's."""

    stop_fd: int = 0  # End of file: the supervisor is gone, stop at once. A byte means SIGTERM.
    log_fd: int = 2
    context: zmq.Context[Socket] | None = None  # Given to a thread, which gets no signals.


def worker_names(settings: NodeSettings) -> tuple[str, ...]:
    """The names of a node's table workers by their number; none without a `zerodb:` section."""
    if settings.node.zerodb is None:
        return ()
    return tuple(
        TABLE_WORKER if number == 0 else f"{TABLE_WORKER}.{number + 1}"
        for number in range(settings.zerodb.workers)
    )


def participants(settings: NodeSettings) -> tuple[str, ...]:
    """The processes whose state a snapshot holds. None applies entries before all installed it."""
    return (STATE_MACHINE, *worker_names(settings))
