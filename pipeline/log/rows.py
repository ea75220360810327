"""Stores the rows of one task and computes the rank of each row among them.

A rank must not depend on the order in which rows arrive. So rows are ordered by digests of their
data. Rows, digests and ranks each use memory up to a limit and then unnamed files, which disappear
with the process.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy
import pyarrow

from ..errors import PipelineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIGEST_BYTES = 16  # The chance that two different rows have the same digest is 2^-128 a pair.
DIGEST = f"S{DIGEST_BYTES}"
HEAD_BITS = 16  # Leading bits of a digest that choose its bucket.
CHUNK_ROWS = 1 << 16  # Digests processed at once.
BUCKET_BITS = 19
BUCKET_ROWS = 1 << BUCKET_BITS  # Digests sorted at once; they need about 50 MB of memory.
SCHEMA = pyarrow.schema([("data", pyarrow.large_binary())])


class Rows:
    """Stores the data of rows and returns it in the same order, any number of times.

    memory_bytes   limit of the data held in memory
    """

    def __init__(self, memory_bytes: int) -> None:
        self.count = 0
        self._folder = _folder()
        self._files = contextlib.ExitStack()
        self._data = self._file(memory_bytes)
        self._digests = self._file(BUCKET_ROWS * DIGEST_BYTES)
        self._stream = pyarrow.ipc.new_stream(pyarrow.PythonFile(self._data, "w"), SCHEMA)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # add() has reported the full disk.
            self._stream.close()
        self._files.close()

    def add(self, data: pyarrow.Array) -> None:
        """Stores the next rows (large_binary without nulls). Raises PipelineError."""
        digests = [hashlib.blake2b(row, digest_size=DIGEST_BYTES) for row in data.to_pylist()]
        with self._storage_errors():
            self._digests.write(b"".join([digest.digest() for digest in digests]))
            self._stream.write_batch(pyarrow.record_batch([data], schema=SCHEMA))
        self.count += len(data)

    def data(self) -> Iterator[bytes]:
        self._data.seek(0)
        for batch in pyarrow.ipc.open_stream(self._data):
            yield from batch["data"].to_pylist()

    def ranks(self) -> Iterator[int]:
        """Yields the rank of each row, in the order of the rows.

        The rank is the row's position by the order of digests. Equal rows have consecutive ranks.
        Raises PipelineError.
        """
        with self._storage_errors():
            ranks = _ranked(self._digests, self.count, self._folder)
        for first in range(0, self.count, CHUNK_ROWS):
            yield from ranks[first : first + CHUNK_ROWS].tolist()

    def _file(self, memory_bytes: int) -> tempfile.SpooledTemporaryFile[bytes]:
        return self._files.enter_context(
            tempfile.SpooledTemporaryFile(memory_bytes, dir=self._folder)
        )

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PipelineError(
                f"the rows of a task can't be kept in {self._folder}: {error.strerror}. Let "
                "Spark's local folder (spark.local.dir) have room for them, or repartition() them"
            ) from error


def _folder() -> str:
    """Returns the folder for Spark's temporary files."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next(filter(os.path.isdir, folders), tempfile.gettempdir())


def _ranked(digests: IO[bytes], count: int, folder: str) -> "NDArray[Any]":
    """Returns the rank of each digest; equal digests keep their order.

    Digests are sorted bucket by bucket; a bucket holds those with the same leading bits. Each pass
    reads all digests, so memory does not grow with their number or with the number of equal ones.
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
    """Yields the positions of a bucket's digests, and these digests."""
    digests.seek(0)
    before = 0
    while data := digests.read(CHUNK_ROWS * DIGEST_BYTES):
        found = numpy.frombuffer(data, DIGEST)
        heads = numpy.frombuffer(data, ">u2")[:: DIGEST_BYTES // 2].astype("u4")
        at = numpy.flatnonzero(heads >> (HEAD_BITS - bits) == bucket)
        yield before + at, found[at]
        before += len(found)


def _integers(count: int, folder: str) -> "NDArray[Any]":
    """Returns an array of integers, in a file if there are many."""
    if count <= BUCKET_ROWS:
        return numpy.empty(count, "i8")
    with tempfile.TemporaryFile(dir=folder) as file:
        return numpy.memmap(file, "i8", "w+", shape=(count,))
