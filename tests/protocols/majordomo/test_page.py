"""docs/protocols/majordomo.md names the headers, commands and numbers that the code has."""

import re
from pathlib import Path
from typing import Any

import pytest

from kelek.clients.broker import operations as broker_operations
from kelek.native.broker import exchange
from kelek.protocols.failover import limits
from kelek.protocols.majordomo import client, codec, values
from kelek.protocols.majordomo.codec import Command, Commands
from kelek.protocols.majordomo.values import Framing
from kelek.protocols.wire import Constant, Frame, Part, Rest
from kelek.tests.native.broker import bundle_twin

PAGE = Path(__file__).resolve().parents[3] / "docs/protocols/majordomo.md"
TEXT = PAGE.read_text(encoding="utf-8")


def row(start: str) -> list[str]:
    (found,) = re.findall(rf"^\| {re.escape(start)}[^\n]*", TEXT, re.M)
    return [cell.strip() for cell in found.strip("|").split("|")[1:]]


def test_headers() -> None:
    headers = values.HEADERS
    assert all(f"`{header.decode()}`" in TEXT for header in (*headers, *values.MDP_HEADERS))


def frame(number: int, part: Part) -> str:
    match part:
        case Constant(data):
            text = f"`{data.decode() if data.isupper() else data.hex()}`" if data else "empty"
        case Frame(meaning=meaning, optional=True):
            text = f"{meaning} (optional)"
        case _:
            text = part.meaning
    return f"{number}{'..' if isinstance(part, Rest) else ''} {text}"


def cell(command: Command) -> str:
    """The frames behind the header, and the headers of the extensions."""
    frames = [frame(number, part) for number, part in enumerate(command.parts)]
    return ", ".join(
        frames if command.header in ("deadline", "named") else frames[command.behind :]
    )


def table(group: Commands[Any], receiver: str) -> str:
    lines: dict[str, dict[Framing, str]] = {}
    for command in group.all:
        cells = lines.setdefault(command.title, dict.fromkeys(FRAMINGS, ""))
        cells[command.framing] = f"{cell(command)} "
    return "".join(
        f"| {title}, {receiver} | {'| '.join(cells.values())}|\n" for title, cells in lines.items()
    )


FRAMINGS = (Framing.TEXT, Framing.MDP02, Framing.MDP01)
HEAD = "| command | specification | MDP/0.2 | MDP/0.1 |\n| --- | --- | --- | --- |\n"
GENERATED = {
    "clients": table(codec.CLIENT_COMMANDS, "to the broker")
    + table(codec.REPLIES, "to the client"),
    "workers": table(codec.WORKER_COMMANDS, "to the broker") + table(codec.ORDERS, "to the worker"),
}


def test_tables_of_commands_follow_the_code(request: pytest.FixtureRequest) -> None:
    wanted = re.sub(
        r"(<!-- commands: (\w+) -->\n\n)(?:\|.*\n)*",
        lambda match: match[1] + HEAD + GENERATED[match[2]],
        TEXT,
    )
    if request.config.getoption("--rewrite"):
        PAGE.write_text(wanted, encoding="utf-8")
    else:
        assert wanted == TEXT, "run this test with --rewrite"


def test_numbers() -> None:
    setup = client.BrokerClientSetup(())
    assert f"1 to {values.SERVICE_BYTES_MAX} octets of printable" in row("service |")[0]
    assert f"{values.PRINTABLE_MIN:x} to {values.PRINTABLE_MAX:x}" in row("service |")[0]
    assert f"1 to {values.REQUEST_ID_BYTES_MAX} octets" in row("request id |")[0]
    assert f"1 to {values.WINDOW_MAX}" in row("window |")[0]
    assert broker_operations.BrokerTuning().silence_ms == setup.silence_ms
    assert values.PART_COST == exchange.PART_COST
    assert row("6 |") == [f"`{bundle_twin.HEAD.decode()}`"]
    assert f"number of its frames, 1 to {exchange.BUNDLE_FRAMES_MAX}" in row("1 |")[0]
    assert f"{exchange.BUNDLE_BYTES_MAX:,}\n  octets at most" in TEXT
    for start, value in (
        ("pause of a client after 429, at first", f"{limits.RETRY_MS} ms"),
        ("the same, at most", f"{limits.RETRY_MS_MAX} ms"),
        ("silence before a probe", f"{setup.silence_ms} ms"),
        ("silent seconds until a broker is given up", f"{setup.liveness}"),
        ("extension of that, for each ms", f"{limits.BYTES_PER_MS} octets in flight"),
        ("interval of PING and HEARTBEAT", f"{values.INTERVAL_MS} ms"),
        ("pause of a worker after DISCONNECT, at first", f"{limits.CONNECT_RETRY_MS} ms"),
        ("the same for a worker, at most", f"{limits.WORKER_RETRY_MS_MAX} ms"),
        ("bundle, at most", f"{exchange.BUNDLE_BYTES_MAX} octets"),
        ("cost of a part besides its octets", f"{values.PART_COST} octets of credit"),
        ("credit of one answer", f"{client.WINDOW_BYTES >> 20} MiB"),
        ("credit of all answers of a client", f"{setup.partial_bytes_max >> 20} MiB"),
    ):
        assert row(f"{start} |") == [value], start
    for code in (values.BUSY, values.FAILED, values.EXPIRED, values.CANCELLED, values.LOST):
        assert str(code) in TEXT
