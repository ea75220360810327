"""Three real nodes as threads of this process; one thread ends: threads.py TOPOLOGY.

Prints the supervisor's lines; ends with 0 when that node has restarted and all agree on a leader.
"""

import os
import signal
import sys

from kelek.actors.runtime import plan
from kelek.actors.runtime.supervisor import StartOptions, Supervisor
from kelek.actors.topology import topology


class RestartSupervisor(Supervisor):
    """Ends one thread when all are ready, and itself when the node is back."""

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
    found = topology.load(sys.argv[1])
    plans = [plan.node_plan(found, name, one_process=True) for name in found.own_nodes]
    return RestartSupervisor(plans, StartOptions(found.path, found.run_dir, one_process=True)).run()


if __name__ == "__main__":
    sys.exit(main())
