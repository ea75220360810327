"""Strategies for every request of ZeroDB."""

from itertools import chain
from typing import Any

from hypothesis import strategies as st

from kelek.protocols.wire import Frame, Rest
from kelek.protocols.zerodb.wire import answers, columns, ops, requests, values
from kelek.protocols.zerodb.wire.requests import LAYOUTS, RequestLayout, encode_request
from kelek.protocols.zerodb.wire.values import NO_EXTENSION, Extension, TableOptions
from kelek.tests.protocols import layouts

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
KEY = st.binary(min_size=1, max_size=12)
VALUE = st.binary(max_size=12)
BOUND = st.binary(max_size=8)
KEYS = st.lists(KEY, max_size=4)
PAIRS = st.lists(st.tuples(KEY, VALUE), max_size=4)
WRITE_FLAGS = st.integers(0, 3)
REQID = st.binary(min_size=12, max_size=12)
OWNER = st.just(b"") | st.just(b"a token, and a 0\0"[-16:])
EXTENSION = st.one_of(
    st.just(NO_EXTENSION),
    st.builds(
        Extension, st.integers(0, 255), U32, REQID, st.just(0), st.just(0), st.just(0), OWNER
    ),
    st.builds(
        Extension,
        st.integers(0, 255),
        U32,
        REQID,
        U32,
        st.integers(0, values.TTL_MS_MAX),
        U64,
        OWNER,
    ),
).filter(lambda extension: extension == NO_EXTENSION or extension != Extension(reqid=bytes(12)))


