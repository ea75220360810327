"""docs/protocols/zerodb.md says what the code does: types, limits, features, examples."""

import re
from pathlib import Path

import pytest

from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.requests import LAYOUTS, decode_request
from kelek.protocols.zerodb.wire.values import Extension

YEAR_MS = 365 * 24 * 3600 * 1000
PATH = Path(__file__).parents[3] / "docs" / "protocols" / "zerodb.md"
PAGE = PATH.read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text from a heading to the next of the same or a higher level."""
    head = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.M)
    assert head is not None, f"no section {title!r}"
    level = len(head[1])
    rest = PAGE[head.end() :]
    end = re.search(rf"^#{{1,{level}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def rows(title: str) -> list[list[str]]:
    """The cells of all rows of a section's tables."""
    found = re.findall(r"^\|(.*)\|$", section(title), re.M)
    return [[cell.strip() for cell in row.split("|")] for row in found]


ROW = re.compile(r"^\| 0x([0-9a-f]{2}) \| [^|]* \|[^|]*\|([^|]*)\|$", re.M)
OPERATIONS = re.compile(
    r"(?<=\| operation \| name \| data \|\n\| --- \| --- \| --- \|\n)(\|.*\|\n)*"
)
ANSWERS = {
    kind: layout.plain.name
    for layout in vars(answers).values()
    if isinstance(layout, answers.AnswerLayout)
    for kind in layout.kinds
}


def row_of_request(match: re.Match[str]) -> str:
    """The row with name and frames of the declarations. The page has the other answers."""
    layout = {it.kind: it for it in LAYOUTS}[int(match[1], 16)]
    answer = f" {ANSWERS[layout.kind]} " if layout.kind in ANSWERS else match[2]
    rows = [
        f"{row.number} {row.meaning}"
        if row.number.endswith("...")
        else f"{row.number} {row.type} {row.meaning}".replace("; may be absent", " (may be absent)")
        for row in layout.rows()
    ]
    frames = f" {', '.join(rows[1:])} " if rows[1:] else " "
    return f"| 0x{match[1]} | {layout.name} |{frames}|{answer}|"


def rows_of_operations() -> str:
    found = []
    for code, kind in ops.OPERATIONS.items():
        name = re.sub(r"(?<!^)([A-Z])", r" \1", kind.__name__).lower()
        text = ops.FORMS[kind][1].text
        found.append(f"| {code:#04x} | {name} | {text}{' ' * bool(text)}|\n")
    return "".join(found)


def test_frames_and_operations_follow_the_code(request: pytest.FixtureRequest) -> None:
    wanted = OPERATIONS.sub(lambda _: rows_of_operations(), ROW.sub(row_of_request, PAGE))
    if request.config.getoption("--rewrite"):
        PATH.write_text(wanted, encoding="utf-8")
    else:
        assert wanted == PAGE, "run this test with --rewrite"


def test_every_type_is_there() -> None:
    shown = {
        int(row[0], 16)
        for title in ("Requests of the specification", "Requests of kelek")
        for row in rows(title)
        if re.fullmatch(r"0x[0-9a-f]{2}", row[0]) and len(row) == 4
    }
    assert shown == {layout.kind for layout in LAYOUTS}


def test_features() -> None:
    shown = {int(row[0], 16) for row in rows("Extensions") if re.fullmatch(r"0x[0-9a-f]+", row[0])}
    known = {number for name, number in vars(values).items() if name.startswith("FEATURE_")}
    assert sum(known) == values.FEATURES
    assert shown - {layout.kind for layout in LAYOUTS} | {1, 2, 4} == known


def test_limits() -> None:
    shown = dict(row for row in rows("Limits") if len(row) == 2)
    expected = {
        "key": f"{values.KEY_BYTES_MAX >> 10} KiB",
        "value": f"{values.VALUE_BYTES_MAX >> 20} MiB",
        "request": f"{values.REQUEST_BYTES_MAX >> 20} MiB, {values.REQUEST_FRAMES_MAX} frames",
        "answer to a scan, chunk of a range job": f"{values.CHUNK_PAIRS_MAX} pairs",
        "mapper": f"{values.MAPPER_BYTES_MAX >> 20} MiB, {values.THREADS_MAX} threads",
        "transaction": f"{values.COMPARES_MAX} compares, {values.COMPARES_MAX} operations",
        "parts of a split": f"{values.SPLIT_POINTS_MAX}",
        "jobs in one list": f"{values.LISTED_JOBS_MAX}",
        "time to live, of a session or of keys": f"{values.TTL_MS_MAX // YEAR_MS} years",
        "error text": f"{values.TEXT_BYTES_MAX} bytes",
    }
    for what, most in expected.items():
        assert shown[what].startswith(most), what


def test_examples() -> None:
    found = [
        [bytes.fromhex(frame) for frame in re.findall(r"`([0-9a-f]*)`", row[-1])]
        for row in rows("Examples")
        if "`" in row[-1]
    ]
    assert [decode_request(frames) for frames in found[:-1]] == [
        requests.ServerInfo(),
        requests.Read(7, [b"k"]),
        requests.Read(7, [b"k"], Extension(values.WITH_INDEX, 0, b"0123456789ab")),
        requests.Put(7, [b"k"], [b"v"], values.PARTSYNC),
        requests.Put(
            7, [b"k"], [b"v"], values.PARTSYNC, Extension(values.PACKED, 10_000, b"0123456789ab")
        ),
        requests.Scan(7, 1, b"a"),
    ]
    assert ops.unpack(b"".join(found[-1])) == [ops.Put(7, [b"k"], [b"v"])]
