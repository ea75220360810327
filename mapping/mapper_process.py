"""job_server's side of a mapper process: starts it, sends calls, and kills it after a time limit.

It knows no table: batches of packed records go in, packed outputs come out.
"""

import contextlib
import fcntl
import importlib.util
import os
import resource
import signal
import subprocess
import sys
from collections import deque
from typing import NamedTuple, Protocol

from ..net.child_pipes import ChildPipes
from ..net.clock import monotonic_ms
from ..net.poll_loop import PollLoop
from . import mapper, sandbox
from .mapper import BITCODE_MAGIC, FRAME, OUTPUT_BYTES_MAX, TEXT_BYTES_MAX, WASM_MAGIC

BATCH_PAIRS = 4096  # Limits of one call's batch.
BATCH_BYTES = 256 << 10
CALLS_MAX = 2  # Of one mapper: one call runs, one waits.
WRITES_MAX = 4  # Unanswered write requests of one job.
READY_MS_MAX = 20_000  # Until Python and the library are loaded; no user code runs before.
CALL_MS_MAX = 900  # Of one call; then the process is killed.
CALL_BYTES_A_MS = 256  # Compiling a module may take 1 ms more for each of so many bytes.
CPU_S_SPARE = 10  # Added to 1 s a call; it takes effect if job_server itself is stopped.
PIPE_BYTES = 1 << 20


class Event(NamedTuple):
    """A message of a mapper process."""

    kind: int  # mapper.STARTED, OUTPUT or FAILED
    data: bytes  # OUTPUT: packed operations. FAILED: the reason.
    end: bool = False  # OUTPUT: whether it is the last one.


class Listener(Protocol):
    """Receives the events of a process."""

    def __call__(self, process: "MapperProcess", event: Event) -> None: ...


def engine_of(module: bytes, allow_native: bool) -> tuple[str, str]:
    """Returns the engine of a payload (`wasm` or `native`), and "" or why it cannot run here."""
    if module.startswith(WASM_MAGIC):
        if importlib.util.find_spec("wasmtime") is None:
            return "wasm", "wasmtime is not installed here; pip install 'kelek[wasm]'"
        return "wasm", ""
    if not module.startswith(BITCODE_MAGIC):
        return "", "the mapper is neither WebAssembly (00 61 73 6d) nor LLVM bitcode (42 43 c0 de)"
    if not allow_native:
        return "native", "LLVM bitcode is not allowed here; zerodb: {allow_native: true} allows it"
    if not sandbox.can_lock():
        return "native", "this system can't lock native code in; send WebAssembly"
    if importlib.util.find_spec("llvmlite") is None:
        return "native", "llvmlite is not installed here; pip install 'kelek[llvm]'"
    return "native", ""


