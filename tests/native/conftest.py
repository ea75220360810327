"""Fixtures of the tests over real sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq


@pytest.fixture
def ipc_dir() -> Iterator[Path]:
    """A directory with a path short enough for ipc endpoints (107 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)
