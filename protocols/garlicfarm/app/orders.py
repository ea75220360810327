"""What an administrator says through the log: who publishes, what is left out, settings of a farm.

An order is a JSON object whose bytes begin with ORDER_PREFIX, so that no status is one, and that
other entries of the log cost nothing. Who may say it is checked where it is taken in; JRaft's
servers keep it like any other entry.
"""

import json
from base64 import b32decode, b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from ...errors import LocalProtocolError, RemoteProtocolError
from ..wire.messages import ID_MAX, ID_MIN, NUMBER_MAX
from .documents import load_object, number_of, object_of

ORDER_PREFIX = b'{"admin":'
ORDER_BYTES_MAX = 256 << 10
ORDERS_MAX = 64  # In one request.
AUDIT_CHARACTERS_MAX = 2000  # Of an order in a line of a log.
EXCLUDED_HASHES_MAX = 4096  # That are left out.
HASH_CHARACTERS_MAX = 128
EXCLUDED_SERVERS_MAX = 256
SETTINGS_BYTES_MAX = 64 << 10
EXPORT_VERSION = 1
INTERVAL_MS_MIN = 1000
INTERVAL_MS_MAX = 24 * 3600 * 1000
HASH_BYTES = 32
DESTINATION_BYTES_MIN = 387  # Two keys and a certificate of no kind.
_ALPHABET = b"-~"  # I2P's, in place of + and /.


class OrderKind(StrEnum):
    """What an order is about; the word under "admin"."""

    PUBLISH = "publish"
    EXCLUDE = "exclude"
    INCLUDE = "include"
    IMPORT = "import"


class PublishChoice(StrEnum):
    """Who publishes, when it is no certain server."""

    AUTO = "auto"  # Whom the rule finds.
    NOBODY = "nobody"  # null in JSON.


class FarmConfig(NamedTuple):
    """A farm's configuration, to be kept in a file or taken over by another farm.

    servers    id and endpoint of each member; who takes the rest over has members of its own
    publish    a server's id, or a Choice
    hashes     of destinations that are left out of the MetaLS
    left_out   servers that don't publish, and whose destinations are left out
    settings   postingInterval and window in ms, and whatever else the farm's users keep there
    """

    cluster: str
    servers: tuple[tuple[int, str], ...] = ()
    publish: int | PublishChoice = PublishChoice.AUTO
    hashes: tuple[str, ...] = ()
    excluded_servers: tuple[int, ...] = ()
    settings: Mapping[str, object] = {}


class Order(NamedTuple):
    """One order. Of the last four fields those count that belong to its kind."""

    kind: OrderKind
    cluster: str
    date_ms: int  # Since the epoch, by the administrator's clock: for people only.
    user: str  # As the handshake knows him.
    publish: int | PublishChoice = PublishChoice.AUTO
    hashes: tuple[str, ...] = ()
    servers: tuple[int, ...] = ()
    configuration: FarmConfig | None = None

    def __str__(self) -> str:
        match self.kind:
            case OrderKind.PUBLISH:
                return f"publish {self.publish}"
            case OrderKind.IMPORT:
                return "import"
            case _:
                servers = [f"server {each}" for each in self.servers]
                return f"{self.kind} {', '.join((*servers, *self.hashes))}"


def encode_order(order: Order) -> bytes:
    """An order as an entry of the log; the keys are under decode_order().

    Raises LocalProtocolError when it can't be one.
    """
    body: dict[str, object] = {
        "admin": order.kind.value,
        "cluster": order.cluster,
        "date": order.date_ms,
        "user": order.user,
    }
    match order.kind:
        case OrderKind.PUBLISH:
            body["server"] = publish_value(order.publish)
        case OrderKind.IMPORT:
            if order.configuration is None:
                raise LocalProtocolError("an import brings a configuration")
            body["configuration"] = export_document(order.configuration)
        case _:
            body.update(hashes=order.hashes, servers=order.servers)
    try:
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        decode_order(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"an order can't be JSON: {error}") from None
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None
    return data


def decode_order(data: bytes) -> Order:
    """Takes an order apart.

    admin           publish, exclude, include or import; the first key, without a space before it
    cluster         the farm's name
    date            ms since the epoch
    user            who says it
    server          of publish: an id, null (nobody), or "auto"
    hashes          of exclude and include: array of strings, as hash_of() makes them
    servers         of exclude and include: array of ids
    configuration   of import: an object, see decode_export()

    Raises RemoteProtocolError on anything else.
    """
    if not data.startswith(ORDER_PREFIX):
        raise RemoteProtocolError("an order begins with what it is")
    document = load_object(data, ORDER_BYTES_MAX)
    if document.get("admin") not in tuple(OrderKind):
        raise RemoteProtocolError("an order of no kind that is known")
    kind = OrderKind(str(document["admin"]))
    cluster, user = _text(document, "cluster"), _text(document, "user")
    order = Order(kind, cluster, number_of(document, "date", 0, NUMBER_MAX), user)
    match kind:
        case OrderKind.PUBLISH:
            return order._replace(publish=_publish_of(document, "server"))
        case OrderKind.IMPORT:
            return order._replace(configuration=decode_export(object_of(document, "configuration")))
        case _:
            return order._replace(
                hashes=_hashes(document), servers=_ids(document, EXCLUDED_SERVERS_MAX)
            )


def export_document(export: FarmConfig) -> dict[str, object]:
    """An export as JSON has it."""
    return {
        "version": EXPORT_VERSION,
        "cluster": export.cluster,
        "servers": [{"id": number, "endpoint": endpoint} for number, endpoint in export.servers],
        "publish": publish_value(export.publish),
        "excluded": {"hashes": list(export.hashes), "servers": list(export.excluded_servers)},
        "settings": dict(export.settings),
    }


