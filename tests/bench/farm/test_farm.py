"""The servers that `python -m kelek.bench farm` measures are begun and take a newcomer in."""

import importlib.util
import sys
from pathlib import Path

import pytest

from kelek.bench.farm import farm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")


def test_it_goes_on_without_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(farm, "SECONDS", 0.05)
    monkeypatch.setattr(farm, "HANDSHAKES", 4)
    monkeypatch.setattr(farm, "DOCUMENTS", 3)
    section = farm.measure(tmp_path, 1)
    names = [row[0] for row in section.rows]
    assert "kelek / floor, plain, 64 outstanding" in names
    assert not [name for name in names if "TLS" in name]
    assert "without TLS: cryptography is missing (pip install 'kelek[bench]')" in (
        capsys.readouterr().err
    )
