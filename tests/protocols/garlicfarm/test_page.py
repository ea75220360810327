"""docs/protocols/garlic-farm.md names the types, sizes and limits that the code has."""

import re
from pathlib import Path

from kelek.actors.farm import links as farm_links
from kelek.actors.farm import listener as farm_doors
from kelek.actors.farm import users as farm_users
from kelek.actors.runtime import process_loop
from kelek.protocols.garlicfarm.app import application, documents, orders, state
from kelek.protocols.garlicfarm.server import membership as members
from kelek.protocols.garlicfarm.server.values import FarmSetup
from kelek.protocols.garlicfarm.wire import (
    authenticator as gate,
)
from kelek.protocols.garlicfarm.wire import (
    codec,
    digest,
    handshake,
    messages,
)
from kelek.protocols.garlicfarm.wire import (
    http_api as face,
)
from kelek.protocols.garlicfarm.wire.messages import RESPONSE_TYPES, MessageType, ValueType

PAGE = Path(__file__).resolve().parents[3] / "docs/protocols/garlic-farm.md"
TEXT = PAGE.read_text(encoding="utf-8")


def number(start: str) -> int:
    """The number behind a row's name."""
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


def test_sizes_and_limits() -> None:
    assert f"{codec.REQUEST_HEADER.size} bytes and a response {codec.RESPONSE.size}." in TEXT
    rows = re.findall(r"^\| ([\w ]+) \| (\d+) \| \| ?([\w ,]*?) ?\| ?(\d*) ?\|$", TEXT, re.M)
    assert sum(int(row[1]) for row in rows) == codec.REQUEST_HEADER.size
    assert sum(int(row[3] or 0) for row in rows) == codec.RESPONSE.size
    assert number("entries of one request, and a LogPack unpacked") == messages.ENTRIES_BYTES_MAX
    assert number("entries of one request, or in one LogPack") == messages.ENTRIES_MAX
    assert number("servers in a Configuration") == messages.SERVERS_MAX
    assert number("status document") == documents.DOCUMENT_BYTES_MAX
    assert f"no more than {state.WINDOW_MS // 1000} s before" in TEXT
    assert number("endpoint") == messages.ENDPOINT_BYTES_MAX
    assert number("order") == orders.ORDER_BYTES_MAX
    assert number("servers whose documents are kept") == state.DOCUMENTS_MAX
    assert number("hashes that are left out") == orders.EXCLUDED_HASHES_MAX
    assert number("destinations of a MetaLS") == state.CONTENTS_MAX
    assert number("settings of a farm") == orders.SETTINGS_BYTES_MAX
    assert number("entries that are shown at once") == face.ENTRIES_COUNT_MAX
    assert number("values that are shown at once") == face.ENTRIES_VALUES_BYTES_MAX
    assert number("documents that are shown at once") == face.DOCUMENTS_BYTES_MAX


def test_the_applications_words() -> None:
    """Views, orders, and when documents are posted."""
    for name in face.VIEW_NAMES:
        assert re.search(rf"^\| `{name}` \|", TEXT, re.M)
    for kind in orders.OrderKind:
        assert re.search(rf"^\| `{kind}` \|", TEXT, re.M)
    assert f"begin with `{orders.ORDER_PREFIX.decode()}`" in TEXT
    assert f"more than {documents.DEPTH_MAX} levels" in TEXT
    assert f"posts every {application.AppSetup('farm').post_interval_ms} ms" in TEXT
    assert f"not in the log after {application.RETRY_MS_FIRST} ms" in TEXT
    assert f"every {application.RETRY_MS_MAX} ms. `router`" in TEXT


def test_the_handshakes_numbers() -> None:
    assert f"`GET {handshake.path_to('CLUSTER')}`" in TEXT
    assert f"not whole after {handshake.HEAD_TIMEOUT_MS} ms" in TEXT
    assert f"{handshake.HEAD_BYTES_MAX} bytes or {handshake.HEAD_LINES_MAX} lines" in TEXT
    assert f"good for {gate.NONCE_TTL_MS // 1000} s" in TEXT
    assert f"{gate.NONCES_MAX}\nnonces" in TEXT
    assert f"the {gate.NONCE_COUNT_WINDOW} below the largest" in TEXT
    assert handshake.CREDENTIALS_TTL_MS == 3600 * 1000
    offered = "SHA-256, SHA-256-sess, MD5, MD5-sess"
    assert offered in TEXT
    assert [each.name for each in digest.ALGORITHMS] == offered.split(", ")


def test_a_servers_numbers() -> None:
    setup = FarmSetup(1)
    longest_ms = setup.election_timeout_ms_max
    assert f"can't answer within {setup.request_timeout_ms} ms" in TEXT
    assert f"SyncLogs of {setup.sync_entries_max} entries" in TEXT
    assert f"no\n  more than {setup.sync_gap} entries" in TEXT
    assert f"for {members.JOIN_TIMEOUT_ELECTIONS * longest_ms // 1000} s ends the attempt" in TEXT
    assert f"said again after {setup.election_timeout_ms_min} ms" in TEXT
    assert f"or after {2 * longest_ms} ms, the Configuration" in TEXT
    assert f"heard nothing for {2 * longest_ms} ms" in TEXT


def test_the_process() -> None:
    """Times and sizes of the server's connections."""
    assert f"TLS and head have {handshake.HEAD_TIMEOUT_MS} ms together" in TEXT
    assert f"once {farm_doors.OUT_BYTES_MAX} bytes wait for him" in TEXT
    assert f"that leaves {farm_links.OUT_BYTES_MAX} bytes lying" in TEXT
    assert f"An attempt has {farm_links.CONNECT_TIMEOUT_MS} ms,\n" in TEXT
    assert f"the next follows after {farm_links.RETRY_MS_MIN} ms" in TEXT
    assert (farm_users.CHECK_INTERVAL_MS, "looked at each second" in TEXT) == (1000, True)
    assert f"if it comes within {process_loop.DRAIN_MS_MAX} ms" in TEXT
