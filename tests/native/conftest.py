"""Fixtures of the tests over real sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from kelek.native.net import sockets


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


@pytest.fixture(params=["c", "pyzmq"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which sockets are used: in C, or by pyzmq alone."""
    monkeypatch.setattr(sockets, "_backend", None)
    if request.param == "pyzmq":
        monkeypatch.setenv("KELEK_SOCKETS", "pyzmq")
    assert sockets.backend() == request.param
    return str(request.param)
