"""The logins that `python -m kelek.bench farm-logins` times are wrong ones, of both kinds."""

import sys
from pathlib import Path

import pytest

from kelek.bench.farm import logins

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")


def test_both_kinds_of_logins_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "PAIRS", 20)
    monkeypatch.setattr(logins, "WireLogins", lambda directory: logins.FunctionLogins())
    section = logins.measure(tmp_path / "farm", 1)
    assert [each.name for each in section.figures] == [
        "unknown user against wrong password, function",
        "unknown user against wrong password, wire",
    ]
    assert all(float(each[1]) > 0 for each in section.rows[1:])
