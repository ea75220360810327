"""The codec against recorded Java messages, round trips, and malformed input."""

import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import LocalProtocolError, RemoteProtocolError
from kelek.protocols.garlicfarm.wire import codec, values
from kelek.protocols.garlicfarm.wire.messages import (
    ENTRIES_BYTES_MAX,
    NO_LEADER,
    NUMBER_MAX,
    RESPONSE_TYPES,
    SERVERS_MAX,
    ClusterServer,
    FarmConfiguration,
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    SnapshotSync,
    ValueType,
)

_LINES = (Path(__file__).parent / "jraft.txt").read_text("utf-8").split("\n\n")[1:]
JRAFT = {name: bytes.fromhex(data) for name, data in map(str.splitlines, _LINES)}
SYNC_LOG = next(data for data in JRAFT.values() if data[0] == MessageType.SYNC_LOG)
SNAPSHOT = next(data for data in JRAFT.values() if data[0] == MessageType.INSTALL_SNAPSHOT)
WHOLE = {name: data for name, data in JRAFT.items() if data is not SNAPSHOT}
MEMBERS = tuple(ClusterServer(n, f"tcp://127.0.0.1:940{n}") for n in (1, 2, 3))


def decoded(data: bytes) -> Request:
    """Decodes one whole request."""
    stream = codec.RequestStream()
    (request,) = stream.feed(data)
    assert stream.partial[0] == 0
    return request


def test_every_type_is_there() -> None:
    assert {data[0] for data in JRAFT.values()} == set(MessageType)


@pytest.mark.parametrize("name", WHOLE)
def test_what_java_has_sent(name: str) -> None:
    """Decodes to the stated values and encodes to the same bytes."""
    data = WHOLE[name]
    source, destination, term = data[1:5], data[5:9], data[9:17]
    message: Request | Response
    if data[0] in codec.REQUEST_TYPES:
        message = decoded(data)
        assert codec.encode_request(message) == data
        assert f"n={len(message.entries)})" in name
        last, index, commit = message.last_log_term, message.last_log_index, message.commit_index
        assert f" llt={last} lli={index} ci={commit} " in name
        assert f"Request({message.source}->{message.destination} term={message.term} " in name
    else:
        message = codec.decode_response(data)
        assert codec.encode_response(message) == data
        accepted = int(message.is_accepted)
        assert f"src={message.source} dst={message.destination} term={message.term} " in name
        assert f" next={message.next_index} acc={accepted})" in name
    assert pack(">iiq", message.source, message.destination, message.term) == (
        source + destination + term
    )


def only_entry(data: bytes) -> FarmLogEntry:
    (entry,) = decoded(data).entries
    return entry


def of_type(message_type: MessageType) -> bytes:
    return [data for data in JRAFT.values() if data[0] == message_type][-1]


def test_values_that_java_has_sent() -> None:
    assert only_entry(of_type(MessageType.CLIENT_REQUEST)) == FarmLogEntry(
        0, ValueType.APPLICATION, b"hello:world"
    )
    added = only_entry(of_type(MessageType.ADD_SERVER)).value
    server = values.decode_cluster_server(added)
    assert server == ClusterServer(4, "tcp://127.0.0.1:9411")
    assert values.encode_cluster_server(server) == added
    removed = only_entry(of_type(MessageType.REMOVE_SERVER)).value
    assert values.decode_server_id(removed) == 4
    assert values.encode_server_id(4) == removed
    joined = only_entry(of_type(MessageType.JOIN_CLUSTER))
    assert joined.value_type is ValueType.CONFIGURATION
    assert values.decode_configuration(joined.value) == FarmConfiguration(1, 0, MEMBERS)
    assert values.encode_configuration(FarmConfiguration(1, 0, MEMBERS)) == joined.value
    assert codec.decode_response(of_type(MessageType.APPEND_ENTRIES_RESPONSE)).destination == (
        NO_LEADER
    )


