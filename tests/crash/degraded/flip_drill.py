"""One flipped bit in a file of one node, for every kind of file: no wrong answer, nothing lost.

    PYTHONPATH=.build python -m kelek.tests.crash.degraded.flip_drill --rounds 40 --seed 7

As kill_drill.py, but each round kills a node, flips a bit of what one of its files holds, and
starts it again. Without help `kelek status` must soon find nothing wrong. Of a damaged hard state
it must say what the node needs: its vote waits for another leader, and a file that does not name
its owner any more has to be restored. The write-ahead log of local tables has no copy either: the
node names the file, and has everything once that is mended.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event
from typing import Any

from kelek.bench.kelek_cluster import NODES, Apart
from kelek.bench.machine import BenchError
from kelek.bench.tables.tables import BenchTables
from kelek.tests.crash.kill_drill import SETTINGS, Broken, Drill, DrillWriter
from kelek.tests.interop.zerodb import zerodb_plain as plain

KINDS = {
    "segment": "raft/log/*.seg",
    "hard state": "raft/hard_state",
    "snapshot": "raft/snapshots/*.snap",
    "table": "tables/*/replicated/*.sst",
    "manifest": "tables/*/replicated/MANIFEST-*",
    "current": "tables/*/replicated/CURRENT",
    "options": "tables/*/replicated/OPTIONS-*",
    "identity": "tables/*/replicated/IDENTITY",
    "local log": "tables/*/local/*.log",
}
# What can't be had from others: a forgotten vote (disk-format.md), local tables.
HARD_STATE, LOCAL_LOG = "hard state", "local log"
KELEK = [sys.executable, "-P", "-m", "kelek.console.kelek_cli"]
BACK_S = 90.0
POLL_S = 0.1


class FlippedCluster(BenchTables, Apart):
    """Three nodes with a supervisor each."""

    def kill(self, node: str) -> None:
        """Kills a node with its supervisor."""
        self._stop(node)

    def says(self, node: str) -> str:
        """The last lines of a node's logs."""
        paths = [self.directory / "supervisor.log", *self.directory.glob(f"data/{node}/logs/*.log")]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in paths)


def status_of(topology: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of `kelek status`, and its problems."""
    command = [*KELEK, "status", "-o", "json", "--topology", str(topology)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["problems"]


def flip(path: Path, at: int) -> None:
    """Flips bit `at` of a file."""
    data = bytearray(path.read_bytes())
    data[at // 8] ^= 1 << at % 8
    with path.open("r+b") as file:
        file.seek(at // 8)
        file.write(data[at // 8 : at // 8 + 1])


class FlipDrill(Drill):
    """A drill whose kills leave a flipped bit behind. Local writes are durable."""

    cluster: FlippedCluster
    local_syncs = (plain.FULLSYNC,)

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self.kinds = itertools.cycle(KINDS)
        self.flipped: set[str] = set()
        self.helped: list[str] = []  # What was flipped where the node needed help.

    def new_cluster(self, directory: Path) -> BenchTables:
        return FlippedCluster(directory, SETTINGS)

    def load(self, rounds: int) -> None:
        writers = self.writers()
        for _ in range(rounds):
            self.write(writers, self.dice.randint(150, 250))
            self.flip_one(writers, next(self.kinds))
            self.check_everybody()
            self.left.clear()
        self.write(writers, 60)
        for writer in writers:
            writer.leave()
            writer.client.close()

    def flip_one(self, writers: list[DrillWriter], kind: str) -> None:
        node = self.dice.choice(NODES)
        self.cluster.kill(node)
        files = sorted((self.cluster.directory / "data" / node).glob(KINDS[kind]))
        held = [path for path in files if path.read_bytes().strip(b"\0")]
        if not held:
            self.seen[f"no {kind}"] += 1
            self.cluster.start_node(node)
            return
        path = self.dice.choice(held)
        at = self.dice.randrange(8 * len(path.read_bytes().rstrip(b"\0")))
        flip(path, at)
        title = f"{kind}: {node} {path.name} byte {at // 8} bit {at % 8}"
        self.flipped.add(kind)
        self.cluster.start_node(node)
        self.write(writers, 60)
        started = time.monotonic()
        if problem := self.problem_of(node, path.name if kind == LOCAL_LOG else ""):
            if kind not in (HARD_STATE, LOCAL_LOG):
                raise Broken(f"{title}: {problem}\n{self.cluster.says(node)}")
            self.helped.append(f"{title}: {problem}")
            self.help(node, path, at, problem)
            if problem := self.problem_of(node):
                raise Broken(f"{title}: {problem} after help\n{self.cluster.says(node)}")
        self.cluster.leader()  # All three have applied what is committed.
        print(f"{title}: back in {time.monotonic() - started:.1f} s")

    def help(self, node: str, path: Path, at: int, problem: str) -> None:
        """Does what status says."""
        if problem.startswith("vote-withheld"):
            leader = self.cluster.leader()
            third = next(name for name in NODES if name not in (node, leader))
            topology = ["--topology", str(self.cluster.topology)]
            subprocess.run([*KELEK, "log", "transfer", *topology, third], check=True)
        elif path.name in self.cluster.says(node):
            self.cluster.kill(node)
            flip(path, at)
            self.cluster.start_node(node)
        else:
            raise Broken(f"{node} does not say which file it needs: {problem}")

    def problem_of(self, node: str, named: str = "") -> str:
        """What status still says of a node in the end, "" if all is well; or that the node has
        named this file."""
        url = self.cluster.table_urls[NODES.index(node)]
        until = time.monotonic() + BACK_S
        problem = "it takes no writes"
        while time.monotonic() < until:
            if self.cluster.takes_writes(url):
                problems = status_of(self.cluster.topology)[1]
                problem = "; ".join(
                    f"{it['kind']} {it['subject']}: {it['text']}" for it in problems
                )
                if not problem or problem.startswith("vote-withheld"):
                    return problem
            if named and f"{named}: offset" in self.cluster.says(node):
                return f"{named} is damaged"
            Event().wait(POLL_S)
        return problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4 * len(KINDS), help="how many flips")
    parser.add_argument("--seed", type=int, default=1, help="of all dice")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kelek-drill-") as directory:
        drill = FlipDrill(Path(directory) / "d", arguments.seed)
        try:
            drill.run(arguments.rounds)
        except (Broken, BenchError) as broken:
            print(f"seed {arguments.seed}: {broken}\n{drill.cluster.last_words()}")
            return 1
    print(f"{drill.acknowledged} writes acknowledged; none was lost, none was done twice")
    print("flipped:", *sorted(drill.flipped), "needed help:", *drill.helped, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
