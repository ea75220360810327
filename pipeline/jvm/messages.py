"""Messages between Spark's JVM and a Python process: JSON behind its size, and Arrow streams."""

import base64
import fcntl
import io
import json
import os
import pickle
import select
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, BinaryIO

import pyarrow as pa

from ...clients.errors import Error

SIZE_BYTES = 4
PIPE_BYTES = 1 << 20  # To the JVM: it reads a batch while the next one is made.
REPORTED = Error, ValueError  # To the user, by their texts. Others end the process.


class Pipe(io.RawIOBase):
    """Standard input, of which nothing is read ahead: select() tells whether more has come."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Reads so many bytes, fewer at the end."""
        parts = []
        while size > 0 and (part := os.read(self._fd, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def has_more(self, within_s: float = 0) -> bool:
        """Whether more has come within this time, or the other end has closed."""
        return bool(select.select([self._fd], [], [], within_s)[0])


class Channel:
    """The JVM at the other end of two pipes."""

    def __init__(self, pipe: Pipe, out: BinaryIO) -> None:
        self.pipe = pipe
        self._out = out

    def receive(self) -> dict[str, Any] | None:
        """The next request; None: the JVM has ended."""
        size = int.from_bytes(self.pipe.read(SIZE_BYTES), "big")
        data = self.pipe.read(size)
        if not size or len(data) < size:
            return None
        found: dict[str, Any] = json.loads(data)
        return found

    def send(self, response: dict[str, Any]) -> None:
        data = json.dumps(response).encode()
        self._out.write(len(data).to_bytes(SIZE_BYTES, "big") + data)
        self._out.flush()

    def send_rows(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Sends a stream of rows, and whether it has all: an error, or nothing. The JVM sends a
        request of its own if it wants no more of them."""
        response: dict[str, Any] = {}
        with pa.ipc.new_stream(self._out, schema) as stream:
            try:
                for batch in batches:
                    stream.write_batch(batch)
                    if self.pipe.has_more():
                        break
            except REPORTED as error:
                response = error_of(error)
        self.send(response)


def error_of(error: Exception) -> dict[str, Any]:
    """The response that reports an error."""
    return {"error": str(error), "kind": type(error).__name__}


def packed(value: Any) -> str:
    """A value that another process of kelek unpacks; the JVM passes it on."""
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def own_channel() -> Channel:
    """The pipes of this process. What it prints goes to standard error instead."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with suppress(AttributeError, OSError):  # Linux has this, and a limit for a user's pipes.
        fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return Channel(Pipe(sys.stdin.fileno()), out)
