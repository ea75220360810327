"""docs/protocols/majordomo.md names the headers, commands and numbers that the code has."""

import re
from pathlib import Path

from kelek.clients.broker import operations as broker_operations
from kelek.native.broker import exchange
from kelek.protocols.failover import limits
from kelek.protocols.majordomo import client, values

PAGE = Path(__file__).resolve().parents[3] / "docs/protocols/majordomo.md"
TEXT = PAGE.read_text(encoding="utf-8")


def row(start: str) -> list[str]:
    (found,) = re.findall(rf"^\| {re.escape(start)}[^\n]*", TEXT, re.M)
    return [cell.strip() for cell in found.strip("|").split("|")[1:]]


def command(cell: str) -> bytes:
    """The command in a cell: the first in backticks."""
    word = re.findall(r"`(\w+)`", cell)[0]
    return bytes.fromhex(word) if len(word) == 2 else word.encode()


def test_headers() -> None:
    headers = values.HEADERS
    assert all(f"`{header.decode()}`" in TEXT for header in (*headers, *values.MDP_HEADERS))


def test_commands() -> None:
    assert [command(cell) for cell in row("REQUEST, to the broker")[:2]] == [values.READY] * 2
    assert command(row("PARTIAL, to the client")[0]) == values.CLIENT_PARTIAL
    assert command(row("FINAL, to the client")[0]) == values.CLIENT_FINAL
    assert [command(cell) for cell in row("READY, to")] == [values.READY] * 3
    for start, octets in (
        ("CREDIT, to the broker", values.CLIENT_CREDIT),
        ("CANCEL, to the broker", values.CLIENT_CANCEL),
        ("PARTIAL with a position", values.CLIENT_PART),
        ("FINAL with a position", values.CLIENT_END),
        ("ALIVE", values.CLIENT_ALIVE),
        ("READY with credit", values.READY_CREDIT),
        ("CREDIT, to the worker", values.CREDIT),
        ("CANCEL, to the worker", values.CANCEL),
    ):
        assert f"1 `{octets.hex()}`" in row(start)[0]
    assert [command(cell) for cell in row("REQUEST, to the worker")] == [values.REQUEST] * 3
    assert command(row("PARTIAL, to the broker")[0]) == values.PARTIAL
    assert command(row("FINAL, to the broker")[0]) == values.FINAL
    assert command(row("FINAL, to the broker")[2]) == values.REPLY_01
    assert command(row("PING")[0]) == values.PING
    assert command(row("PONG")[0]) == values.PONG
    assert [command(it) for it in row("HEARTBEAT, of")[1:]] == [
        values.HEARTBEAT,
        values.HEARTBEAT_01,
    ]
    disconnects = [values.DISCONNECT, values.DISCONNECT, values.DISCONNECT_01]
    assert [command(cell) for cell in row("DISCONNECT, of")] == disconnects


def test_numbers() -> None:
    setup = client.BrokerClientSetup(())
    assert f"1 to {values.SERVICE_BYTES_MAX} octets of printable" in row("service |")[0]
    assert f"{values.PRINTABLE_MIN:x} to {values.PRINTABLE_MAX:x}" in row("service |")[0]
    assert f"1 to {values.REQUEST_ID_BYTES_MAX} octets" in row("request id |")[0]
    assert f"1 to {values.WINDOW_MAX}" in row("window |")[0]
    assert broker_operations.BrokerTuning().silence_ms == setup.silence_ms
    assert values.PART_COST == exchange.PART_COST
    for start, value in (
        ("pause of a client after 429, at first", f"{limits.RETRY_MS} ms"),
        ("the same, at most", f"{limits.RETRY_MS_MAX} ms"),
        ("silence before a probe", f"{setup.silence_ms} ms"),
        ("silent seconds until a broker is given up", f"{setup.liveness}"),
        ("extension of that, for each ms", f"{limits.BYTES_PER_MS} octets in flight"),
        ("interval of PING and HEARTBEAT", f"{values.INTERVAL_MS} ms"),
        ("pause of a worker after DISCONNECT, at first", f"{limits.CONNECT_RETRY_MS} ms"),
        ("the same for a worker, at most", f"{limits.WORKER_RETRY_MS_MAX} ms"),
        ("cost of a part besides its octets", f"{values.PART_COST} octets of credit"),
        ("credit of one answer", f"{client.WINDOW_BYTES >> 20} MiB"),
        ("credit of all answers of a client", f"{setup.partial_bytes_max >> 20} MiB"),
    ):
        assert row(f"{start} |") == [value], start
    for code in (values.BUSY, values.FAILED, values.EXPIRED, values.CANCELLED, values.LOST):
        assert str(code) in TEXT