def test_a_log_pack_that_java_has_sent() -> None:
    value = only_entry(SYNC_LOG).value
    found = values.decode_log_pack(value)
    assert found.base == 0
    texts = [
        b"k%d:value-number-%d-abcdefghijklmnopqr" % (number, number) for number in range(101, 106)
    ]
    numbers = [int(entry.value[1:4]) for entry in found.entries]
    assert numbers == [101, 102, 103, 104, 105]
    assert all(
        entry.value.startswith(text) for entry, text in zip(found.entries, texts, strict=True)
    )
    assert {entry.term for entry in found.entries} == {2}
    # Another zlib may compress differently: compare the contents.
    assert zlib.decompress(values.encode_log_pack(found), 31) == zlib.decompress(value, 31)


def test_a_snapshot_that_java_has_sent() -> None:
    """The recording is partial; the test adds the rest."""
    head, said = SNAPSHOT[:45], SNAPSHOT[45 + 13 :]
    data = head + SNAPSHOT[45:58] + said + bytes(782 - len(said) - 1) + b"\1"
    (entry,) = decoded(data).entries
    sync = values.decode_snapshot_sync(entry.value)
    assert sync[:2] == (102, 2)
    servers = tuple(ClusterServer(n, f"tcp://127.0.0.1:945{n}") for n in (1, 2, 3))
    assert sync.configuration == FarmConfiguration(1, 0, servers)
    assert (sync.offset, len(sync.data), sync.is_done) == (4096, 649, True)
    assert sync.data.startswith(b"-number-17-")
    assert values.encode_snapshot_sync(sync) == entry.value


# ---- round trips ----

IDS = st.integers(-(2**31), 2**31 - 1)
NUMBERS = st.integers(0, NUMBER_MAX)
ENTRIES = st.builds(FarmLogEntry, NUMBERS, st.sampled_from(ValueType), st.binary(max_size=40))
REQUESTS = st.builds(
    Request,
    st.sampled_from(sorted(RESPONSE_TYPES)),
    *(IDS, IDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.lists(ENTRIES, max_size=4).map(tuple),
)
RESPONSES = st.builds(
    Response,
    st.sampled_from(sorted(RESPONSE_TYPES.values())),
    *(IDS, IDS, NUMBERS, NUMBERS, st.booleans()),
)
SERVERS = st.builds(ClusterServer, IDS, st.sampled_from([each.endpoint for each in MEMBERS]))
CONFIGURATIONS = st.builds(
    FarmConfiguration,
    *(NUMBERS, NUMBERS),
    st.lists(SERVERS, max_size=5, unique_by=lambda server: server.id).map(tuple),
)
LOGGED = st.builds(
    FarmLogEntry,
    NUMBERS,
    st.sampled_from((ValueType.APPLICATION, ValueType.CONFIGURATION)),
    st.binary(max_size=40),
)


@given(st.lists(REQUESTS, max_size=4), st.data())
def test_requests_of_a_stream(requests: list[Request], data: st.DataObject) -> None:
    """With any division into reads."""
    whole = b"".join(map(codec.encode_request, requests))
    stream, found, at = codec.RequestStream(), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        found += stream.feed(whole[at : at + size])
        at += size
    assert found == requests
    assert stream.partial == (0, codec.REQUEST_HEADER.size)


@given(st.lists(RESPONSES, max_size=4), st.integers(0, 104))
def test_responses_of_a_stream(responses: list[Response], cut: int) -> None:
    whole = b"".join(map(codec.encode_response, responses))
    stream = codec.ResponseStream()
    assert stream.feed(whole[:cut]) + stream.feed(whole[cut:]) == responses


@given(CONFIGURATIONS, NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=50), st.booleans())
def test_snapshots(
    configuration: FarmConfiguration, index: int, term: int, offset: int, data: bytes, done: bool
) -> None:
    sync = SnapshotSync(index, term, configuration, offset, data, done)
    assert values.decode_snapshot_sync(values.encode_snapshot_sync(sync)) == sync


