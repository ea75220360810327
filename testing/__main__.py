"""python -m kelek.testing TOPOLOGY: runs all its nodes in this process until stdin ends.

The process that started it holds the other end of stdin, so it ends when that is killed.
"""

import os
import signal
import sys
import threading

from ..actors.errors import OperatorError
from ..actors.runtime import plan
from ..actors.runtime.supervisor import StartOptions, Supervisor
from ..actors.topology import topology


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Runs the nodes; returns the exit code."""
    try:
        found = topology.load(sys.argv[1])
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        plans = plan.node_plans(found, found.own_nodes, one_process=True)
        setup = StartOptions(found.path, found.run_dir, one_process=True, bootstrap=True)
        return Supervisor(plans, setup).run()
    except OperatorError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