def decode_export(document: Mapping[str, object]) -> FarmConfig:
    """Takes an exported configuration apart; what is missing is as in a new farm.

    version    1
    cluster    of the farm that it came from
    servers    array of objects: id, endpoint
    publish    an id, null (nobody), or "auto"
    excluded   object: hashes, servers
    settings   object: postingInterval (ms, 0: never), window (ms), and more

    Raises RemoteProtocolError on anything else.
    """
    number_of({"version": EXPORT_VERSION, **document}, "version", EXPORT_VERSION, EXPORT_VERSION)
    excluded = object_of(document, "excluded")
    return FarmConfig(
        _text({"cluster": "farm", **document}, "cluster"),
        _servers(document),
        _publish_of({"publish": PublishChoice.AUTO, **document}, "publish"),
        _hashes(excluded),
        _ids(excluded, EXCLUDED_SERVERS_MAX),
        _settings(object_of(document, "settings")),
    )


def publish_value(publish: int | PublishChoice) -> int | str | None:
    """Who publishes, as JSON has it."""
    return None if publish is PublishChoice.NOBODY else publish


def _publish_of(document: Mapping[str, object], key: str) -> int | PublishChoice:
    value = document.get(key, "")
    if value is None:
        return PublishChoice.NOBODY
    return (
        PublishChoice.AUTO
        if value == PublishChoice.AUTO
        else number_of(document, key, ID_MIN, ID_MAX)
    )


def _text(document: Mapping[str, object], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise RemoteProtocolError(f"{key} of an order is a name")
    return value


def _array(document: Mapping[str, object], key: str, count_max: int) -> list[object]:
    value = document.get(key, [])
    if not isinstance(value, list) or len(value) > count_max:
        raise RemoteProtocolError(f"{key} of an order is an array of at most {count_max}")
    return value


def _hashes(document: Mapping[str, object]) -> tuple[str, ...]:
    hashes = []
    for value in _array(document, "hashes", EXCLUDED_HASHES_MAX):
        if not isinstance(value, str) or not 0 < len(value) <= HASH_CHARACTERS_MAX:
            raise RemoteProtocolError("a hash is a short text")
        if not value.isascii() or not value.isprintable():
            raise RemoteProtocolError("a hash is ASCII")
        hashes.append(value)
    return tuple(hashes)


def _ids(document: Mapping[str, object], count_max: int) -> tuple[int, ...]:
    values = _array(document, "servers", count_max)
    return tuple(number_of({"id": value}, "id", ID_MIN, ID_MAX) for value in values)


def _servers(document: Mapping[str, object]) -> tuple[tuple[int, str], ...]:
    found = []
    for value in _array(document, "servers", EXCLUDED_SERVERS_MAX):
        if not isinstance(value, dict):
            raise RemoteProtocolError("a server is an object")
        found.append((number_of(value, "id", ID_MIN, ID_MAX), _text(value, "endpoint")))
    return tuple(found)


def _settings(settings: dict[str, object]) -> dict[str, object]:
    number_of({"window": 1, **settings}, "window", 1, NUMBER_MAX)
    known = {"postingInterval": 0, **settings}
    if 0 < number_of(known, "postingInterval", 0, INTERVAL_MS_MAX) < INTERVAL_MS_MIN:
        raise RemoteProtocolError(f"postingInterval is 0 or {INTERVAL_MS_MIN} and more")
    size = len(json.dumps(settings))
    if size > SETTINGS_BYTES_MAX:
        raise RemoteProtocolError(f"settings of {size} characters")
    return settings


def hash_of(text: str) -> str | None:
    """The hash of a destination in I2P's base64, however it is written: the destination itself
    (base64), its hash (base64), or HASH.b32.i2p. None when it is none of these."""
    name = text.removesuffix(".b32.i2p")
    try:
        if name != text:
            data = b32decode(name.upper() + "=" * (-len(name) % 8))
        else:
            padded = text + "=" * (-len(text) % 4)
            data = b64decode(padded.encode(), altchars=_ALPHABET, validate=True)
    except (BinasciiError, ValueError):
        return None
    if len(data) >= DESTINATION_BYTES_MIN:
        data = sha256(data).digest()
    return b64encode(data, altchars=_ALPHABET).decode() if len(data) == HASH_BYTES else None


class Audit(NamedTuple):
    """An administrator's wish, for the log of the server that heard it."""

    user: str
    what: str
    is_accepted: bool


def audit_orders(values: Sequence[bytes], cluster: str, user: str, is_admin: bool) -> list[Audit]:
    """The orders among entries that somebody wants to have in the log, and whether he may give
    each of them: he has to be an administrator, and to give it in his own name, to this farm.

    user   as the handshake knows him; empty where there is none, and nobody can be told apart
    """
    orders = [value for value in values if value.startswith(ORDER_PREFIX)]
    if len(orders) > ORDERS_MAX:
        what = f"{len(orders)} orders in one request, at most {ORDERS_MAX} are taken"
        return [Audit(user, what, False)]
    found = []
    for value in orders:
        try:
            order = decode_order(value)
        except RemoteProtocolError as error:
            found.append(Audit(user, f"malformed: {error}", False))
            continue
        is_right = order.cluster == cluster and user in ("", order.user)
        what = str(order)
        if order.kind is OrderKind.IMPORT or len(what) > AUDIT_CHARACTERS_MAX:
            # What it was shows in the log of the farm, or with whoever has kept it.
            what = f"{order.kind}, {len(value)} bytes, sha256 {sha256(value).hexdigest()}"
        found.append(Audit(user, what, is_admin and is_right))
    return found
