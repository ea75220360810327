"""A node as threads of this process: readers.py TOPOLOGY prints the settings that each role reads.

The last line is JSON: {role: [setting, ..]}. Ends with 0 once the node is ready and has a leader.
"""

import json
import os
import signal
import sys
from collections import defaultdict
from dataclasses import is_dataclass, replace
from typing import Any

from kelek.actors.runtime import children
from kelek.actors.runtime.actor import actor_class
from kelek.actors.runtime.reload import TopologySource
from kelek.actors.runtime.setup import ActorSetup, Host
from kelek.actors.runtime.supervisor import StartOptions, Supervisor
from kelek.actors.topology import topology

READ: defaultdict[str, set[str]] = defaultdict(set)


class ReadNotes:
    """A section of settings that notes which of its values are read, and by which role."""

    def __init__(self, value: Any, role: str, path: str) -> None:
        self.noted = value, role, path

    def __getattr__(self, name: str) -> Any:
        section, role, path = self.noted
        own = vars(type(section)).get(name)
        if isinstance(own, property):
            assert own.fget is not None
            return own.fget(self)
        value = getattr(section, name)
        below = f"{path}.{name}" if path else name
        if is_dataclass(value):
            return ReadNotes(value, role, below)
        READ[role].add(below)
        return value


class ReadingSupervisor(Supervisor):
    """Stops when its node is ready and has a leader."""

    def on_wake(self, now_ms: int) -> None:
        super().on_wake(now_ms)
        rows = self.report()
        ready = all(row["state"] == "ready" for row in rows)
        if ready and not self.stopping and any(row.get("leader") == "n1" for row in rows):
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    def noting_class(module: str) -> Any:
        def make(setup: ActorSetup, host: Host) -> Any:
            settings: Any = ReadNotes(setup.settings, setup.role, "")
            return actor_class(module)(replace(setup, settings=settings), host)

        return make

    children.__dict__["actor_class"] = noting_class
    loaded = topology.load(sys.argv[1])
    source = TopologySource(loaded, loaded.own_nodes, True)
    options = StartOptions(loaded.path, loaded.run_dir, one_process=True)
    code = ReadingSupervisor([*source.running.nodes.values()], options, source).run()
    print(json.dumps({role: sorted(settings) for role, settings in READ.items()}))
    return code


if __name__ == "__main__":
    sys.exit(main())