@given(st.lists(LOGGED, min_size=1, max_size=8), st.integers(0, 2**40))
def test_log_packs(entries: list[FarmLogEntry], base: int) -> None:
    found = values.decode_log_pack(values.encode_log_pack(values.LogPack(tuple(entries), base)))
    assert found == (tuple(entries), base)
    behind = values.encode_log_pack(
        values.LogPack(tuple(entries), base + values.log_file_bytes(entries))
    )
    assert values.decode_log_pack(behind).base == base + 9 * len(entries) + sum(
        len(entry.value) for entry in entries
    )


# ---- malformed input ----


@given(st.binary(max_size=120))
def test_junk_raises_one_error(junk: bytes) -> None:
    for decode in (
        codec.decode_response,
        codec.decode_entries,
        codec.RequestStream().feed,
        codec.ResponseStream().feed,
        values.decode_cluster_server,
        values.decode_configuration,
        values.decode_server_id,
        values.decode_log_pack,
        values.decode_snapshot_sync,
    ):
        with suppress(RemoteProtocolError):
            decode(junk)


@given(st.sampled_from(sorted(WHOLE.values())), st.integers(0, 200), st.integers(0, 255))
def test_damage_raises_one_error(data: bytes, at: int, byte: int) -> None:
    damaged = bytearray(data)
    damaged[at % len(data)] = byte
    try:
        if data[0] not in codec.REQUEST_TYPES:
            codec.decode_response(bytes(damaged))
            return
        found = codec.RequestStream().feed(bytes(damaged))
        for entry in (entry for request in found for entry in request.entries):
            if entry.value_type is ValueType.LOG_PACK:
                values.decode_log_pack(entry.value)
            elif entry.value_type is ValueType.CONFIGURATION:
                values.decode_configuration(entry.value)
    except RemoteProtocolError:
        pass


def header(size: int, kind: int = 3, term: int = 1) -> bytes:
    return pack(">BiiqqqqI", kind, 1, 2, term, 0, 0, 0, size)


@pytest.mark.parametrize("size", [ENTRIES_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_size_is_judged_by_the_header(size: int) -> None:
    stream = codec.RequestStream()
    with pytest.raises(RemoteProtocolError, match="the limit is"):
        stream.feed(header(size))
    assert stream.partial == (0, codec.REQUEST_HEADER.size)


@pytest.mark.parametrize("kind", [0, 2, 4, 7, 9, 11, 13, 15, 17, 18, 255])
def test_no_request_has_such_a_type(kind: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"type {kind} is not a request"):
        codec.RequestStream().feed(header(0, kind))


@pytest.mark.parametrize("at", [9, 17, 25, 33])
def test_numbers_of_java_end_at_63_bits(at: int) -> None:
    data = bytearray(header(0))
    data[at] |= 0x80
    with pytest.raises(RemoteProtocolError, match="2\\*\\*63"):
        codec.RequestStream().feed(bytes(data))


def test_messages_in_front_of_a_malformed_one_go_with_it() -> None:
    stream = codec.RequestStream()
    good = codec.encode_request(Request(MessageType.APPEND_ENTRIES))
    with pytest.raises(RemoteProtocolError):
        stream.feed(good + header(0, 99))
    with pytest.raises(AssertionError):
        stream.feed(good)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (pack(">qBI", 1, 9, 0), "value type 9"),
        (pack(">qBI", -1, 1, 0), "2\\*\\*63"),
        (pack(">qBI", 1, 1, 5) + b"abcd", "but only 4"),
        (pack(">qBI", 1, 1, 2**31), "but only 0"),
        (b"12 bytes....", "12 bytes after"),
        (pack(">qBI", 1, 1, 0) * (2**16 + 1), "more than 65536"),
    ],
)
def test_entries_that_are_none(data: bytes, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error):
        codec.decode_entries(data)


