"""Free ports of processes that run at once."""

import subprocess
import sys

from kelek.bench.ports import BLOCK, free_ports

COUNT = 3
ASK = f"from kelek.bench.ports import free_ports\nprint(*free_ports({COUNT}), flush=True)\ninput()"


def test_processes_have_different_ports() -> None:
    mine = {port for _ in range(4) for port in free_ports(BLOCK // 4)}
    others = [
        subprocess.Popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(COUNT)
    ]
    found = set(mine)
    for other in others:
        assert other.stdout is not None
        found |= set(map(int, other.stdout.readline().split()))
    for other in others:
        other.communicate(b"\n")
    assert len(found) == len(mine) + COUNT * COUNT
