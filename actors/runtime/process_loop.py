"""The loop of an actor or the supervisor: poll loop, signals, orderly stop, and log lines."""

import json
import os
import select
import signal
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import zmq

from ...native.net.connections import ConnectionLimits, Connections
from ...native.net.messages import Arena
from ...net.clock import monotonic_ms
from ...net.links import LinkProblem
from ...net.poll_loop import PollLoop
from ...net.sockets import Socket, SocketOptions

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DRAIN_MS_MAX = 1500  # How long an actor may go on after SIGTERM.
STDOUT_BYTES_MAX = 4096  # PIPE_BUF: a pipe that polls writable takes as much without blocking.
RARELY_MS = 60_000  # The shortest time between two log lines about the same bad input.


class ProcessLoop(PollLoop):
    """What an actor and the supervisor share."""

    def __init__(
        self,
        context: zmq.Context[Socket] | None,
        log_fd: int,
        limits: ConnectionLimits | None = None,
    ) -> None:
        super().__init__(context, None if limits is None else Connections(limits))
        self.stopping = False  # SIGTERM has come: finish what is open, accept nothing new.
        self.drain_ms_max = DRAIN_MS_MAX
        self._log_fd = log_fd
        self._logged_ms: dict[str, int] = {}
        self._unlogged: Counter[str] = Counter()
        self._stop_ms = 0

    # ---- What a subclass overrides ----

    def on_stop_requested(self) -> None:
        """SIGTERM: accept nothing new; the loop goes on until drained() is true, or 1.5 s."""

    def drained(self) -> bool:
        return True

    def on_signal(self, number: int) -> None:
        if number in STOP_SIGNALS:
            self.request_stop()

    # ---- What a subclass calls ----

    def request_stop(self) -> None:
        """What SIGTERM does."""
        if not self.stopping:
            self.stopping = True
            self._stop_ms = monotonic_ms() + self.drain_ms_max
            self.on_stop_requested()

    def unpacked(
        self, arena: Arena, layout: struct.Struct, pipe: str
    ) -> Iterator[tuple[tuple[int, ...], list[bytes]]]:
        """Each message's first frame, unpacked, and its other frames.

        A message whose first frame has another size is dropped, counted, and logged at most once a
        minute.
        """
        for head, *rest in arena.messages():
            if len(head) == layout.size:
                yield layout.unpack(head), rest
            else:
                self.log_rarely("malformed-dropped", pipe=pipe, size=len(head))

    def log(self, event: str, **values: object) -> None:
        """Writes one line `time event key=value` to the log."""
        self._write(f"{timestamp()} {format_event(event, values)}\n")

    def log_rarely(self, event: str, **values: object) -> None:
        """Counts an event that others can provoke, and logs it at most once a minute."""
        now_ms = monotonic_ms()
        self.counters[event] += 1
        if event in self._logged_ms and now_ms - self._logged_ms[event] < RARELY_MS:
            self._unlogged[event] += 1
            return
        self._logged_ms[event] = now_ms
        unlogged = self._unlogged.pop(event, 0)
        self.log(event, **values, **({"more_since_last_line": unlogged} if unlogged else {}))

    def log_cuts(self) -> None:
        """Logs and counts connections that were ended at a limit."""
        if self.connections is None:
            return
        for cut in self.connections.pop_cuts():
            self.log_rarely(f"connection-cut-{cut.reason}", address=cut.address, held=cut.held)
        for reason, count in self.connections.cut_counts().items():
            if count:
                self.counters[f"connection-cut-{reason}"] = count
        if self.connections.refused:
            self.counters["connection-refused"] = self.connections.refused

    def log_problem(self, problem: object) -> None:
        """One line for the operator, without a time."""
        self._write(f"{problem}\n")

    def on_link_refused(self, url: str, problem: LinkProblem) -> None:
        self.log_rarely("link-refused", url=url, problem=problem.text)

    def on_oversized(self, options: SocketOptions, count: int) -> None:
        self.log_rarely("oversize-dropped", count=count, socket=options.addresses)

    def _write(self, text: str) -> None:
        try:
            os.write(self._log_fd, text.encode("utf-8", "backslashreplace"))
        except OSError:
            self.counters["log_dropped"] += 1  # The supervisor is gone, or its pipe is full.

    # ---- Time and signals ----

    def _on_tick(self, now_ms: int) -> None:
        if self.stopping:
            self._check_drained(now_ms)

    def _check_drained(self, now_ms: int) -> None:
        if self.drained() or now_ms >= self._stop_ms:
            self.running = False

    def _tick_ms(self) -> int:
        return self._stop_ms if self.stopping else super()._tick_ms()

    def _open_signals(self, numbers: Sequence[int]) -> None:
        """A signal wakes the poll through a pipe: pyzmq restarts a poll that was interrupted."""
        self._signal_in, self._signal_out = os.pipe()
        os.set_blocking(self._signal_in, False)
        os.set_blocking(self._signal_out, False)
        signal.set_wakeup_fd(self._signal_out, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._on_signal)
        self.watch(self._signal_in, self._on_signal_fd)

    def _on_signal(self, number: int, frame: object) -> None:
        """Runs between any two bytecodes: it may only end a start that has no poll yet."""

    def _on_signal_fd(self) -> None:
        for number in set(os.read(self._signal_in, 4096)):
            self.on_signal(number)


def timestamp() -> str:
    """The time that log lines begin with: UTC, milliseconds."""
    now = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}Z"


def format_event(event: str, values: Mapping[str, object]) -> str:
    """`event key=value`: the form of every log and lifecycle line."""
    return " ".join([event, *(f"{key}={_word(value)}" for key, value in values.items())])


def write_if_writable(fd: int, text: str) -> None:
    """Writes unless that would block: a slow reader of our output must not stop the nodes."""
    data = text.encode("utf-8", "backslashreplace")[:STDOUT_BYTES_MAX]
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        if poll.poll(0):
            os.write(fd, data)
    except OSError:
        return


def _word(value: object) -> str:
    """A value of a log line: quoted unless it is a single word."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    return json.dumps(text)
