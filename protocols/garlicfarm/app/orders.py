"""Orders of administrators in the log: who publishes, what is excluded, and the farm's settings.

An order is a JSON object whose bytes begin with ORDER_PREFIX, which excludes status documents and
other entries cheaply. The leader checks the user when it accepts an order. JRaft's servers store it
like any entry.
"""

import json
from base64 import b32decode, b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ..wire.messages import ID_MAX, ID_MIN, NUMBER_MAX
from .documents import encode_checked, load_object, number_of, object_of

ORDER_PREFIX = b'{"admin":'
ORDER_BYTES_MAX = 256 << 10
ORDERS_MAX = 64  # Per request.
AUDIT_CHARACTERS_MAX = 2000  # Of an order's text in an audit line.
EXCLUDED_HASHES_MAX = 4096  # Excluded destinations.
HASH_CHARACTERS_MAX = 128
EXCLUDED_SERVERS_MAX = 256
SETTINGS_BYTES_MAX = 64 << 10
EXPORT_VERSION = 1
INTERVAL_MS_MIN = 1000
INTERVAL_MS_MAX = 24 * 3600 * 1000
HASH_BYTES = 32
DESTINATION_BYTES_MIN = 387  # Two keys and a null certificate.
_ALPHABET = b"-~"  # I2P's base64 characters instead of + and /.


class OrderKind(StrEnum):
    """The value under "admin"."""

    PUBLISH = "publish"
    EXCLUDE = "exclude"
    INCLUDE = "include"
    IMPORT = "import"


class PublishChoice(StrEnum):
    """The publisher, when no server is named."""

    AUTO = "auto"  # The rule chooses.
    NONE = "none"  # No server publishes; null in JSON.


class FarmConfig(NamedTuple):
    """What administrators have set for a farm, as exported and imported.

    servers            id and endpoint of each member; an import ignores them
    publish            a server's id, or a PublishChoice
    hashes             destinations excluded from the MetaLS
    excluded_servers   servers that do not publish, and whose destinations are excluded
    settings           postingInterval and window in ms, and other settings of the farm's users
    """

    cluster: str
    servers: tuple[tuple[int, str], ...] = ()
    publish: int | PublishChoice = PublishChoice.AUTO
    hashes: tuple[str, ...] = ()
    excluded_servers: tuple[int, ...] = ()
    settings: Mapping[str, object] = {}


class Order(NamedTuple):
    """One order. The last four fields depend on its kind."""

    kind: OrderKind
    cluster: str
    date_ms: int  # Since the epoch, by the administrator's clock; informative.
    user: str  # The user of the handshake.
    publish: int | PublishChoice = PublishChoice.AUTO
    hashes: tuple[str, ...] = ()
    servers: tuple[int, ...] = ()
    configuration: FarmConfig = FarmConfig("")

    def __str__(self) -> str:
        if self.kind is OrderKind.PUBLISH:
            return f"publish {self.publish}"
        servers = [f"server {each}" for each in self.servers]
        return f"{self.kind} {', '.join((*servers, *self.hashes))}"


def encode_order(order: Order) -> bytes:
    """Encodes an order as an entry's value; decode_order() has the keys.

    Raises LocalProtocolError if it is not valid.
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
            body["configuration"] = export_document(order.configuration)
        case _:
            body.update(hashes=order.hashes, servers=order.servers)
    return encode_checked("order", body, decode_order)


def decode_order(data: bytes) -> Order:
    """Decodes an order.

    admin           publish, exclude, include or import; the first key, without a space before it
    cluster         the farm's name
    date            ms since the epoch
    user            the administrator
    server          publish: an id, null (no server), or "auto"
    hashes          exclude and include: array of strings from hash_of()
    servers         exclude and include: array of ids
    configuration   import: an object, see decode_export()

    Raises RemoteProtocolError on anything else.
    """
    if not data.startswith(ORDER_PREFIX):
        raise RemoteProtocolError("an order begins with its prefix")
    document = load_object(data, ORDER_BYTES_MAX)
    if document.get("admin") not in tuple(OrderKind):
        raise RemoteProtocolError("unknown kind of order")
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
    return {
        "version": EXPORT_VERSION,
        "cluster": export.cluster,
        "servers": [{"id": number, "endpoint": endpoint} for number, endpoint in export.servers],
        "publish": publish_value(export.publish),
        "excluded": {"hashes": list(export.hashes), "servers": list(export.excluded_servers)},
        "settings": dict(export.settings),
    }


def decode_export(document: Mapping[str, object]) -> FarmConfig:
    """Decodes an exported configuration; missing keys have the defaults of a new farm.

    version    1
    cluster    the farm that it was exported from
    servers    array of objects: id, endpoint
    publish    an id, null (no server), or "auto"
    excluded   object: hashes, servers
    settings   object: postingInterval (ms, 0: never), window (ms), and others

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
    return None if publish is PublishChoice.NONE else publish


