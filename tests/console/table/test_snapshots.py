"""`kelek table snapshot` and --as-of, against a cluster of three nodes."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet
import pytest

from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.console.kelek_runner import fails, ok

TABLE = "kept-by-hand"
PAIRS = [(f"k{n}", f"old {n}") for n in range(5)]


@pytest.fixture
def place(
    kelek_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """A table with rows, and the option that names the cluster."""
    monkeypatch.chdir(tmp_path)
    topology = "-t", kelek_cluster.topology
    for key, value in PAIRS:
        ok("table", "put", TABLE, key, value, *topology)
    yield topology
    ok("table", "drop", TABLE, "--yes", *topology)


def kept(place: tuple[str, str], *words: str) -> int:
    found = json.loads(ok("table", "snapshot", "keep", TABLE, *words, "-o", "json", *place))
    assert found["table"] == TABLE
    return int(found["index"])


def test_a_kept_snapshot_is_read_listed_and_released(place: tuple[str, str]) -> None:
    line = ok("table", "snapshot", "keep", TABLE, "--name", "before", "--hours", "2", *place)
    index = line.split()[1]
    assert line.startswith(f"snapshot {index} of table {TABLE} is kept until 20")
    assert line.endswith(f"; read it: kelek table scan {TABLE} --as-of {index}\n")
    ok("table", "delete", TABLE, "k0", *place)
    ok("table", "put", TABLE, "k1", "new", *place)
    for name in (index, "before", "2999-01-01T00:00"):
        as_of = "--as-of", name, *place
        assert ok("table", "get", TABLE, "k1", *as_of) == "old 1\n"
        assert ok("table", "count", TABLE, *as_of) == "5\n"
    rows = "".join(f"{key}\t{value}\n" for key, value in PAIRS)
    assert ok("table", "scan", TABLE, *as_of) == rows
    assert ok("table", "scan", TABLE, "-n", "2", "--start", "k1", *as_of) == "".join(
        rows.splitlines(keepends=True)[1:3]
    )
    assert ok("table", "scan", TABLE, "--keys-only", "--prefix", "k4", *as_of) == "k4\n"
    assert ok("table", "scan", TABLE, "-n", "0", *as_of) == ""
    assert ok("table", "scan", TABLE, "--start", "x", *as_of) == ""
    for form in ("csv", "parquet"):
        ok("table", "export", TABLE, f"rows.{form}", *as_of)
    assert Path("rows.csv").read_text().splitlines()[1:] == [",".join(pair) for pair in PAIRS]
    assert pyarrow.parquet.read_table("rows.parquet").num_rows == 5
    assert ok("table", "count", TABLE, *place) == "4\n"
    year = datetime.now(UTC).year + 1
    later = kept(place, "--until", f"{year}-01-02T03:04+00:00")
    listed = ok("table", "snapshot", "list", TABLE, *place).splitlines()
    assert listed[0].split() == ["table", "index", "name", "taken", "until", "owner"]
    assert [line.split()[:3] for line in listed[1:]] == [
        [TABLE, index, "before"], [TABLE, str(later), "-"],
    ]  # fmt: skip
    lines = ok("table", "snapshot", "list", "-o", "json", *place).splitlines()
    found = [row for row in map(json.loads, lines) if row["table"] == TABLE]
    assert [row["index"] for row in found] == [int(index), later]
    assert (found[0]["name"], found[1]["name"], found[1]["owner"]) == ("before", None, None)
    assert found[1]["until"].startswith(f"{year}-01-0")
    ok("table", "snapshot", "release", TABLE, index, later, *place)
    assert len(ok("table", "snapshot", "list", TABLE, *place).splitlines()) == 1


def test_what_is_not_kept_is_told_with_what_is(place: tuple[str, str]) -> None:
    code, line = fails("table", "scan", TABLE, "--as-of", "7", *place)
    assert code == 1
    assert "has index 7; none is kept: keep_snapshot(), or kelek table snapshot keep" in line
    index = kept(place, "--name", "x")
    for words in (["scan", TABLE], ["count", TABLE], ["get", TABLE, "k"], ["export", TABLE, "f"]):
        form = ["--format", "csv"] if words[0] == "export" else []
        code, line = fails("table", *words, *form, "--as-of", "y", *place)
        assert code == 1
        assert f"has the name y; these are kept: {index} (x, 20" in line
    code, line = fails("table", "get", TABLE, "no", "--as-of", index, *place)
    assert (code, "no key no" in line) == (1, True)
    code, line = fails("table", "snapshot", "release", TABLE, "7", *place)
    assert (code, "these are kept" in line) == (1, True)
    assert not Path("f").exists()
    ok("table", "snapshot", "release", TABLE, index, *place)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["scan", "7", "--as-of", "5", "--reverse"], "--reverse is given too"),
        (["get", "7", "k", "--as-of", "5", "-v"], "-v is given too"),
        (["scan", "7", "--as-of", "5-5"], "'5-5' is no index, no name and no time"),
        (["scan", "7", "--as-of", "a/b"], "'a/b' is no index, no name and no time"),
        (["snapshot", "keep", "7", "--until", "soon"], "'soon' is no time"),
        (["snapshot", "keep", "7", "--until", "2001-01-01"], "a time in the next ten years"),
        (["snapshot", "keep", "7", "--until", "2030-01-01", "--hours", "1"], "--hours is given"),
        (["snapshot", "keep", "7", "--name", "7"], "begins with a letter"),
        (["snapshot", "keep", "7", "--hours", "nan"], "nan is not a number"),
        (["snapshot", "release", "7"], "INDEX..."),
    ],
)
def test_what_makes_no_sense(words: list[str], text: str) -> None:
    code, line = fails("table", *words, "--url", "tcp://127.0.0.1:9")
    assert (code, text in line) == (2, True), line
