"""The rows of one task, kept until all of them are known, and the rank of each among them.

A rank must not depend on the order in which rows come: they are ordered by digests of their data.
Rows, digests and ranks are held in memory up to a limit each, and beyond it in files without names,
which are gone with the process. It never talks to a cluster.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy
import pyarrow

from ..errors import PipelineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIGEST_BYTES = 16  # Rows of which one hides another by chance: one pair in 2^128.
DIGEST = f"S{DIGEST_BYTES}"
HEAD_BITS = 16  # Of a digest, which tell its bucket.
CHUNK_ROWS = 1 << 16  # Digests that are looked at at once.
BUCKET_BITS = 19
BUCKET_ROWS = 1 << BUCKET_BITS  # Digests that are ordered at once: about 50 MB of memory.
SCHEMA = pyarrow.schema([("data", pyarrow.large_binary())])


class Rows:
    """Takes the data of rows in, and gives it back in the same order, as often as wanted.

    memory_bytes   of data that are held in memory
    """

    def __init__(self, memory_bytes: int) -> None:
        self.count = 0
        self._folder = _folder()
        self._files = contextlib.ExitStack()
        self._data = self._file(memory_bytes)
        self._digests = self._file(BUCKET_ROWS * DIGEST_BYTES)
        self._stream = pyarrow.ipc.new_stream(pyarrow.PythonFile(self._data, "w"), SCHEMA)

    def __enter__(self) -> "Rows":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # A full disk, which add() has told of.
            self._stream.close()
        self._files.close()

    def add(self, data: pyarrow.Array) -> None:
        """Takes in the next rows, large_binary without nulls. Raises PipelineError."""
        digests = [hashlib.blake2b(row, digest_size=DIGEST_BYTES) for row in data.to_pylist()]
        with self._told():
            self._digests.write(b"".join([digest.digest() for digest in digests]))
            self._stream.write_batch(pyarrow.record_batch([data], schema=SCHEMA))
        self.count += len(data)

    def data(self) -> Iterator[bytes]:
        """Of all rows that were added."""
        self._data.seek(0)
        for batch in pyarrow.ipc.open_stream(self._data):
            yield from batch["data"].to_pylist()

    def ranks(self) -> Iterator[int]:
        """Of all rows in the same order: the place of each among all in the order of their data's
        digests. Equal rows have consecutive ones. Raises PipelineError."""
        with self._told():
            ranks = _ranked(self._digests, self.count, self._folder)
        for first in range(0, self.count, CHUNK_ROWS):
            yield from ranks[first : first + CHUNK_ROWS].tolist()

    def _file(self, memory_bytes: int) -> tempfile.SpooledTemporaryFile[bytes]:
        return self._files.enter_context(
            tempfile.SpooledTemporaryFile(memory_bytes, dir=self._folder)
        )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PipelineError(
                f"the rows of a task can't be kept in {self._folder}: {error.strerror}. Let "
                "Spark's local folder (spark.local.dir) have room for them, or repartition() them"
            ) from error


def _folder() -> str:
    """Where Spark has its own temporary files."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next(filter(os.path.isdir, folders), tempfile.gettempdir())


def _ranked(digests: IO[bytes], count: int, folder: str) -> "NDArray[Any]":
    """The place of each digest among all of them in order, of equal ones as they stand.

    They are ordered by buckets, those with the same first bits, which are looked for in all of them
    each time: memory does not grow with their number, nor with the number of equal ones.
    """
    ranks = _integers(count, folder)
    bits = min(HEAD_BITS, max(0, (count - 1).bit_length() - BUCKET_BITS))
    below = 0
    for bucket in range(1 << bits):
        parts = [
            numpy.unique(found, return_counts=True) for _, found in _chunks(digests, bits, bucket)
        ]
        keys, place = numpy.unique(
            numpy.concatenate([key for key, _ in parts]), return_inverse=True
        )
        counts = numpy.zeros(len(keys), "i8")
        numpy.add.at(counts, place, numpy.concatenate([number for _, number in parts]))
        following = below + numpy.cumsum(counts) - counts  # The next rank of each digest.
        below += int(counts.sum())
        for at, found in _chunks(digests, bits, bucket):
            place = numpy.searchsorted(keys, found)
            order = numpy.argsort(place, kind="stable")
            place = place[order]
            equal, first, number = numpy.unique(place, return_index=True, return_counts=True)
            ranks[at[order]] = following[place] + numpy.arange(len(at)) - first.repeat(number)
            following[equal] += number
    return ranks


def _chunks(
    digests: IO[bytes], bits: int, bucket: int
) -> Iterator[tuple["NDArray[Any]", "NDArray[Any]"]]:
    """The positions of a bucket's digests, and these."""
    digests.seek(0)
    before = 0
    while data := digests.read(CHUNK_ROWS * DIGEST_BYTES):
        found = numpy.frombuffer(data, DIGEST)
        heads = numpy.frombuffer(data, ">u2")[:: DIGEST_BYTES // 2].astype("u4")
        at = numpy.flatnonzero(heads >> (HEAD_BITS - bits) == bucket)
        yield before + at, found[at]
        before += len(found)


def _integers(count: int, folder: str) -> "NDArray[Any]":
    """Room for so many; in a file when they are many."""
    if count <= BUCKET_ROWS:
        return numpy.empty(count, "i8")
    with tempfile.TemporaryFile(dir=folder) as file:
        return numpy.memmap(file, "i8", "w+", shape=(count,))
