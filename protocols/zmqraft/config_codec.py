"""Configurations on the wire and in the log: config entries, ConfigUpdate and its answers.

Pure functions over frames and data (docs/protocols/zmq-raft.md, "ConfigUpdate").
"""

from typing import NamedTuple

from ..errors import RemoteProtocolError
from ..raft.membership import Configuration
from ..raft.messages import KIND_CONFIG, Batch
from ..record import block_kind, block_record
from .values import check_members, decode_json, encode_json

Members = tuple[tuple[str, str], ...]  # Pairs of PEER ID and url.


class ConfigEntry(NamedTuple):
    """What a config entry says: the members, and those before them while both count."""

    new: Members
    old: Members = ()

    @property
    def configuration(self) -> Configuration:
        """The same in the core's words: ids alone."""
        return Configuration(ids(self.new), ids(self.old))

    @property
    def members(self) -> Members:
        """The union of both; where they differ in a url the new one counts."""
        return tuple({**dict(self.old), **dict(self.new)}.items())


def ids(members: Members) -> tuple[str, ...]:
    """Who is in a list of members."""
    return tuple(peer for peer, _ in members)


def encode_config_entry(entry: ConfigEntry) -> bytes:
    """Encodes the data of a config entry; it is under decode_config_entry."""
    new = [list(member) for member in entry.new]
    if not entry.old:
        return encode_json(new)
    return encode_json({"old": [list(member) for member in entry.old], "new": new})


def decode_config_entry(data: bytes) -> ConfigEntry:
    """Decodes the data of a config entry.

    joint   {"old": [[PEER ID, url], ...], "new": [[PEER ID, url], ...]}
    else    [[PEER ID, url], ...]

    Raises RemoteProtocolError when it is anything else, names nobody or somebody twice.
    """
    value = decode_json(data)
    if isinstance(value, dict):
        if value.keys() != {"old", "new"}:
            raise RemoteProtocolError("a joint configuration holds old and new")
        return ConfigEntry(_voters(value["new"]), _voters(value["old"]))
    return ConfigEntry(_voters(value))


def _voters(value: object) -> Members:
    members = check_members(value)
    if not members:
        raise RemoteProtocolError("a configuration of nobody")
    if len(set(ids(members))) < len(members):
        raise RemoteProtocolError("a configuration names a PEER ID twice")
    return members


def batch_config(batch: Batch) -> ConfigEntry | None:
    """What a batch of one entry says of the configuration; None when it is of another kind.

    The block has been checked. Raises RemoteProtocolError as decode_config_entry does.
    """
    if batch.count != 1 or block_kind(batch.block) != KIND_CONFIG:
        return None
    return decode_config_entry(block_record(batch).data)


def batch_configuration(batch: Batch) -> Configuration | None:
    """The same in the core's words."""
    entry = batch_config(batch)
    return entry and entry.configuration


def check_configs(batches: list[Batch]) -> list[Batch]:
    """Returns the batches; raises RemoteProtocolError unless their config entries can be read."""
    for batch in batches:
        batch_config(batch)
    return batches
