"""CURVE of a node's ZRE actors, whose ports are chosen when they start."""

from ipaddress import ip_address

from ...native.net.interfaces import Interface
from ...net.sockets import CurveClient, CurveServer
from ...protocols.access.certificates import Certificate
from ...protocols.access.grants import Right
from ...protocols.access.zap import CURVE, ProtectedEndpoint
from ..access.endpoints import own_access
from ..access.gate import AccessGate
from ..errors import OperatorError
from ..runtime.actor import Actor
from ..topology.security import ZRE


class ZreKeys:
    """The node's own key, and the gate of one of its ZRE actors."""

    def __init__(self, own: Certificate, gate: AccessGate, domain: str, place: str) -> None:
        self.own, self.gate, self._place = own, gate, place
        gate.protect(domain, ProtectedEndpoint(CURVE, Right.ZRE))
        self.server = CurveServer(own.secret_key, domain)

    def client(self, server_key: bytes) -> CurveClient:
        return CurveClient(server_key, self.own.public_key, self.own.secret_key)

    def check(self, kind: int, endpoint: str) -> None:
        """Raises OperatorError if the bound socket lets an unknown key in."""
        self.gate.check(kind, endpoint, self.own.public_key, self._place)


def zre_keys(actor: Actor, interface: Interface) -> ZreKeys | None:
    """The keys of a node with `security:`; None: without CURVE.

    Raises OperatorError: other machines reach the interface, and the node has no CURVE, which it
    does not allow; or bad key files.
    """
    place = actor.setup.places.get("zre.interface", "zre.interface")
    security, node = actor.settings.security, actor.settings.node
    if security is not None and ZRE not in node.insecure:
        own, gate = own_access(actor, security)
        return ZreKeys(own, gate, f"{actor.setup.node}/{actor.setup.name}/{ZRE}", place)
    is_open = not ip_address(interface.address.partition("%")[0]).is_loopback
    if is_open and ZRE not in node.insecure:
        problem = f"ZRE at {interface.address} has no CURVE, and other machines reach it"
        way_out = "add `security:` (docs/security.md), `insecure: [zre]`, or `interface: lo`"
        raise OperatorError(place, problem, way_out)
    return None