def gzipped(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(data) + packer.flush()


LOGGED_ENTRY = pack(">qB", 2, 1) + b"value"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"no gzip", "not gzip"),
        (gzipped(b""), "of 0 bytes"),
        (gzipped(bytes(1000) * 1000)[:-5], "more than 4096"),
        (gzipped(pack(">II", 0, 0)), "0 bytes of index"),
        (gzipped(pack(">II", 7, 0) + bytes(7)), "7 bytes of index"),
        (gzipped(pack(">II", 2**31, 0)), "2147483648 bytes of index"),
        (gzipped(pack(">II", 8, 15) + bytes(8)), "of 16, not 31 bytes"),
        (gzipped(pack(">IIq", 8, 8, 0) + bytes(8)), "from 0 to 8"),
        (gzipped(pack(">IIqq", 16, 14, 0, 100) + LOGGED_ENTRY), "from 100 to 14"),
        (gzipped(pack(">IIqq", 16, 14, 14, 0) + LOGGED_ENTRY), "from 14 to 0"),
        (gzipped(pack(">IIq", 8, 14, -1) + LOGGED_ENTRY), "2\\*\\*63"),
        (gzipped(pack(">IIq", 8, 9, 0) + pack(">qB", 2, 4)), "type 4"),
        (gzipped(pack(">IIq", 8, 14, 0) + LOGGED_ENTRY + b"x"), "of 31, not 30 bytes"),
        (gzipped(pack(">IIq", 8, 14, 0) + LOGGED_ENTRY)[:-1], "is cut off or has trailing"),
        (gzipped(pack(">IIq", 8, 14, 0) + LOGGED_ENTRY) * 2, "is cut off or has trailing"),
    ],
)
def test_log_packs_that_are_none(data: bytes, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error):
        values.decode_log_pack(data, 4096)


def server(endpoint: bytes) -> bytes:
    return pack(">iI", 1, len(endpoint)) + endpoint


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (server(b"tcp://a"), "no host and port"),
        (server(b"tcp://:9"), "no host and port"),
        (server(b"tcp://a:0"), "a port outside"),
        (server(b"tcp://a:65536"), "a port outside"),
        (server(b"tcp://a:000000001"), "no host and port"),
    ],
)
def test_servers_that_are_none(value: bytes, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error):
        values.decode_cluster_server(value)
    with pytest.raises(RemoteProtocolError, match=error):
        values.decode_configuration(pack(">qq", 1, 0) + value)


def test_configurations_that_are_none() -> None:
    one = server(b"tcp://a:1")
    for value, error in (
        (pack(">qq", -1, 0), "2\\*\\*63"),
        (pack(">qq", 1, 0) + one + one, "server 1 twice"),
        (
            pack(">qq", 1, 0)
            + b"".join(pack(">iI", n, 9) + b"tcp://a:1" for n in range(SERVERS_MAX + 1)),
            "more than 64",
        ),
    ):
        with pytest.raises(RemoteProtocolError, match=error):
            values.decode_configuration(value)


def test_endpoints() -> None:
    assert values.parse_address("tcp://localhost:9001") == ("localhost", 9001)
    assert values.parse_address("ssl://[::1]:9001/") == ("::1", 9001)
    assert values.parse_address("127.0.0.1:9001") == ("127.0.0.1", 9001)


@pytest.mark.parametrize(
    "encode",
    [
        lambda: codec.encode_request(Request(MessageType.APPEND_ENTRIES, term=2**63)),
        lambda: codec.encode_request(Request(MessageType.APPEND_ENTRIES, source=2**31)),
        lambda: codec.encode_response(
            Response(MessageType.SYNC_LOG_RESPONSE, 1, 2, 3, next_index=-1, is_accepted=True)
        ),
        lambda: values.encode_cluster_server(ClusterServer(1, "tcp://bücher:1")),
        lambda: values.encode_cluster_server(ClusterServer(1, "tcp://" + "a" * 1024)),
        lambda: values.encode_log_pack(values.LogPack((), 0)),
    ],
)
def test_what_the_wire_can_not_carry(encode: Callable[[], bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        encode()
