"""Streams while their producers, consumers and the leader's node are killed.

KELEK_STREAM_FAULTS makes the drill longer; it is the number of faults.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import kelek
from kelek.clients.stream.layout import STREAM_TABLE, StreamKeys, decode_partition, partition_key
from kelek.tests.table_cluster import TableCluster
from kelek.tests.waiting import wait_until

FAULTS = int(os.environ.get("KELEK_STREAM_FAULTS", "4"))
SEED = int(os.environ.get("KELEK_SEED", "1"))
PRODUCERS = 3
CONSUMERS = 3
TTL_S = 4.0
DEADLINE_S = 300.0
STREAM, GROUP = "drill", "all"


class Program:
    """A process of the drill, and the lines that it has printed."""

    def __init__(self, cluster: TableCluster, *words: object) -> None:
        urls = ",".join(cluster.urls.values())
        command = [sys.executable, "-m", "kelek.tests.clients.stream.programs", str(words[0]), urls]
        self.process = subprocess.Popen(
            [*command, *map(str, words[1:])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[list[str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self.lines.append(line.split())

    def end(self) -> int:
        """Ends a producer; returns how many records it and those before it have appended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0
        self._reader.join()
        return int(self.lines[-1][1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def cluster() -> Iterator[TableCluster]:
    cluster = TableCluster()
    try:
        yield cluster
    finally:
        cluster.stop()


class StreamDrill:
    """The programs that run, and those that were killed."""

    def __init__(self, cluster: TableCluster, stack: ExitStack) -> None:
        self._cluster, self._stack = cluster, stack
        self.producers = [self._producer(number) for number in range(PRODUCERS)]
        self.consumers = [self._consumer() for _ in range(CONSUMERS)]
        self.all_consumers = list(self.consumers)

    def _begin(self, *words: object) -> Program:
        program = Program(self._cluster, *words)
        self._stack.callback(program.kill)
        return program

    def _producer(self, number: int) -> Program:
        return self._begin("produce", STREAM, f"p{number}")

    def _consumer(self) -> Program:
        return self._begin("consume", STREAM, GROUP, TTL_S)

    def kill_leader(self) -> None:
        name = self._cluster.leader()
        self._cluster.kill(name)
        threading.Event().wait(TTL_S / 4)
        self._cluster.start(name)

    def kill_producer(self, number: int) -> None:
        self.producers[number].kill()
        self.producers[number] = self._producer(number)

    def kill_consumer(self, number: int) -> None:
        self.consumers[number].kill()
        self.consumers[number] = self._consumer()
        self.all_consumers.append(self.consumers[number])

    def stop_consumer(self, number: int) -> None:
        """It is paused until others have its partitions."""
        self.consumers[number].process.send_signal(signal.SIGSTOP)
        threading.Event().wait(1.5 * TTL_S)
        self.consumers[number].process.send_signal(signal.SIGCONT)

    @property
    def got(self) -> list[list[str]]:
        return [line[1:] for each in self.all_consumers for line in list(each.lines)]


def committed_offsets(cluster: TableCluster) -> dict[int, list[int]]:
    """All offsets that the group has committed, by partition, in the order of the log."""
    prefix = StreamKeys(STREAM).group(GROUP)
    found: dict[int, list[int]] = defaultdict(list)
    start = partition_key(prefix, 0)
    with cluster.table(STREAM_TABLE) as table:
        end = table.swap(prefix + b"end", b"")
        assert end is None
        for change in table.watch(prefix=prefix, after=1):
            if change.key == prefix + b"end":
                return found
            if change.value is not None and change.key[:-4] == start[:-4]:
                number = int.from_bytes(change.key[-4:], "big")
                found[number].append(decode_partition(change.value).offset)
    raise AssertionError


def test_nothing_is_lost_or_doubled_while_all_are_killed(cluster: TableCluster) -> None:
    randomly = random.Random(SEED)
    with ExitStack() as stack:
        drill = StreamDrill(cluster, stack)
        wait_until(lambda: len(drill.got) > 0, deadline_s=DEADLINE_S)
        for fault in range(FAULTS):
            number = randomly.randrange(PRODUCERS)
            kinds = (
                drill.kill_leader,
                lambda: drill.kill_producer(number),  # noqa: B023
                lambda: drill.kill_consumer(number),  # noqa: B023
                lambda: drill.stop_consumer(number),  # noqa: B023
            )
            kinds[fault % len(kinds)]()
            seen = len(drill.got)
            wait_until(lambda: len(drill.got) > seen, deadline_s=DEADLINE_S)  # noqa: B023
        counts = [each.end() for each in drill.producers]
        total = sum(counts)
        wait_until(lambda: len({line[0] for line in drill.got}) == total, deadline_s=DEADLINE_S)
        with kelek.Stream(list(cluster.urls.values()), STREAM, codec="text") as stream:
            records = list(stream.read())
            wait_until(lambda: stream.groups()[0].lag == 0, deadline_s=DEADLINE_S)

    assert [record.offset for record in records] == list(range(total))
    for number, count in enumerate(counts):
        mine = [it.value for it in records if it.value.startswith(f"p{number}/")]
        assert mine == [f"p{number}/{it}" for it in range(1, count + 1)]
    by_offset = {str(it.offset): [it.key, it.value] for it in records}
    assert all(by_offset[line[0]] == line[1:] for line in drill.got)
    for partition, offsets in committed_offsets(cluster).items():
        assert offsets == sorted(offsets), f"partition {partition} goes back"