def split(pairs: list[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    return [key for key, _ in pairs], [value for _, value in pairs]


PART = st.one_of(
    st.builds(lambda table, pairs: ops.Put(table, *split(pairs)), U32, PAIRS),
    st.builds(ops.Delete, U32, KEYS),
)
COMPARE = st.one_of(
    st.builds(ops.Compare, U32, KEY, st.integers(0, 5), VALUE),
    st.builds(ops.Compare, U32, st.binary(min_size=8, max_size=8), st.just(ops.ALIVE), VALUE),
    st.builds(ops.Compare, U32, KEY, st.integers(7, 8), st.binary(min_size=8, max_size=8)),
)
STEP = st.one_of(
    st.builds(lambda table, key, value: ops.Put(table, [key], [value]), U32, KEY, VALUE),
    st.builds(lambda table, key: ops.Delete(table, [key]), U32, KEY),
    st.builds(lambda table, key: ops.Get(table, [key]), U32, KEY),
    st.builds(ops.DeleteRange, U32, BOUND, BOUND),
    st.builds(ops.GetRange, U32, BOUND, BOUND, U64),
    st.builds(lambda table, key, value: ops.Append(table, [key], [value]), U32, KEY, VALUE),
    st.builds(
        lambda table, key, by: ops.Increment(table, [key], [b"%d" % by]), U32, KEY, st.integers()
    ),
)
STEPS = st.lists(STEP, max_size=3)
# Values of the fields of requests.
FIELDS: dict[object, st.SearchStrategy[Any]] = {
    "extension": EXTENSION,
    ("flags", "extension"): st.tuples(WRITE_FLAGS, EXTENSION),
    "table": U32,
    "source": U32,
    "target": U32,
    "start": BOUND,
    "end": BOUND,
    "keys": KEYS,
    ("keys", "values"): PAIRS.map(split),
    "limit": U64,
    "from_index": U64,
    "content": st.booleans(),
    "session": U64,
    "ttl_ms": st.integers(1, values.TTL_MS_MAX),
    "lease": U64,
    "load": st.binary(min_size=values.LOAD_ID_BYTES, max_size=values.LOAD_ID_BYTES),
    "run": U64,
    "chunk": U32,
    "data": st.binary(min_size=1, max_size=20),
    "chunks": st.integers(1, values.BUILD_CHUNKS_MAX),
    "replaces": st.booleans(),
    "name": st.just("") | st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True),
    "apid": U64,
    "threads": st.integers(1, values.THREADS_MAX),
    "chunk_pairs": st.none() | st.integers(1, values.CHUNK_PAIRS_MAX),
    "running": st.booleans(),
    "most": st.integers(1, values.LISTED_JOBS_MAX),
    ("compares", "then", "otherwise"): st.tuples(st.lists(COMPARE, max_size=3), STEPS, STEPS),
    ("parameters", "mapper"): st.tuples(
        st.lists(st.tuples(KEY, VALUE), max_size=3), st.binary(min_size=1, max_size=20)
    ),
    **{
        field: st.integers(least, most)
        for field, (_, least, most) in zip(TableOptions._fields, values.OPTION_LIMITS, strict=False)
    },
}
# Fields whose name stands for something else in another request.
OTHER_FIELDS: dict[int, dict[object, st.SearchStrategy[Any]]] = {
    values.SCAN: {"limit": st.none() | U64},
    values.TABLE_INFO: {"table": st.none() | U32},
    values.SPLIT_POINTS: {"parts": st.integers(1, values.SPLIT_POINTS_MAX)},
    values.WRITE_TABLES: {"parts": st.lists(PART, max_size=3)},
}


def _requests(layout: RequestLayout) -> st.SearchStrategy[Any]:
    cases = () if layout.cases is None else layout.cases.cases
    parts = (*layout.parts, *(part for case in cases for part in case.parts))
    types = {
        part.type: {**FIELDS, **OTHER_FIELDS.get(layout.kind, {})}[part.field]
        for part in parts
        if isinstance(part, Frame | Rest)
    }
    return layouts.messages(layout, types)


_USUAL_WRITE = st.one_of(
    [_requests(layout) for layout in LAYOUTS if values.PUT <= layout.kind <= values.DELETE_LIMITED]
)
_BY_VALUE = {layout.value: _requests(layout) for layout in LAYOUTS}
_REQUEST = _USUAL_WRITE | st.one_of([*_BY_VALUE.values()])


# Of one table, most of them with all that servers pack without Python.
_TRANSACTION = st.builds(
    lambda table, parts, flags, extension: requests.Transaction(
        compares=[part._replace(table=table) for part in parts[0]],
        then=[part._replace(table=table) for part in parts[1]],
        otherwise=[part._replace(table=table) for part in parts[2]],
        flags=flags,
        extension=extension,
    ),
    U32,
    FIELDS["compares", "then", "otherwise"],
    WRITE_FLAGS,
    st.builds(Extension, st.integers(0, 255), U32, REQID, U32, st.just(0), st.just(0) | U64),
)


# Functions, because hypothesis prints the parts of strategies.
@st.composite
def request(draw: st.DrawFn, kind: type[Any] | None = None) -> Any:
    """Any request, or one of this class."""
    return draw(_REQUEST if kind is None else _BY_VALUE[kind])


@st.composite
def encoded(draw: st.DrawFn) -> list[bytes]:
    """The frames of any request."""
    return encode_request(draw(_REQUEST))


@st.composite
def usually(draw: st.DrawFn) -> list[bytes]:
    """The same; most of the requests are common writes, or transactions of one table."""
    return encode_request(draw(draw(st.sampled_from([_USUAL_WRITE, _TRANSACTION, _REQUEST]))))


@st.composite
def mutated(draw: st.DrawFn, frames: st.SearchStrategy[list[bytes]]) -> list[bytes]:
    """A message with some frames or bytes changed, or unchanged."""
    message = list(draw(frames))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(message) - 1)) if message else 0
        change = draw(st.integers(0, 5))
        if not message or change == 0:
            message.insert(place, draw(st.sampled_from([b"", b"\0" * 8, b"\x31\x01\x20\x01"])))
        elif change == 1:
            del message[place]
        elif change == 2:
            message[place] = message[place][: draw(st.integers(0, len(message[place])))]
        elif change == 3:
            message[place] += draw(st.binary(min_size=1, max_size=3))
        elif message[place]:
            data = bytearray(message[place])
            data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 0x6B, 0xFF]))
            message[place] = bytes(data)
    return message


def chunk(
    request: requests.ClientData, keys: list[bytes], found: list[bytes], flags: int
) -> list[bytes]:
    """A chunk of a range job, as job_server sends it."""
    pairs: list[bytes] = [*chain.from_iterable(zip(keys, found, strict=True))]
    if request.extension.flags & values.PACKED:
        pairs = [*columns.join(keys), *columns.join(found)]
    return [answers.encode_head(values.CLIENT_DATA, flags, request.extension), *pairs]
