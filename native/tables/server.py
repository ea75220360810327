"""The inner loop of a table server in C, which handles plain writes and reads without Python."""

from collections.abc import Sequence
from enum import IntFlag
from typing import NamedTuple

import zmq

from ..._native import ffi, lib
from ..broker.budget import Unsent
from ..broker.server import ServedRouter
from ..errors import NativeError, os_error, uncleared
from ..log.lease import SharedLease
from ..net.messages import Arena, Frames
from ..net.poller import Poller, Source
from ..net.sockets import DrainedSocket, native_socket
from .channels import ReadChannels
from .plain import MESSAGE_BYTES, ROWS_MAX, PlainWrites
from .rounds import ReadRounds
from .row_cache import RowReaders


class Left(IntFlag):
    """What the caller must handle, besides ready sources."""

    LEADER = lib.KLK_TABLE_LEFT_LEADER
    CLIENTS = lib.KLK_TABLE_LEFT_CLIENTS
    DENIED = lib.KLK_TABLE_LEFT_DENIED
    UNSENT = lib.KLK_TABLE_LEFT_UNSENT
    PACK = lib.KLK_TABLE_LEFT_PACK
    LATE = lib.KLK_TABLE_LEFT_LATE
    DONE = lib.KLK_TABLE_LEFT_DONE
    FAILED = lib.KLK_TABLE_LEFT_FAILED
    READS = lib.KLK_TABLE_LEFT_READS
    CACHED = lib.KLK_TABLE_LEFT_CACHED
    INDEX = lib.KLK_TABLE_LEFT_INDEX


_FAILED, _CACHED = int(Left.FAILED), int(Left.CACHED)
_NOT_SENT = int(Left.UNSENT | Left.FAILED | Left.CACHED)


class TableResult(NamedTuple):
    """The result of a wait."""

    ready: list[tuple[Source, int]]  # As Poller.poll() returns them.
    left: int  # Flags of Left; plain numbers, as an operation on a flag costs 1 us.
    leader_position: int = 0  # With LEADER: the first unread message in its arena.
    index_position: int = 0  # With INDEX: the same.
    # With UNSENT, FAILED and CACHED: what could not be sent, of these messages behind so many
    # frames.
    unsent: Unsent | None = None
    answers: Arena | None = None
    skip: int = 0


class TableServer:
    """Waits like the poller; meanwhile plain writes go to the leader and plain reads to workers,
    and their answers to the clients.

    It returns when another source is ready, or the caller must handle something.
    """

    def __init__(
        self,
        poller: Poller,
        writes: PlainWrites,
        channels: ReadChannels,
        rounds: ReadRounds,
        rows: RowReaders,
        clients: ServedRouter,
        done: DrainedSocket,
        workers: Sequence["zmq.Socket[bytes]"],
        bytes_max: int,
    ) -> None:
        """done: a PULL for the answers of workers; workers: their PUSH sockets; bytes_max: of
        answers, after which the caller must look at ReadChannel.pop_bytes()"""
        self._poller, self._writes, self._clients, self._done = poller, writes, clients, done
        self._drains = clients.drain, done.drain
        self._out = Frames(MESSAGE_BYTES, 8)
        self._unsent = uncleared("uint32_t[]", 2 * ROWS_MAX)
        self._positions = uncleared("uint32_t[]", ROWS_MAX)
        self._workers = ffi.new("void *[]", [native_socket(socket) for socket in workers])
        self._held = channels, rounds, rows, workers  # C has pointers to them.
        self._rows = rows
        wait = self._wait = ffi.new("struct klk_table_wait *")
        wait.plain, wait.channels, wait.out = writes._plain, channels._structs, self._out._struct
        wait.readers, wait.cached = rows._structs, rows.answers._struct
        wait.rounds = rounds._rounds
        wait.workers, wait.positions, wait.bytes_max = self._workers, self._positions, bytes_max
        router = wait.clients
        router.socket, router.drain = native_socket(clients.socket), clients.drain._drain
        router.budget, router.bytes_max = clients.budget._budget, clients.budget.bytes_max
        router.unsent = self._unsent
        wait.done.socket, wait.done.drain = native_socket(done.socket), done.drain._drain

    def wait(
        self,
        timeout_ms: int,
        leader: DrainedSocket | None,
        index: DrainedSocket | None,
        lease: SharedLease | None,
        passes_done: bool,
    ) -> TableResult | None:
        """Waits until the caller must act, or for timeout_ms. None: an arena has grown for a large
        message, so the caller must receive. Raises OSError with libzmq's errno.

        leader        a DEALER; None: no write is plain
        index         a DEALER, perhaps the same, where reads ask the leader; None: they can't
        lease         of the node's peer; None: there is none, so reads ask the leader
        passes_done   False: the caller looks at all answers of the workers
        """
        wait, writes = self._wait, self._writes
        clients, done = self._drains
        links = [link for link in (leader, index) if link is not None]
        if clients.is_grown or done.is_grown or any(link.drain.is_grown for link in links):
            return None
        native_socket(self._clients.socket)
        for source, link in ((wait.leader, leader), (wait.index, index)):
            source.socket = ffi.NULL
            if link is not None:
                source.socket, source.drain = native_socket(link.socket), link.drain._drain
        wait.lease = ffi.NULL if lease is None else lease.lease
        wait.passes_done, wait.poll = passes_done, self._poller._poll
        writes.arena = self._clients.drain.arena
        code = lib.klk_table_wait(wait, timeout_ms)
        if code < 0:
            raise os_error("waiting for sockets") if code == lib.KLK_EOS else NativeError(code)
        ready, left = self._poller.ready(), int(wait.left)
        if not left & _NOT_SENT:
            return TableResult(ready, left, wait.leader_position, wait.index_position)
        answers, skip = writes.answers_of(wait.unsent_pack), 0
        if left & _FAILED:
            answers, skip = self._done.drain.arena, 1
        elif left & _CACHED:
            answers = self._rows.answers
        unsent = Unsent.of(self._unsent, wait.clients.unsents)
        places = wait.leader_position, wait.index_position
        return TableResult(ready, left, *places, unsent, answers, skip)
