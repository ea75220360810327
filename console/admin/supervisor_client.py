"""How the command `supervisor` reaches those that run: which topology is meant, and who is asked.

Nothing heavy is imported before it is needed.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

EXIT_WRONG = 1
EXIT_SETUP = 2
EXIT_NOTHING = 3
ASK_S = 5.0  # On a busy machine a supervisor may be held up for a second or two.
BEAT_MS = 200
ELECTION_S = 2.0  # So long a log may be without a leader before `status` says so.
LOOK_S = 0.1
SILENT_MS = 2000  # A member of another make that its leader has not heard for so long.


def fail(line: str, code: int = EXIT_SETUP) -> NoReturn:
    click.echo(f"supervisor: {line}", err=True)
    sys.exit(code)


def path_of(topology: str | None) -> str:
    """The topology that is meant; a given one must be there."""
    from ...actors.errors import OperatorError
    from ...actors.runtime import run_dir

    path = topology or run_dir.default_path()
    if not Path(path).exists():
        raise OperatorError(path, "there is no such file", "give the topology's path")
    if Path(path).is_dir():
        raise OperatorError(path, "is a directory", "give the path of the file in it")
    return path


def load(topology: str | None) -> Any:
    """The topology, checked. A line on stderr names each key that is given by its old name."""
    from ...actors.topology import topology as topologies

    found = topologies.load(path_of(topology))
    for line in found.renamed:
        click.echo(f"supervisor: {line}", err=True)
    return found


def own_nodes(found: Any, nodes: tuple[str, ...]) -> list[str]:
    """The nodes asked for, in the topology's order; all of ours when none is named."""
    from ...actors.errors import OperatorError
    from ...actors.topology.schema import did_you_mean

    own: list[str] = found.own_nodes
    for name in nodes:
        if name not in own:
            raise OperatorError("--node", f"unknown node '{name}'", did_you_mean(name, own))
    return [name for name in own if not nodes or name in nodes]


def running_nodes(path: str, nodes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """What runs of a topology; the file itself is only read for a node that does not run."""
    from ...actors.runtime import run_dir

    running = run_dir.running(run_dir.of_topology(path))
    if not {*nodes} <= running.keys():
        own_nodes(load(path), nodes)
    return {name: found for name, found in running.items() if not nodes or name in nodes}


def holds(path: Path, found: dict[str, Any]) -> bool:
    """Whether a node still runs: its lock is held, or its supervisor has not quite ended."""
    from ...actors.runtime import run_dir

    return run_dir.is_locked(path) or run_dir.is_alive(found.get("pid", 0))


def ask(
    base: Path,
    node: str,
    question: bytes,
    found: dict[str, Any],
    *rest: Any,
    wait_s: float = ASK_S,
    beat: Callable[[float], object] = lambda elapsed_s: None,
) -> Any:
    """One question to the supervisor that runs a node, over its control socket.

    rest   what belongs to it, each as msgpack
    beat   called now and then while it is waited for
    """
    import msgpack
    import zmq

    from ...actors.runtime import pipes

    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(pipes.endpoint(str(base), node, "supervisor", "control"))
        socket.send_multipart([question, *map(msgpack.packb, rest)])
        begun = time.monotonic()
        while not socket.poll(BEAT_MS):
            beat(time.monotonic() - begun)
            if time.monotonic() - begun > wait_s:
                pid = found.get("pid")
                fail(
                    f"node {node}: its supervisor ({pid}) does not answer; it may hang or just "
                    f"end: try again, or kill -9 {pid}",
                    EXIT_WRONG,
                )
        return msgpack.unpackb(socket.recv())


def rows_of(path: str, nodes: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What all supervisors of a topology on this machine tell of these nodes (none: of all)."""
    from ...actors.runtime import run_dir

    base = run_dir.of_topology(path)
    rows: list[dict[str, Any]] = []
    asked: set[int] = set()
    for name, found in running_nodes(path, nodes).items():
        pid = found.get("pid", 0)
        if pid not in asked:
            asked.add(pid)
            rows += ask(base, name, b"ask-status", found)
    if nodes:
        rows = [row for row in rows if {row["node"], *row.get("nodes", ())} & {*nodes}]
    # Each supervisor knows how far its own nodes have committed; the newest of all counts.
    # (A farm's log is another one.)
    own = [row for row in rows if "farms" not in row]
    commit_index = max((row.get("commit_index") or 0 for row in own), default=0)
    for row in rows:
        if row.get("applied_index") is not None and "lag" in row:
            row["lag"] = max(0, commit_index - row["applied_index"])
    return rows


def settled_rows_of(path: str, nodes: tuple[str, ...]) -> list[dict[str, Any]]:
    """rows_of(), asked again while an election may be all that is missing."""
    until = time.monotonic() + ELECTION_S
    while True:
        rows = rows_of(path, nodes)
        is_ready = all(row["state"] == "ready" for row in rows)
        if not is_ready or not leaderless_of(rows) or time.monotonic() > until:
            return rows
        time.sleep(LOOK_S)


def leaderless_of(rows: list[dict[str, Any]]) -> list[str]:
    """The logs (the cluster's, and each farm's) of which no process here knows a leader, with the
    roles of those processes."""
    peers: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for row in rows:
        for farm, log in row.get("farms", {"": row}).items():
            if "raft_role" in log:
                peers.setdefault(farm, []).append((row["node"], log))
    return [
        f"of {f'the farm {farm}' if farm else 'the log'} "
        f"({', '.join(f'{node} {role_of(log)}' for node, log in logs)}): nothing is committed "
        "until a majority of its members runs and may vote"
        for farm, logs in peers.items()
        if not any(log.get("leader") for _, log in logs)
    ]


def foreign_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each member of another make, with what the leader knows of it if that runs here;
    else its state is None."""
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.get("raft_role") == "leader"):
        for name, known in row.get("foreign", {}).items():
            role = "leader" if row["leader"] == name else "follower"
            found[name] = {"node": name, "role": "foreign", "name": "foreign", "pid": None,
                           "state": None, "restarts": None, "uptime": None, "raft_role": role,
                           "leader": row["leader"]}  # fmt: skip
            if known:
                found[name]["state"] = "silent" if known["silent_ms"] > SILENT_MS else "ready"
                found[name]["lag"] = max(0, row["commit_index"] - known["match_index"])
    return [found[name] for name in sorted(found)]


def role_of(row: dict[str, Any]) -> str:
    """A peer that does not vote is no mere follower."""
    vote = row.get("vote", "voter")
    return str(row["raft_role"] if vote == "voter" else vote)


def has_full_disk(row: dict[str, Any]) -> bool:
    """Whether the process can't write the log for lack of room."""
    return row.get("writable") is False or row.get("full") is True


def drift_of(rows: list[dict[str, Any]]) -> list[str]:
    """Where the topology differs from the members that the log names, and which nodes say so."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for sentence in row.get("drift", ()):
            said.setdefault(sentence, []).append(row["node"])
    return [f"{sentence} ({', '.join(nodes)})" for sentence, nodes in sorted(said.items())]
