"""The section `security:` of a topology, and which endpoints of a node have CURVE."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from .schema import ChoiceType, Problem, ScalarType, Unfit, did_you_mean, key, text
from .section import Section
from .yaml_values import Scalar

if TYPE_CHECKING:
    from .topology import Topology

FOREIGN = "foreign_"  # Begins the names of endpoints without CURVE beside those with it.
NO_CURVE = ("farm.url",)  # It has TLS.
HTTP = "metrics", "web.address"  # Neither CURVE nor TLS.
ZRE = "zre"  # In `insecure:`: the node's ZRE endpoints.


def _parse_public_key(word: Scalar) -> str:
    from ...protocols.access.certificates import CertificateError, decode_key

    try:
        decode_key(word.text)
    except CertificateError as error:
        raise Unfit(str(error), "write what `kelek keys show` prints, in quotes") from None
    return word.text


def _parse_grants(word: Scalar) -> str:
    from ...protocols.access.grants import GrantError, parse_grants

    try:
        parse_grants(word.text)
    except GrantError as error:
        raise Unfit(str(error), "write them as `kelek keys allow --grant` takes them") from None
    return word.text


PUBLIC_KEY = ScalarType(
    "a public key", _parse_public_key, {"type": "string", "minLength": 40, "maxLength": 40},
    "40 characters of Z85",
)  # fmt: skip
GRANTS = ScalarType("grants", _parse_grants, {"type": "string"}, "`log.read tables:7:rw`")


class SecuritySettings(Section):
    """`security:`"""

    allow: str = key(text("a directory"), "keys/allowed")
    """directory of the public keys that may connect, each with its grants
    ([security](../security.md)); relative to the file"""
    mode: Literal["enforce", "allow"] = key(ChoiceType("enforce", "allow"), "enforce")
    """`allow`: messages without a grant are logged and accepted, until all clients have their
    grants; unknown keys are refused in both modes"""
    key_file: str = key(text("a path"), "")
    """the secret key of the commands `kelek` and `supervisor`; relative to the file"""


class NodeSecurity(Section):
    """What the actors of a node need. Paths are absolute, public keys are Z85.

    allow            directory of the public keys that may connect
    key_file         the node's secret key
    node_keys        the public key of each node, by name
    server_keys      the public key of the server at each url of the topology, but those of
                     brokers; "": without CURVE
    insecure         the node's endpoints without CURVE
    foreign_grants   what peers of the node's endpoints for foreign peers may do
    """

    allow: str
    enforce: bool
    key_file: str
    node_keys: Mapping[str, str]
    server_keys: Mapping[str, str]
    insecure: tuple[str, ...]
    foreign_grants: str


class OpenEndpoints(NamedTuple):
    """The endpoints of a node without encryption that an operator must know of, with addresses.

    insecure   other machines reach them; ZRE has no address here
    foreign    for foreign peers, on this machine only
    """

    insecure: Mapping[str, str] = {}
    foreign: Mapping[str, str] = {}


def open_endpoints(topology: "Topology", name: str, addresses: Mapping[str, str]) -> OpenEndpoints:
    """addresses: those that the node binds, by their keys: `zerodb.url`"""
    node = topology.nodes[name]
    insecure = {
        endpoint: url
        for endpoint, url in addresses.items()
        if endpoint in node.insecure and url and _is_open(url)
    }
    if ZRE in node.insecure and node.zre and not node.zre.interface.startswith(("lo", "127.")):
        insecure[ZRE] = ""
    foreign = {
        endpoint: url
        for endpoint, url in addresses.items()
        if endpoint.rpartition(".")[2].startswith(FOREIGN) and url and endpoint not in insecure
    }
    return OpenEndpoints(insecure, foreign)


def has_curve(topology: "Topology", name: str, endpoint: str, url: str) -> bool:
    """Whether an endpoint of a node has CURVE; endpoint is a key of the node: `zerodb.url`."""
    node = topology.nodes[name]
    return (
        topology.security is not None
        and url.startswith("tcp://")
        and node.dialect == "kelek"
        and endpoint not in (*NO_CURVE, *HTTP)
        and endpoint not in node.insecure
        and not endpoint.rpartition(".")[2].startswith(FOREIGN)
    )


def security_problems(
    topology: "Topology", addresses: Mapping[str, Mapping[str, str]]
) -> Iterator[Problem]:
    """addresses: those that each node binds, by their keys: `zerodb.url`"""
    owners: dict[str, str] = {}
    for name, node in topology.nodes.items():
        path = f"nodes.{name}"
        if topology.security is None:
            for key_ in ("server_key", "key_file"):
                if getattr(node, key_):
                    yield f"{path}.{key_}", "the file has no `security:`", "add `security: {}`"
        elif node.dialect == "kelek" and not node.server_key:
            problem = f"there is neither `server_key` nor keys/{name}.key beside this file"
            yield path, problem, f"kelek keys new {name}"
        if node.server_key and (other := owners.setdefault(node.server_key, name)) != name:
            yield f"{path}.server_key", f"it is the key of {other}", "give each node its own"
        for word in node.insecure:
            if word not in addresses[name] and not (word == ZRE and node.zre):
                yield (
                    f"{path}.insecure",
                    f"no endpoint '{word}'",
                    did_you_mean(word, [each for each, url in addresses[name].items() if url]),
                )
        if node.dialect == "kelek":
            for endpoint, url in addresses[name].items():
                if url:
                    yield from _endpoint_problems(topology, name, endpoint, url)


def _endpoint_problems(
    topology: "Topology", name: str, endpoint: str, url: str
) -> Iterator[Problem]:
    node, path = topology.nodes[name], f"nodes.{name}.{endpoint}"
    section, _, last = endpoint.rpartition(".")
    if last.startswith(FOREIGN):
        if topology.security is None:
            yield path, "the file has no `security:`", "add it, or remove this key"
        if not node.foreign_grants:
            way_out = "say what foreign peers may do: `foreign_grants: log.read`"
            yield path, f"nodes.{name} has no `foreign_grants`", way_out
        served = f"{section}.{last[len(FOREIGN) :]}".lstrip(".")
        if served in node.insecure:
            yield path, f"{served} has no CURVE", f"remove this key: foreign peers use {served}"
        if served == "broker.workers_url" and node.clients_url == node.workers_url:
            way_out = "remove this key: foreign workers use foreign_clients_url"
            yield path, "the broker has one address for clients and workers", way_out
    if (
        not has_curve(topology, name, endpoint, url)
        and endpoint not in NO_CURVE
        and endpoint not in node.insecure
        and _is_open(url)
    ):
        way_out = f"add `security:` (docs/security.md), or `insecure: [{endpoint}]` to {name}"
        if endpoint in HTTP:
            way_out = f"write 127.0.0.1:PORT, or add `insecure: [{endpoint}]` to {name}"
        yield path, f"{url} has no CURVE, and other machines reach it", way_out


def _is_open(url: str) -> bool:
    """Whether other machines may reach an address."""
    if url.startswith(("ipc://", "tcp://127.0.0.1:")):
        return False
    from ...protocols.garlicfarm.wire.values import is_loopback, parse_address

    return not (url.startswith("tcp://") and is_loopback(parse_address(url[len("tcp://") :]).host))
