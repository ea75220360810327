"""The lease in shared memory: while it is written, has ended, or was left behind."""

import itertools
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.log.lease import SIZE, SharedLease
from kelek.tests.conftest import ROOT

FAR_MS = 1 << 40
DIFFERENT, READS = 100, 300_000
PAGE = struct.Struct("<QQQ")  # struct klk_lease
numbers = st.integers(0, FAR_MS)


def unsuspended_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def twin_read(page: bytes, now_ms: int) -> int:
    """What klk_lease_read() does, in plain Python."""
    version, until_ms, index = PAGE.unpack(page)
    return index if version % 2 == 0 and now_ms < until_ms else 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "raft_peer.lease"


@pytest.fixture
def writer(path: Path) -> Iterator[SharedLease]:
    made = SharedLease(str(path))
    yield made
    made.close()


@pytest.fixture
def reader(path: Path) -> Iterator[SharedLease]:
    made = SharedLease(str(path))
    yield made
    made.close()


def test_a_lease_is_read_until_it_ends(writer: SharedLease, reader: SharedLease) -> None:
    assert reader.read() == 0
    writer.write(unsuspended_ms() + 60_000, 7)
    assert reader.read() == 7
    writer.write(unsuspended_ms(), 7)
    assert reader.read() == 0
    writer.write(unsuspended_ms() + 60_000, 8)
    writer.write(0, 0)
    assert reader.read() == 0


def test_a_file_that_is_there_keeps_its_content(writer: SharedLease, path: Path) -> None:
    """A process that starts later shares the memory, and does not end the lease."""
    writer.write(FAR_MS, 7)
    later = SharedLease(str(path))
    assert later.read() == 7
    later.close()
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks, "a full disk would end who writes into memory"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_writer_that_died_while_it_wrote(
    writer: SharedLease, reader: SharedLease, path: Path
) -> None:
    writer.write(FAR_MS, 7)
    version, *rest = PAGE.unpack(path.read_bytes())
    with path.open("r+b") as file:
        file.write(PAGE.pack(version + 1, *rest))
    assert reader.read() == 0
    writer.write(FAR_MS, 9)  # Its successor.
    assert reader.read() == 9


@given(version=numbers, until_ms=numbers, index=numbers)
def test_read_is_its_twin(
    tmp_path_factory: pytest.TempPathFactory, version: int, until_ms: int, index: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "twin.lease"
    now_ms = unsuspended_ms()
    if abs(until_ms - now_ms) < 60_000:
        until_ms += 120_000
    path.write_bytes(page := PAGE.pack(version, until_ms, index))
    lease = SharedLease(str(path))
    assert lease.read() == twin_read(page, now_ms)
    lease.write(until_ms, index)
    after, *rest = PAGE.unpack(path.read_bytes())
    assert after % 2 == 0
    assert after > version
    assert rest == [until_ms, index]
    lease.close()


WRITES = f"""
import itertools, sys
from kelek.native.log.lease import SharedLease
lease = SharedLease(sys.argv[1])
for index in itertools.count(1):
    lease.write(0 if index % 2 else {FAR_MS}, index)
"""


def test_a_read_never_mixes_two_leases(reader: SharedLease, path: Path) -> None:
    """The odd indexes are of leases that have ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".build")}
    with subprocess.Popen([sys.executable, "-c", WRITES, path], env=environment) as writer:
        found = set()
        for count in itertools.count():
            found.add(reader.read())
            if len(found) > DIFFERENT and count > READS:
                break
        writer.kill()
    assert not [index for index in found if index % 2]
