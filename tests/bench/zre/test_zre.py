"""The nodes that `python -m kelek.bench zre` measures do what it takes them to do."""

import importlib.util
from pathlib import Path

import pytest

from kelek.bench.ports import free_ports, free_udp_port
from kelek.bench.zre import zre
from kelek.bench.zre.nodes import WINDOW


def free_pair() -> int:
    """A port of TCP whose next one is free, too."""
    while True:
        first, second = free_ports(2)
        if second == first + 1:
            return first


@pytest.mark.parametrize("kind", ["kelek", "bare"])  # pyre leaves its sockets to the collector.
def test_whispers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zre, "ALONE", 3)
    monkeypatch.setattr(zre, "MANY", 3 * WINDOW)
    found: zre.Found = {}
    zre.talk(kind, free_pair() if kind == "bare" else free_udp_port(), found)
    known = {f"{kind} alone", f"{kind} whispers", *({f"{kind} found"} if kind != "bare" else ())}
    assert set(found) == known
    assert all(value > 0 for values in found.values() for value in values)


def test_shouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zre, "SHOUTS", WINDOW)
    found: zre.Found = {}
    zre.shout("kelek", free_udp_port(), found)
    assert list(found) == ["kelek shouts"]


def test_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zre, "MESH_NODES", 5)
    monkeypatch.setattr(zre, "MESH_IDLE_S", 0.1)
    took, _, lost = zre.mesh()
    assert took > 0
    assert lost == 0


def test_it_goes_on_without_pyre(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def add_figures(kind: str, port: int, found: zre.Found) -> None:
        for what in ("found", "alone", "whispers", "shouts"):
            found[f"{kind} {what}"] = [1.0]

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(zre, "talk", add_figures)
    monkeypatch.setattr(zre, "shout", add_figures)
    monkeypatch.setattr(zre, "mesh", lambda: [1.0, 1.0, 0.0])
    monkeypatch.setattr(zre, "lose", lambda: [0.0, 0.0])
    monkeypatch.setattr(zre, "miss", lambda tuning, count: {"EVASIVE": [1.0], "EXIT": [1.0]})
    section = zre.measure(Path("unused"), 1)
    names = [row[0] for row in section.rows]
    assert "kelek / bare, whispers" in names
    assert not [name for name in names if "pyre" in name]
    assert "without pyre: zeromq-pyre is missing (pip install 'kelek[bench]')" in (
        capsys.readouterr().err
    )
