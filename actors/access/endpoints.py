"""Which keys the endpoints of a node serve, and what their messages need."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ...native.net.guard import MessageGuard
from ...net.access.keys import KeyDirectory, load_key
from ...net.sockets import CurveServer, ForeignBind, Socket, SocketOptions
from ...protocols.access.certificates import Certificate, decode_key
from ...protocols.access.grants import EVERYTHING, Right, parse_grants
from ...protocols.access.guards import broker_guard, log_guard, tables_guard
from ...protocols.access.zap import CURVE, NULL, AllowedKey, ProtectedEndpoint
from ...protocols.majordomo.values import Headers
from ..errors import OperatorError
from ..runtime.actor import Actor
from ..topology.security import FOREIGN, NodeSecurity
from ..topology.settings import NodeSettings
from .gate import AccessGate

FOREIGN_PEERS = "foreign peers"  # The name in logs of all that connect without CURVE.


class Endpoint(NamedTuple):
    """A key needs one of the rights to connect. guard: None: it may send everything."""

    serves: Right
    guard: Callable[[NodeSettings], MessageGuard] | None


def _log(_settings: NodeSettings, *, of_peers: bool = False) -> MessageGuard:
    return log_guard(of_peers)


def _tables(_settings: NodeSettings, *, unrouted: bool = False) -> MessageGuard:
    return tables_guard(unrouted)


def _broker(settings: NodeSettings) -> MessageGuard:
    return broker_guard(Headers.of(settings.broker))


_one_way = partial(_tables, unrouted=True)
_LOG = Right.LOG_READ | Right.LOG_APPEND | Right.OBSERVE | Right.ADMIN | Right.PEER
_TABLES = Right.TABLE_READ | Right.TABLE_WRITE | Right.JOBS | Right.OBSERVE | Right.ADMIN

# By the key of a node in the topology.
ENDPOINTS: Mapping[str, Endpoint] = {
    "url": Endpoint(_LOG, _log),
    "peer_url": Endpoint(Right.PEER | Right.INTERNAL, partial(_log, of_peers=True)),
    "broadcast_url": Endpoint(Right.LOG_READ, None),
    "zerodb.url": Endpoint(_TABLES, _tables),
    "zerodb.pull_url": Endpoint(Right.TABLE_WRITE, _one_way),
    "zerodb.sub_url": Endpoint(Right.TABLE_WRITE, _one_way),
    "zerodb.events_url": Endpoint(Right.OBSERVE, None),
    "zerodb.jobs_url": Endpoint(Right.JOBS | Right.OBSERVE | Right.ADMIN, _tables),
    "broker.clients_url": Endpoint(Right.CALL | Right.OBSERVE, _broker),
    "broker.workers_url": Endpoint(Right.WORK, _broker),
}


def open_gate(actor: Actor, security: NodeSecurity) -> AccessGate:
    """The gate of an actor. Raises OperatorError for a bad key file."""
    fixed = {
        decode_key(key): AllowedKey(name, EVERYTHING) for name, key in security.node_keys.items()
    }
    if security.foreign_grants:
        fixed[NULL] = AllowedKey(FOREIGN_PEERS, parse_grants(security.foreign_grants))
    place = actor.setup.places.get("security.allow", "security.allow")
    gate = AccessGate(actor, KeyDirectory(security.allow, place), {}, fixed)
    gate.on_refused = actor.report_connection
    gate.watch(actor.reload_keys)
    return gate


def bind_secured(actor: Actor, kind: int, key: str, options: SocketOptions) -> Socket:
    """Binds an endpoint of a node with security. key: of the node in the topology.

    Raises OperatorError: the address, the node's key, or a gate that does not refuse.
    """
    security, node = actor.settings.security, actor.settings.node
    assert security is not None
    (url,) = options.bind
    if key in security.insecure or not url.startswith("tcp://"):
        return actor.socket(kind, options)
    own, gate = own_access(actor, security)
    protected, domain = ENDPOINTS[key], f"{actor.setup.node}/{actor.setup.name}/{key}"
    guard = protected.guard(actor.settings) if protected.guard else None
    if guard is not None:
        guard.reports_only = not security.enforce
    serves = serves_of(actor.settings, key)
    gate.protect(domain, ProtectedEndpoint(CURVE, serves))
    gate.audits_keys |= key == _first_secured(security, node)
    curve = CurveServer(own.secret_key, domain, guard)
    options = options._replace(curve=curve, audit=guard)
    foreign = foreign_url(node, key)
    if foreign:
        gate.protect(f"{domain}/foreign", ProtectedEndpoint(NULL, serves, NULL))
        options = options._replace(foreign=ForeignBind(foreign, f"{domain}/foreign"))
    socket = actor.socket(kind, options)
    gate.check(kind, url, own.public_key, options.place)
    return socket


def own_access(actor: Actor, security: NodeSecurity) -> tuple[Certificate, AccessGate]:
    """The key of an actor's node, and the actor's gate. Raises OperatorError for bad key files."""
    if actor.access is None:
        actor.access = open_gate(actor, security)
    place = actor.setup.places.get("key_file", f"nodes.{actor.setup.node}.key_file")
    own = load_key(security.key_file, place)
    if own.public_key != decode_key(actor.settings.node.server_key):
        problem = f"{security.key_file} is not the secret key of `server_key`"
        raise OperatorError(place, problem, "correct one of them: kelek keys show")
    return own, actor.access


def serves_of(settings: NodeSettings, key: str) -> Right:
    """The rights of which a key needs one to connect: a broker may have one address for all."""
    broker = settings.broker_endpoints if key == "broker.clients_url" else None
    if broker and broker.clients_url == broker.workers_url:
        return ENDPOINTS[key].serves | ENDPOINTS["broker.workers_url"].serves
    return ENDPOINTS[key].serves


def foreign_url(node: Any, key: str) -> str:
    """The address without CURVE beside an endpoint; '': none."""
    return _url_of(node, key, FOREIGN)


def _url_of(node: Any, key: str, prefix: str = "") -> str:
    section, _, last = key.rpartition(".")
    return getattr(getattr(node, section) if section else node, f"{prefix}{last}", "")


def _first_secured(security: NodeSecurity, node: Any) -> str:
    """The endpoint whose actor writes changes of keys to the audit file: one of the node's."""
    return next(
        (
            key
            for key in ENDPOINTS
            if key not in security.insecure and _url_of(node, key).startswith("tcp://")
        ),
        "",
    )
