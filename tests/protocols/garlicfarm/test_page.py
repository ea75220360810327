"""The tables of docs/protocols/garlic-farm.md have the numbers of the code."""

import re
from pathlib import Path

import pytest

from kelek.actors.farm import links, listener, users
from kelek.actors.runtime import process_loop
from kelek.protocols.garlicfarm.app import application, documents, orders, state
from kelek.protocols.garlicfarm.server import logins, membership
from kelek.protocols.garlicfarm.server.values import FarmSetup
from kelek.protocols.garlicfarm.wire import (
    authenticator,
    codec,
    digest,
    handshake,
    http_api,
    messages,
)
from kelek.protocols.garlicfarm.wire.messages import RESPONSE_TYPES, MessageType, ValueType

PAGE = Path(__file__).resolve().parents[3] / "docs/protocols/garlic-farm.md"
TEXT = PAGE.read_text(encoding="utf-8")
SETUP = FarmSetup(1)


def number(start: str) -> int:
    """The number in the second column of a row."""
    (found,) = re.findall(rf"^\| {re.escape(start)} \| (\d+)", TEXT, re.M)
    return int(found)


def camel(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def test_types() -> None:
    for kind, answer in RESPONSE_TYPES.items():
        (row,) = re.findall(rf"^\| {camel(kind.name)} \| (\d.*) \|$", TEXT, re.M)
        first, *_, response, last = row.split(" | ")
        assert (int(first), int(last)) == (kind, answer)
        assert response == camel(MessageType(answer).name)


def test_value_types() -> None:
    names = {ValueType.SNAPSHOT_SYNC: "SnapshotSyncRequest"}
    for value_type in ValueType:
        assert number(names.get(value_type, camel(value_type.name))) == value_type


def test_sizes() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| (\d+) \| \| ?([\w ,]*?) ?\| ?(\d*) ?\|$", TEXT, re.M)
    assert sum(int(row[1]) for row in rows) == codec.REQUEST_HEADER.size
    assert sum(int(row[3] or 0) for row in rows) == codec.RESPONSE.size
    assert number("request header") == codec.REQUEST_HEADER.size
    assert number("response") == codec.RESPONSE.size
    assert number("entry header: term 8, value type 1, size 4") == codec.ENTRY_HEADER.size


LIMITS = {
    "entries of one request, and a LogPack unpacked": messages.ENTRIES_BYTES_MAX,
    "entries of one request, or in one LogPack": messages.ENTRIES_MAX,
    "servers in a Configuration": messages.SERVERS_MAX,
    "endpoint": messages.ENDPOINT_BYTES_MAX,
    "HTTP head": handshake.HEAD_BYTES_MAX,
    "lines of an HTTP head": handshake.HEAD_LINES_MAX,
    "nonces with stored counts": authenticator.NONCES_MAX,
    "counts of a nonce below the largest": authenticator.NONCE_COUNT_WINDOW,
    "wrong passwords of an address before it waits": logins.WRONG_MAX,
    "addresses with wrong passwords": logins.ADDRESSES_MAX,
    "handshakes continued in one wake": listener.HANDSHAKE_STEPS_MAX,
    "entries of one SyncLog": SETUP.sync_entries_max,
    "entries that a joining server may lack": SETUP.sync_gap,
    "unsent answers of a connection": listener.OUT_BYTES_MAX,
    "unsent requests of a link": links.OUT_BYTES_MAX,
    "status document": documents.DOCUMENT_BYTES_MAX,
    "levels of a status document": documents.DEPTH_MAX,
    "order": orders.ORDER_BYTES_MAX,
    "orders in one request": orders.ORDERS_MAX,
    "servers with a stored document": state.DOCUMENTS_MAX,
    "excluded hashes": orders.EXCLUDED_HASHES_MAX,
    "destinations of a MetaLS": state.CONTENTS_MAX,
    "settings of a farm": orders.SETTINGS_BYTES_MAX,
    "entries in one response": http_api.ENTRIES_COUNT_MAX,
    "values in one response": http_api.ENTRIES_VALUES_BYTES_MAX,
    "documents in one response": http_api.DOCUMENTS_BYTES_MAX,
}
TIMES = {
    "TLS and HTTP head of an inbound connection": handshake.HEAD_TIMEOUT_MS,
    "TCP, TLS and HTTP head of an outgoing link": links.CONNECT_TIMEOUT_MS,
    "first pause of a link": links.RETRY_MS_MIN,
    "a client reuses a challenge": handshake.CREDENTIALS_TTL_MS,
    "a nonce is valid": authenticator.NONCE_TTL_MS,
    "an incomplete request": listener.REQUEST_MS_MIN,
    "check of the password file and certificates": users.CHECK_INTERVAL_MS,
    "former password of a servers' user": users.FORMER_PASSWORD_MS,
    "wait of an address after wrong passwords, first": logins.DELAY_MS_FIRST,
    "wait of an address after wrong passwords, last": logins.DELAY_MS_MAX,
    "wrong passwords of an address are forgotten": logins.FORGET_MS,
    "request timeout": SETUP.request_timeout_ms,
    "leave timeout": 2 * SETUP.election_timeout_ms_max,
    "a joining server does not answer": (
        membership.JOIN_TIMEOUT_ELECTIONS * SETUP.election_timeout_ms_max
    ),
    "a refused member request is repeated": SETUP.election_timeout_ms_min,
    "interval of status documents": application.AppSetup("farm").post_interval_ms,
    "a posted document is repeated, first": application.RETRY_MS_FIRST,
    "a posted document is repeated, last": application.RETRY_MS_MAX,
    "window of status documents": state.WINDOW_MS,
    "stop delay": process_loop.DRAIN_MS_MAX,
}


@pytest.mark.parametrize("row", [*LIMITS, *TIMES])
def test_limits_and_times(row: str) -> None:
    assert number(row) == {**LIMITS, **TIMES}[row]


def test_views_and_orders() -> None:
    for name in (*http_api.VIEW_NAMES, *orders.OrderKind):
        assert re.search(rf"^\| `{name}` \|", TEXT, re.M)


def test_the_handshake() -> None:
    assert f"`GET {handshake.path_to('CLUSTER')}`" in TEXT
    assert ", ".join(each.name for each in digest.ALGORITHMS) in TEXT
