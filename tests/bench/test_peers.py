"""What the benchmarks start: it ends with them, whatever ends them."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 60.0
SCRIPT = """
import sys, time
from pathlib import Path
from kelek.bench.peers import spawn
process = spawn([sys.executable, "-c", "import time; time.sleep(600)"], Path(sys.argv[1]))
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_benchmark_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    """Of a cluster the supervisor alone is its child: the actors end with that."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log")]
    benchmark = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert benchmark.stdout is not None
    child = os.pidfd_open(int(benchmark.stdout.readline()))
    try:
        benchmark.send_signal(signal.SIGKILL)
        benchmark.communicate()
        ready, _, _ = select.select([child], [], [], DEADLINE_S)
        assert ready
    finally:
        if not select.select([child], [], [], 0)[0]:
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)
