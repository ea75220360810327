"""What all methods of kelek.Table and kelek.AsyncTable need, and those that concern a whole table.

The others are in reads.py, writes.py and jobs.py.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ...net.client_keys import ServerKeys
from ...net.clock import monotonic_ms
from ...net.links import LinkLimits
from ...protocols.errors import RemoteProtocolError
from ...protocols.failover.limits import NEVER_MS
from ...protocols.failover.servers import Failover
from ...protocols.zerodb.client.client import (
    Exchange,
    ServerInfo,
    TableClientMachine,
    TableClientSetup,
)
from ...protocols.zerodb.wire import answers, requests, values
from ...protocols.zerodb.wire.answers import Answer, AnswerLayout
from ...protocols.zerodb.wire.catalogue import (
    NAME_KEYS,
    NameChange,
    NameExchange,
    SchemaChange,
    decode_names,
    decode_number,
    name_key,
    number_key,
    schema_key,
)
from ...protocols.zerodb.wire.requests import Request
from ...protocols.zerodb.wire.values import (
    CATALOGUE_TABLE,
    NO_TABLE,
    OWNER_BYTES,
    PACKED,
    PARTSYNC,
    STALE,
    Extension,
    TableOptions,
)
from ...protocols.zre import services
from ..errors import (
    SessionEnded,
    TableError,
    TableJobLost,
    TableNameConflict,
    TableNotAllowed,
    TableRefused,
    TableTimeout,
    TableUnavailable,
    TableUnsupported,
)
from ..io.driver import ClientBase
from ..io.keys import KeyArguments, KeyPath
from ..io.links import Links, LinkSettings
from ..io.operations import Operation, Sleep, Wait, operation
from ..io.reqids import new_reqid
from ..io.urls import check_url, resolve_urls
from .arguments import (
    Data,
    behind_prefix,
    checked_name,
    checked_number,
    checked_options,
    checked_range,
    checked_table,
    checked_value,
    milliseconds,
    sync_flags,
)
from .batch import Batch
from .codecs import codec_of
from .names import catalogue_values, change_catalogue, change_names, find_number, make_number
from .pages import pairs_of

T = TypeVar("T")

DEFAULT_OPTIONS = TableOptions()
REFUSALS: Mapping[int, type[TableRefused]] = {
    values.SESSION_ENDED: SessionEnded,
    values.NOT_ALLOWED: TableNotAllowed,
}
TIMEOUT_MS = 30_000
# What not all members may know yet is tried so long while they say what they know.
OPENING_MS, OPENING_POLL_MS = 2000, 50
NAMES_A_PAGE = 1000
NAMES_END = behind_prefix(NAME_KEYS)
# The largest response that a topology allows, and any number of small values.
TABLE_LINKS = LinkSettings(LinkLimits(1 << 30, 1 << 18), columnar_frames_min=1 << 8)


class TableTuning(NamedTuple):
    """Limits and times of a Table.

    requests_max   outstanding requests
    bytes_max      bytes of outstanding requests
    silence_ms     the client switches to another server when this one is silent for so long
    owner          the token of a reserved table, 16 bytes; b"": none
    reach_ms       a call fails after so long, instead of its timeout, while no url was ever
                   reachable; None: such a call waits
    """

    requests_max: int = 64
    bytes_max: int = 32 << 20
    silence_ms: int = 1000
    owner: bytes = b""
    reach_ms: int | None = None


def make_client(
    urls: str | Iterable[str], tuning: TableTuning | None, keys: KeyArguments | None = None
) -> TableClientMachine:
    """The protocol machine of a Table. Raises ValueError, TypeError, KeyUnusable."""
    known = resolve_urls(urls, services.TABLES, keys)
    if not known:
        raise ValueError("a Table needs the url of a node")
    for url in known:
        check_url(url)
    requests_max, bytes_max, silence_ms, owner, reach_ms = tuning or TableTuning()
    if len(owner) not in (0, OWNER_BYTES):
        raise ValueError(f"an owner's token has {OWNER_BYTES} bytes, not {len(owner)}")
    return TableClientMachine(
        TableClientSetup(
            known,
            requests_max,
            bytes_max,
            silence_ms,
            owner=owner,
            notice=True,
            reach_ms=reach_ms,
        )
    )


class TableOperations(ClientBase):
    """Requests of one Table over its protocol machine."""

    def __init__(
        self,
        urls: str | Iterable[str],
        number: int | str = 0,
        *,
        timeout_ms: int = TIMEOUT_MS,
        sync: str = "partsync",
        stale: bool = False,
        codec: Any = None,
        tuning: TableTuning | None = None,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        arguments = KeyArguments(key, server_keys)
        self._client = make_client(urls, tuning, arguments)
        self._use(checked_table(number))
        self._naming: deque[object] = deque()  # Calls that wait for the number of the name.
        self._write_flags = sync_flags(sync)
        self._read_flags = PACKED | STALE if stale else PACKED
        self.codec = None if codec is None else codec_of(codec)
        self._own_jobs: dict[int, str] = {}  # APID -> url: each server numbers its own jobs.
        keys = arguments.load(self._client.setup.urls)
        self._own(partial(Links, self._client, TABLE_LINKS._replace(keys=keys)))

    # ---- the table ----

    @operation
    def open(
        self, options: TableOptions = DEFAULT_OPTIONS, *, versions: bool = False
    ) -> Operation[None]:
        """Creates the table with these options. An existing table keeps its
        own.

        versions   the table keeps of each key the LOG INDEX of its last change
                   and the number of its changes: get_entry() reads them, and
                   conditions of a batch compare them. It has no keys yet

        Raises TableRefused when the table has keys and keeps no versions, and
        TableUnsupported when not all nodes know versions. In a cluster that has
        just begun all soon do, so it is tried for 2 s.
        """
        checked_options(options)
        yield from self._ensure()
        until_ms = monotonic_ms() + OPENING_MS
        while True:
            if versions:
                yield from self._check_feature(values.FEATURE_VERSIONS, "keep versions of keys")
            try:
                yield from self._ask(requests.open_table(self._number, options, versions))
                return
            except TableRefused as error:
                if values.VERSIONS_UNKNOWN not in error.text:
                    raise
                if monotonic_ms() >= until_ms:
                    raise TableUnsupported(error.text) from None
            yield Sleep(OPENING_POLL_MS)

    @operation
    def unload(self) -> Operation[None]:
        """Makes the node write the table's memory to disk. The next request
        reopens the table."""
        if (yield from self._find()):
            yield from self._ask(requests.CloseTable(self._number))

    @operation
    def truncate(self) -> Operation[None]:
        """Deletes all pairs and the table's options; its schema stays. The next
        open() or put() creates it anew."""
        self._flush()
        if (yield from self._find()):
            yield from self._ask(requests.TruncateTable(self._number))

    @operation
    def compact(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> Operation[None]:
        """Makes the node that answers rewrite a range, which frees the space of
        deleted keys."""
        asked = checked_range(prefix, start, end)
        if not asked.empty and (yield from self._find()):
            yield from self._ask(requests.CompactTable(self._number, asked.start, asked.last))

    @operation
    def info(
        self,
        *,
        content: bool = False,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> Operation[dict[str, Any] | None]:
        """Properties of the table on the node that answers, by name; None: it
        does not exist.

        content   include a hash of all keys and values, for which the node
                  reads them all. Nodes that have applied the same entries have
                  the same hash
        prefix, start, end   include `range_keys` and `range_bytes`: how many
                             keys a range has, and their bytes with the values.
                             In a table above 64 MiB no row is read for that: it
                             is an estimate, and the bytes are those on the disk

        Raises TableUnsupported when the server does not know ranges.
        """
        if not (yield from self._find()):
            return None
        stale = Extension(self._read_flags & STALE)
        asked = checked_range(prefix, start, end)
        request = requests.TableInfo(self._number, content, *asked, stale)
        found = (yield from self._fetch(request, answers.TABLE_INFO)).get(self._number)
        if found is not None and any(asked) and "range_keys" not in found:
            raise TableUnsupported("the server does not tell the size of a range; count() reads it")
        return found

    @operation
    def tables(self) -> Operation[dict[int, dict[str, Any]]]:
        """As info(), for all tables, by number; the name, too, if this client
        may read names."""
        stale = Extension(self._read_flags & STALE)
        found = yield from self._fetch(requests.TableInfo(extension=stale), answers.TABLE_INFO)
        with suppress(TableNotAllowed):
            for name, number in (yield from TableOperations.names(self)).items():
                if number in found:
                    found[number]["name"] = name
        return found

    @operation
    def split_points(
        self, parts: int, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> Operation[list[bytes]]:
        """At most parts - 1 keys that divide a range into parts of about equal
        size."""
        asked = checked_range(prefix, start, end)
        checked_number("parts", parts, 1, values.SPLIT_POINTS_MAX)
        yield from self._find()
        request = requests.SplitPoints(self._number, parts, *asked)
        return (yield from self._fetch(request, answers.SPLIT_POINTS))

    @operation
    def server(self) -> Operation[ServerInfo]:
        """The server that this client uses: url, features, name and version."""
        return self._served()

    def _served(self) -> Operation[ServerInfo]:
        self._client.server_waits += 1
        try:
            yield Wait(lambda: self._client.server is not None)
        finally:
            self._client.server_waits -= 1
        assert self._client.server is not None
        return self._client.server

    @property
    def name(self) -> str | None:
        """The name by which the table was opened; None: by its number."""
        return self._name or None

    @property
    def number(self) -> int:
        """The table's number. Raises TableError while that of a name is not
        known: locate() finds it, as every other method does."""
        if self._number == NO_TABLE:
            raise TableError(f"the number of table {self._name} is not known yet")
        return self._number

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events: searches, servers, again, silent, junk, strays."""
        return dict(self._client.counters)

    def _use(self, table: int | str) -> None:
        """Further calls are for another table, over the same connection. Its name and schema are
        looked up anew."""
        self._name = table if isinstance(table, str) else ""
        self._number = NO_TABLE if isinstance(table, str) else table
        self._schema: Any = None  # A TableSchema, once it is known.

    # ---- names ----

    @operation
    def locate(self, *, create: bool = False) -> Operation[int | None]:
        """The table's number; None: nothing was stored under its name yet.

        create   give the name a number
        """
        if create:
            yield from self._ensure()
        found = yield from self._find()
        return self._number if found else None

    @operation
    def names(self) -> Operation[dict[str, int]]:
        """The names of all tables of the cluster, and their numbers."""
        found: dict[str, int] = {}
        start = NAME_KEYS
        while start:
            page = requests.Scan(CATALOGUE_TABLE, NAMES_A_PAGE, start, NAMES_END, Extension(PACKED))
            exchange, answer = yield from self._ask(page)
            assert isinstance(exchange.sent, requests.Scan)
            pairs, _, start = decoded(pairs_of, answer, exchange.sent)
            found |= decode_names(pairs)
        return found

    @operation
    def rename(self, name: str) -> Operation[None]:
        """Gives the table another name, or a numbered one its first. Its number
        stays, so those who have it open are not disturbed.

        Raises TableNameConflict when another table has the name, or none has
        this one's.
        """
        after = checked_name(name)
        if not (yield from self._find()):
            raise TableNameConflict(f"no table has the name {self._name}")
        while True:
            number = self._number
            data = yield from catalogue_values(self, [number_key(number), name_key(after)])
            before = (data[0] or b"").decode()
            if data[1] is not None and before != after:
                raise TableNameConflict(f"another table has the name {after}")
            if before == after or (
                yield from change_names(self, NameChange(number, before, after))
            ):
                self._name = after
                return

    @operation
    def exchange(self, name: str) -> Operation[None]:
        """Gives the table the name of another table, and that one this one's,
        in one step. Schemas stay with the rows.

        Clients that have a table open keep its rows, under whatever name: they
        open it again to follow the name. Raises TableNameConflict when one of
        the names has no table, or changes meanwhile, and TableUnsupported.
        """
        after = checked_name(name)
        if not (yield from self._find()):
            raise TableNameConflict(f"no table has the name {self._name}")
        number = self._number
        keys = [number_key(number), name_key(after)]
        before, data = yield from catalogue_values(self, keys)
        other = decode_number(data)
        if not before or other is None or other == number:
            which = after if before else number
            raise TableNameConflict(f"no other table has the name {which}")
        change = NameExchange(number, before.decode(), other, after)
        if not (yield from change_names(self, change)):
            raise TableNameConflict(f"the name {after} or {before.decode()} has moved")
        self._name = after

    @operation
    def drop(self) -> Operation[bool]:
        """Deletes all pairs, the options, the schema and the name; False: no
        table has the name.

        The number is never used for another name. Stop the writers before: one
        that has the table open would fill a table without a name.
        """
        self._flush()
        if not (yield from self._find()):
            return False
        number = self._number
        keys = [number_key(number), schema_key(number)]
        while True:
            before, schema = yield from catalogue_values(self, keys)
            if not before:
                break
            if schema:
                removal = SchemaChange(number, before.decode(), schema)
                yield from change_catalogue(self, removal)
            elif (yield from change_names(self, NameChange(number, before.decode()))):
                break
        self._schema = None
        yield from self._ask(requests.TruncateTable(number))
        if self._name:
            self._number = NO_TABLE
        return True

    def _find(self) -> Operation[bool]:
        """Finds the number of a named table; False: it has none, and reads find an empty table."""
        if self._number == NO_TABLE and self._name:
            number = yield from find_number(self, self._name)
            if number is not None:
                self._number = number
        return self._number != NO_TABLE

    def _ensure(self) -> Operation[None]:
        """As _find(), and gives the name a number if it has none. Calls continue in their order."""
        if self._number != NO_TABLE and not self._naming:
            return
        turn = object()
        self._naming.append(turn)
        try:
            # Once the number is known all go on together, in their order.
            yield Wait(lambda: self._number != NO_TABLE or self._naming[0] is turn)
            while self._naming[0] is not turn:
                yield Wait(lambda: self._naming[0] is turn)
            if self._number == NO_TABLE and self._name:
                self._number = yield from make_number(self, self._name)
        finally:
            self._naming.remove(turn)

    def _number_of(self, table: int | str) -> Operation[int]:
        """The number of a table, maybe another one. A name gets one if it has none."""
        if isinstance(table, int):
            return table
        if table != self._name:
            return (yield from make_number(self, table))
        yield from self._ensure()
        return self._number

    def _commit(self, batch: Batch) -> Operation[answers.TransactionResult]:
        """Applies a batch, and returns the values of its gets as they are stored. Raises
        TableUnsupported: nothing was done, as it increments or appends and not all nodes know it.
        """
        return (yield from self._finish_transaction((yield from self._begin_commit(batch))))

    def _begin_commit(self, batch: Batch, flags: int = 0) -> Operation[Exchange]:
        """Sends a batch, with these flags of the extension."""
        if batch.is_gated:
            yield from self._check_sums()
        if batch.compares_versions:
            yield from self._check_feature(values.FEATURE_VERSIONS, "keep versions of keys")
        lease = checked_number("a session", batch.session)
        extension = Extension(flags, ttl_ms=milliseconds(batch.ttl_s), lease=lease)
        numbers = {}
        for name in batch.names():
            numbers[name] = yield from self._number_of(name)
        parts = batch.parts(numbers)
        request = requests.Transaction(*parts, self._write_flags or PARTSYNC, extension)
        self._flush()
        return self._begin(request)

    def _finish_transaction(self, exchange: Exchange) -> Operation[answers.TransactionResult]:
        """Waits for the answer. Raises TableUnsupported as _commit() does."""
        try:
            answer = yield from self._finish(exchange)
        except TableRefused as error:
            if not any(it in error.text for it in (values.SUMS_UNKNOWN, values.VERSIONS_UNKNOWN)):
                raise
            raise TableUnsupported(error.text) from None
        return decoded(answers.TRANSACTION.decode, answer, exchange.sent)

    def _check_sums(self) -> Operation[None]:
        """Raises TableUnsupported when the server does not know increments and appends."""
        return self._check_feature(values.FEATURE_SUMS, "increment or append")

    def _check_feature(self, feature: int, what: str) -> Operation[None]:
        """Raises TableUnsupported when the server does not know it."""
        server = yield from self._served()
        if not server.features & feature:
            raise TableUnsupported(f"the server at {server.url} does not {what}")

    @property
    def _knows_sums(self) -> bool:
        """Whether the server is known, and knows increments and appends."""
        server = self._client.server
        return server is not None and bool(server.features & values.FEATURE_SUMS)

    # ---- values ----

    def _stored(self, value: Any) -> bytes:
        """The bytes of a value that a caller gives. Raises TypeError, TableTooLarge."""
        return checked_value(value if self.codec is None else self.codec.encode(value))

    def _value(self, data: bytes | None) -> Any:
        """A stored value as the caller wants it; None: the key does not exist."""
        return data if self.codec is None or data is None else self.codec.decode(data)

    def _values(self, found: list[bytes | None]) -> list[Any]:
        return found if self.codec is None else [self._value(data) for data in found]

    def _key(self, key: bytes) -> Any:
        """A stored key as the caller wants it: with a codec it is a str."""
        return key if self.codec is None else key.decode()

    # ---- requests ----

    def _flush(self) -> None:
        """Sends the writes that were collected before (AsyncTable)."""

    def _begin(self, request: Request, bound: str = "", limited: bool = True) -> Exchange:
        """Sends a request."""
        deadline_ms = monotonic_ms() + self.timeout_ms if limited else NEVER_MS
        return self._client.add(Exchange(request, new_reqid(), deadline_ms, bound))

    def _finish(self, exchange: Exchange) -> Operation[Answer]:
        """Waits for the answer.

        Raises TableRefused, SessionEnded, TableNotAllowed, TableUnsupported, TableJobLost.
        """
        yield from self._wait(exchange)
        return self._answer(exchange)

    def _wait(
        self, exchange: Exchange, limited: bool = True, until_ms: int = NEVER_MS
    ) -> Operation[None]:
        try:
            yield Wait(lambda: exchange.done, limited, until_ms)
        finally:
            self._client.drop(exchange)

    def _answer(self, exchange: Exchange) -> Answer:
        if exchange.refusal:
            raise (TableJobLost if exchange.bound else TableUnsupported)(exchange.refusal)
        answer = exchange.answer
        assert answer is not None
        if not answer.failed:
            return answer
        if answer.retry:  # It came when the time was over.
            raise self._not_done((exchange.url,), answer.text)
        raise REFUSALS.get(answer.code, TableRefused)(answer.code, answer.text)

    def _ask(self, request: Request, bound: str = "") -> Operation[tuple[Exchange, Answer]]:
        exchange = self._begin(request, bound)
        return exchange, (yield from self._finish(exchange))

    def _fetch(self, request: Request, layout: AnswerLayout[T], bound: str = "") -> Operation[T]:
        """Asks, and decodes the answer."""
        exchange, answer = yield from self._ask(request, bound)
        return decoded(layout.decode, answer, exchange.sent)

    def _closed_error(self) -> TableError:
        return TableError(f"this {type(self).__name__} is closed")

    @property
    def _search(self) -> Failover[Any]:
        return self._client.failover

    def _timeout_error(self) -> TableTimeout:
        client, timeout_ms = self._client, self.timeout_ms
        if client.reason:
            urls = client.setup.urls if client.server is None else (client.server.url,)
            return self._not_done(urls, client.reason)
        if client.server is None:
            error = TableUnavailable(client.failover.explain(timeout_ms))
            error._is_silent = client.failover.is_silent
            return error
        return TableTimeout(f"the server at {client.server.url} gave no answer for {timeout_ms} ms")

    def _not_done(self, urls: Iterable[str], reason: str) -> TableTimeout:
        text = f"not done in {self.timeout_ms} ms by {', '.join(urls)}: {reason}"
        return TableTimeout(text, reason)


def decoded(decode: Callable[..., T], *arguments: object) -> T:
    try:
        return decode(*arguments)
    except RemoteProtocolError as error:
        raise TableError(f"the server sent a malformed answer: {error}") from error
