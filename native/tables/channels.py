"""Reads that C has forwarded to the table workers of a node (csrc/server/channels.c)."""

from typing import Any, NamedTuple

from ..._native import ffi, lib
from ..errors import uncleared
from ..latency import Latency
from ..net.messages import Arena, Frames

BATCHES: int = lib.KLK_CHANNEL_BATCHES
READS_MAX: int = lib.KLK_CHANNEL_READS_MAX  # Of a batch.
_BYTES, _FRAMES = 1 << 18, 1 << 13  # Of a batch.


class TakenReads(NamedTuple):
    """A batch of reads that a worker was sent."""

    requests: Frames
    ticket: int
    log_index: int  # That the worker must have applied.
    arrived_us: int
    answered: set[int]  # Positions.
    sent: int  # Messages that have left.


class ReadChannel:
    """The reads of one worker; it also numbers the tickets of the worker's other requests."""

    def __init__(self, channel: Any, first_ticket: int) -> None:
        self._channel = channel
        self.latency = Latency()  # From the arrival of requests to their answers.
        channel.latency, channel.ticket = self.latency.struct, first_ticket - 1
        self._frames = [_new_frames() for _ in range(BATCHES)]
        for batch, frames in zip(channel.batches, self._frames, strict=True):
            batch.requests = frames._struct

    def next_ticket(self) -> int:
        self._channel.ticket += 1
        return int(self._channel.ticket)

    def open(self, epoch: int | None, has_others: bool = False) -> None:
        """From now on C may forward reads to the worker of this epoch; None: it must not.

        has_others   the worker has other requests, too
        """
        self._channel.has_others = has_others
        self._channel.is_open = epoch is not None
        if epoch is not None:
            self._channel.epoch = epoch

    def _batches(self) -> list[Any]:
        channel = self._channel
        return [channel.batches[(channel.first + at) % BATCHES] for at in range(channel.count)]

    @property
    def count(self) -> int:
        """Reads of batches that are not answered as a whole."""
        return sum(batch.requests.messages for batch in self._batches())

    @property
    def size(self) -> int:
        """Their size in bytes."""
        return sum(batch.requests.offsets[batch.requests.frames] for batch in self._batches())

    def stop(self, sent: int) -> None:
        """The worker's pipe took so many messages of the last batch only: take it back."""
        lib.klk_channel_stop(self._channel, sent)

    def answered(self, ticket: int, place: int, now_us: int) -> bool:
        """A request has its answer. False: it is none of these."""
        return bool(lib.klk_channel_answered(self._channel, ticket, place, now_us))

    def handled(self, ticket: int, now_us: int) -> None:
        """All requests up to this ticket are done."""
        lib.klk_channel_handled(self._channel, ticket, now_us)

    @property
    def taken(self) -> int:
        """Reads, ever."""
        return int(self._channel.taken)

    def pop_bytes(self) -> int:
        """The bytes of answers that C has passed since the last call."""
        size, self._channel.bytes = int(self._channel.bytes), 0
        return size

    def take_back(self) -> list[TakenReads]:
        """All batches in order. None is left."""
        channel, found = self._channel, []
        for at in range(channel.count):
            place = (channel.first + at) % BATCHES
            batch, frames = channel.batches[place], self._frames[place]
            self._frames[place] = new = _new_frames()
            answered = {
                position
                for position in range(frames.count)
                if batch.answered[position // 64] >> position % 64 & 1
            }
            found.append(
                TakenReads(
                    frames, batch.ticket, batch.index, batch.arrived_us, answered, batch.sent
                )
            )
            batch.requests = new._struct
        lib.klk_channel_clear(channel)
        return found


class ReadChannels:
    """The channels of all workers."""

    def __init__(self, workers: int, first_ticket: int) -> None:
        self._structs = ffi.new("struct klk_channel[]", workers)
        self.all = [ReadChannel(self._structs + at, first_ticket) for at in range(workers)]
        self._rows = uncleared("struct klk_request[]", READS_MAX)
        self._positions = uncleared("uint32_t[]", READS_MAX)

    def fits(self, arena: Arena) -> bool:
        """Whether each channel has room for all messages of an arena."""
        return all(lib.klk_channel_fits(each._channel, arena._struct) for each in self.all)

    def newest(self, number: int) -> Frames:
        """Where the next batch of this worker will be, if the channel has room."""
        channel = self._structs[number]
        frames: Frames = self.all[number]._frames[(channel.first + channel.count) % BATCHES]
        return frames

    def add(self, number: int, arena: Arena, index: int, now_us: int, rows: Any = None) -> Frames:
        """Adds the reads of an arena of a ROUTER for one worker, as klk_table_wait() does, if it
        fits(). Returns its messages, perhaps none, until the next call.

        rows   PlainWrites.rows, after its read(), without those that are answered already
        """
        channel = self._structs + number
        if rows is None:
            rows = self._rows
            lib.klk_requests_read(arena._struct, True, 0, rows)
        frames = self.newest(number)
        found = lib.klk_channel_add(
            *(channel, arena._struct, rows, self._positions),
            *(number, len(self.all), index, now_us),
        )
        return frames if found else Frames(1, 1)

    def done(self, arena: Arena, now_us: int) -> bool:
        """Notes the answers of an arena: [tag][routing id][..]. False: some are not for these
        reads, and none was noted."""
        return bool(lib.klk_channels_done(self._structs, len(self.all), arena._struct, now_us))


def _new_frames() -> Frames:
    return Frames(_BYTES, _FRAMES)
