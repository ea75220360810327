"""Three nodes as threads of this process, of which one thread is ended: threads.py TOPOLOGY.

Prints the supervisor's lines. Ends with 0 when the node has restarted and all nodes agree on a
leader.
"""

import os
import signal
import sys

from kelek.actors.runtime import plan
from kelek.actors.runtime.supervisor import StartOptions, Supervisor
from kelek.actors.topology import topology


class RestartSupervisor(Supervisor):
    """Ends one thread when all nodes are ready, and stops when its node has restarted."""

    ended = False

    def on_wake(self, now_ms: int) -> None:
        super().on_wake(now_ms)
        peers = [row for row in self.report() if row["role"] == "raft_peer"]
        agreed = len({row.get("leader") for row in peers} - {None}) == 1
        if self.stopping or not agreed or not all(row.get("leader") for row in peers):
            return
        child = self.units[1].members[0].child
        if not self.ended and child is not None:
            self.ended = True
            child.kill()
        elif self.ended and [unit.restarts for unit in self.units] == [0, 1, 0]:
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    loaded = topology.load(sys.argv[1])
    plans = [plan.node_plan(loaded, name, one_process=True) for name in loaded.own_nodes]
    return RestartSupervisor(
        plans, StartOptions(loaded.path, loaded.run_dir, one_process=True)
    ).run()


if __name__ == "__main__":
    sys.exit(main())