class MapperProcess:
    """One child. Each call has one event as its answer; no event follows FAILED."""

    def __init__(self, loop: PollLoop, engine: str, listener: Listener) -> None:
        self._listener = listener
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", mapper.__name__, engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            bufsize=0,
            process_group=0,  # Only the supervisor handles Ctrl-C.
        )
        self._pipes = ChildPipes(loop, self._process)
        # Lets a batch go in one write, if the user's limit permits.
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            for pipe in (self._pipes.stdin, self._pipes.stdout):
                with contextlib.suppress(OSError):
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._taken = bytearray()
        self._calls: deque[tuple[int, int]] = deque()  # Kind and size of each unanswered call.
        self._ready = False
        self._ended = False
        self._count = 0
        self._deadline_ms = loop.now_ms + READY_MS_MAX
        loop.watch(self._pipes.stdout, self._on_readable)

    # ---- what is asked of it ----

    @property
    def calls(self) -> int:
        """Number of unanswered calls."""
        return len(self._calls)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, module: bytes, parameters: bytes) -> None:
        self._write(mapper.PARAMETERS, parameters)
        self._call(mapper.MODULE, module)

    def map(self, records: bytes) -> None:
        self._call(mapper.BATCH, records)

    def end(self) -> None:
        """Sends END: one more output comes."""
        self._call(mapper.END, b"")

    def _call(self, kind: int, data: bytes) -> None:
        self._calls.append((kind, len(data)))
        if self._ready and len(self._calls) == 1:
            self._await_call()
        self._write(kind, data)

    def _await_call(self) -> None:
        """Starts the time limit of a call."""
        kind, size = self._calls[0]
        longer = size // CALL_BYTES_A_MS if kind == mapper.MODULE else 0
        self._deadline_ms = monotonic_ms() + CALL_MS_MAX + longer
        self._count += 1 + longer // 1000
        with contextlib.suppress(ProcessLookupError, ValueError, AttributeError):
            # The kernel's limit also holds while job_server does not check deadlines.
            limits = CPU_S_SPARE + self._count, resource.RLIM_INFINITY
            resource.prlimit(self.pid, resource.RLIMIT_CPU, limits)

    def _write(self, kind: int, data: bytes) -> None:
        if not self._ended:
            self._pipes.write(FRAME.pack(kind, len(data)) + data)

    # ---- what it says ----

    def _on_readable(self) -> None:
        data = self._pipes.read()
        if data is None:
            return
        if not data:
            self._fail(self._end_reason())
            return
        self._taken += data
        while not self._ended and len(self._taken) >= FRAME.size:
            kind, size = FRAME.unpack_from(self._taken)
            if size > max(OUTPUT_BYTES_MAX, 4 * TEXT_BYTES_MAX):
                self._fail("the mapper's process sent an unexpected message")
                return
            if len(self._taken) < FRAME.size + size:
                return
            frame = bytes(self._taken[FRAME.size : FRAME.size + size])
            del self._taken[: FRAME.size + size]
            self._on_frame(kind, frame)

    def _on_frame(self, kind: int, data: bytes) -> None:
        if kind == mapper.READY and not self._ready:
            self._ready = True
            if self._calls:
                self._await_call()
            return
        if not self._calls or kind == mapper.FAILED:
            self._fail(data.decode("utf-8", "replace") or "the mapper failed")
            return
        call, _ = self._calls.popleft()
        if kind != (mapper.STARTED if call == mapper.MODULE else mapper.OUTPUT):
            self._fail("the mapper's process sent an unexpected message")
            return
        if self._calls:
            self._await_call()
        self._listener(self, Event(kind, data, call == mapper.END))

    def _end_reason(self) -> str:
        """Returns why the process ended after its output has closed."""
        self._process.kill()
        code = self._process.wait()
        if code == -signal.SIGSYS:
            return "the mapper made a system call that it may not make, or aborted"
        if code == -signal.SIGXCPU:
            return "the mapper took too much CPU time"
        if code < 0 and code != -signal.SIGKILL:
            return f"the mapper crashed: {signal.Signals(-code).name}"
        return "the mapper's process has ended"

    def _fail(self, reason: str) -> None:
        if not self._ended:
            self.kill()
            self._listener(self, Event(mapper.FAILED, reason.encode()))

    # ---- time and end ----

    def deadline_ms(self) -> int | None:
        """Time of the next tick()."""
        waits = not self._ended and (self._calls or not self._ready)
        return self._deadline_ms if waits else None

    def tick(self, now_ms: int) -> None:
        due_ms = self.deadline_ms()
        if due_ms is not None and now_ms >= due_ms:
            what = f"took longer than {CALL_MS_MAX} ms for a call" if self._ready else "hung"
            self._fail(f"the mapper {what} and was ended")

    def give(self, ms: int) -> None:
        """Extends the limit by time during which the caller did not read events."""
        self._deadline_ms += ms

    def kill(self) -> None:
        """Kills the process; no more events come."""
        if self._ended:
            return
        self._ended = True
        self._process.kill()
        self._process.wait()
        self._pipes.close()
