"""Reads that wait until the leader confirms how far their worker must have applied the log.

All reads of a wake share one round, that is one question to the leader (ReadIndex).
"""

from collections import deque

from ....native.log.reads import WAIT_CONFIRMED
from ....native.net.messages import Frames
from ...zmqraft.client.client import LogClientMachine, PendingRead
from ..wire.worker_pipe import CHECKPOINT, PIPE_HEADER, Message
from .worker_channel import WorkerChannel


class ReadRound:
    """The reads and checkpoints of one question."""

    __slots__ = ("checkpoints", "deadline_ms", "frames", "read")

    def __init__(self) -> None:
        self.frames: dict[int, Frames] = {}  # Reads by worker.
        self.checkpoints: list[tuple[int, int, Message]] = []  # (worker, ticket, frames)
        self.read = PendingRead(WAIT_CONFIRMED)
        self.deadline_ms = 0


class ReadRounds:
    """The rounds of one server, in order."""

    def __init__(self, client: LogClientMachine, channels: list[WorkerChannel]) -> None:
        self._client = client
        self._channels = channels
        self._new = ReadRound()
        self.rounds: deque[ReadRound] = deque()

    @property
    def new_frames(self) -> dict[int, Frames]:
        """Where reads of this wake are added, by worker."""
        return self._new.frames

    def add_checkpoint(self, worker: int, ticket: int, frames: Message) -> None:
        """Adds a checkpoint that job_server asks for under this ticket."""
        self._new.checkpoints.append((worker, ticket, frames))

    def start(self, deadline_ms: int) -> bool:
        """Asks the leader for the reads of this wake. False: there are none."""
        new = self._new
        if not (new.frames or new.checkpoints):
            return False
        self._client.reads.add(new.read)
        new.deadline_ms = deadline_ms
        self.rounds.append(new)
        self._new = ReadRound()
        return True

    def finish(self, now_ms: int) -> list[ReadRound]:
        """Gives confirmed reads to their workers. Returns refused and expired rounds.

        The leader's answer to a later round confirms earlier rounds, too.
        """
        rounds = self.rounds
        done = [position for position, round_ in enumerate(rounds) if round_.read.index]
        for _ in range(done[-1] + 1 if done else 0):
            round_ = rounds.popleft()
            index = round_.read.index or next(it.read.index for it in rounds if it.read.index)
            for worker, frames in round_.frames.items():
                self._channels[worker].add(frames, index, now_ms)
            for worker, ticket, rest in round_.checkpoints:
                header = PIPE_HEADER.pack(CHECKPOINT, 0, 0, 0, index, ticket)
                self._channels[worker].add_job_request([header, *rest], now_ms)
        failed: list[ReadRound] = []
        while rounds and (rounds[0].read.refusal or rounds[0].deadline_ms <= now_ms):
            self._client.reads.drop(rounds[0].read)
            failed.append(rounds.popleft())
        return failed

    @property
    def deadline_ms(self) -> int | None:
        """When the first round expires."""
        return self.rounds[0].deadline_ms if self.rounds else None

    @property
    def count(self) -> int:
        """Number of reads that wait for the leader."""
        return sum(each.count for round_ in self.rounds for each in round_.frames.values())

    @property
    def size(self) -> int:
        """Size of these reads in bytes."""
        return sum(each.size for round_ in self.rounds for each in round_.frames.values())