def _publish_of(document: Mapping[str, object], key: str) -> int | PublishChoice:
    value = document.get(key, "")
    if value is None:
        return PublishChoice.NONE
    return (
        PublishChoice.AUTO
        if value == PublishChoice.AUTO
        else number_of(document, key, ID_MIN, ID_MAX)
    )


def _text(document: Mapping[str, object], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise RemoteProtocolError(f"{key} of an order must be a name")
    return value


def _array(document: Mapping[str, object], key: str, count_max: int) -> list[object]:
    value = document.get(key, [])
    if not isinstance(value, list) or len(value) > count_max:
        raise RemoteProtocolError(f"{key} of an order must be an array of at most {count_max}")
    return value


def _hashes(document: Mapping[str, object]) -> tuple[str, ...]:
    hashes = []
    for value in _array(document, "hashes", EXCLUDED_HASHES_MAX):
        if not isinstance(value, str) or not 0 < len(value) <= HASH_CHARACTERS_MAX:
            raise RemoteProtocolError(f"a hash must have 1 to {HASH_CHARACTERS_MAX} characters")
        if not value.isascii() or not value.isprintable():
            raise RemoteProtocolError("a hash must be printable ASCII")
        hashes.append(value)
    return tuple(hashes)


def _ids(document: Mapping[str, object], count_max: int) -> tuple[int, ...]:
    values = _array(document, "servers", count_max)
    return tuple(number_of({"id": value}, "id", ID_MIN, ID_MAX) for value in values)


def _servers(document: Mapping[str, object]) -> tuple[tuple[int, str], ...]:
    found = []
    for value in _array(document, "servers", EXCLUDED_SERVERS_MAX):
        if not isinstance(value, dict):
            raise RemoteProtocolError("a server must be an object")
        found.append((number_of(value, "id", ID_MIN, ID_MAX), _text(value, "endpoint")))
    return tuple(found)


def _settings(settings: dict[str, object]) -> dict[str, object]:
    number_of({"window": 1, **settings}, "window", 1, NUMBER_MAX)
    known = {"postingInterval": 0, **settings}
    if 0 < number_of(known, "postingInterval", 0, INTERVAL_MS_MAX) < INTERVAL_MS_MIN:
        raise RemoteProtocolError(f"postingInterval must be 0, or at least {INTERVAL_MS_MIN}")
    size = len(json.dumps(settings))
    if size > SETTINGS_BYTES_MAX:
        raise RemoteProtocolError(f"settings of {size} characters, at most {SETTINGS_BYTES_MAX}")
    return settings


def hash_of(text: str) -> str | None:
    """The hash of a destination in I2P's base64, from the destination (base64), its hash
    (base64), or HASH.b32.i2p. None if the text is none of these.
    """
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
    """A decision about a user's request, for the server's log."""

    user: str
    what: str
    is_accepted: bool
    address: str = ""


def audit_orders(values: Sequence[bytes], cluster: str, user: str, is_admin: bool) -> list[Audit]:
    """The orders among a request's entries, and whether each is allowed: the user must be an
    administrator, and the order must name this user and this farm.

    user   the user of the handshake; "" without a handshake, where users are unknown
    """
    orders = [value for value in values if value.startswith(ORDER_PREFIX)]
    if len(orders) > ORDERS_MAX:
        what = f"{len(orders)} orders in one request, the limit is {ORDERS_MAX}"
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
            # The farm's log has the full text.
            what = f"{order.kind}, {len(value)} bytes, sha256 {sha256(value).hexdigest()}"
        found.append(Audit(user, what, is_admin and is_right))
    return found
