"""Endpoints of pipes, and the private directory for their sockets."""

from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.runtime import pipes, run_dir


def test_endpoints_of_pipes() -> None:
    assert pipes.endpoint("/r", "n1", "raft_peer", "jobs") == "ipc:///r/n1/raft_peer.jobs"
    assert pipes.endpoint("inproc://k", "n1", "a", "s") == "inproc://k/n1/a.s"
    with pytest.raises(OperatorError, match="at most 107 bytes, this has 1"):
        pipes.endpoint("/" + "r" * 100, "n1", "raft_peer", "jobs")


def test_the_run_directory_must_be_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base = run_dir.of_topology("t.yaml").parent
    assert base == tmp_path / "kelek"
    base.mkdir(mode=0o777)
    pipes.make_private(base)
    assert base.stat().st_mode & 0o777 == 0o700
    (base / "link").symlink_to(tmp_path)
    with pytest.raises(OperatorError, match="is not a directory of this user"):
        pipes.make_private(base / "link")
