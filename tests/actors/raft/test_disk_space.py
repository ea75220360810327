"""When a disk counts as almost full."""

from types import SimpleNamespace

import pytest

from kelek.actors.raft.disk_space import low_space

MB, GB = 1_000_000, 1_000_000_000


@pytest.mark.parametrize(
    ("free", "size", "low"),
    [
        (6 * MB, 100 * MB, ""),
        (4 * MB, 100 * MB, "4 of 100 MB are left at /data"),
        (3 * GB, 4000 * GB, ""),
        (2 * GB, 4000 * GB, "2000 of 4000000 MB are left at /data"),
        (0, 0, ""),
    ],
)
def test_a_twentieth_or_two_gibibytes_are_enough(
    monkeypatch: pytest.MonkeyPatch, free: int, size: int, low: str
) -> None:
    found = SimpleNamespace(f_bavail=free // 100, f_blocks=size // 100, f_frsize=100)
    monkeypatch.setattr("kelek.actors.raft.disk_space.os.statvfs", lambda folder: found)
    assert low_space("/data") == low
