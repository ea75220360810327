"""Codec of configurations: config entries, ConfigUpdate and its answers.

Pure functions over frames and data (docs/protocols/zmq-raft.md, "ConfigUpdate").
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...raft.membership import Configuration
from ...raft.messages import KIND_CONFIG, EntryBatch
from ...record import block_kind, block_record
from .peer_codec import decode_type
from .values import (
    CONFIG_UPDATE,
    UINT_MAX,
    check_voters,
    decode_ident,
    decode_json,
    decode_json_uint,
    decode_leader,
    decode_reqid,
    decode_uint,
    encode_json,
    encode_uint,
    expect,
)

Members = tuple[tuple[str, str], ...]  # Pairs of PEER ID and URL.


class ConfigEntry(NamedTuple):
    """The data of a config entry: the members, and while it is joint also the members before."""

    new: Members
    old: Members = ()
    # After this LOG INDEX tables accept only entries of their own kind; 0: disabled.
    tables_from: int = 0

    @property
    def configuration(self) -> Configuration:
        """The core's configuration: the ids alone."""
        return Configuration(member_ids(self.new), member_ids(self.old))

    @property
    def members(self) -> Members:
        """The union of both sets. If they differ in a URL, the new one counts."""
        return tuple({**dict(self.old), **dict(self.new)}.items())


def member_ids(members: Members) -> tuple[str, ...]:
    """Returns the PEER IDs of members."""
    return tuple(peer for peer, _ in members)


def encode_config_entry(entry: ConfigEntry) -> bytes:
    """Encodes the data of a config entry; decode_config_entry describes it."""
    new = [list(member) for member in entry.new]
    if entry.tables_from:
        old = [list(member) for member in entry.old]
        return encode_json({"old": old, "new": new, "tables_from": entry.tables_from})
    if not entry.old:
        return encode_json(new)
    return encode_json({"old": [list(member) for member in entry.old], "new": new})


def decode_config_entry(data: bytes) -> ConfigEntry:
    """Decodes the data of a config entry.

    joint   {"old": [[PEER ID, url], ...], "new": [[PEER ID, url], ...]}
    sealed  {"old": as above, or [], "new": as above, "tables_from": LOG INDEX}
    else    [[PEER ID, url], ...]

    Raises RemoteProtocolError on other data, on no member and on a member named twice.
    """
    value = decode_json(data)
    if isinstance(value, dict):
        if value.keys() == {"old", "new", "tables_from"}:
            old = check_voters(value["old"]) if value["old"] != [] else ()
            tables_from = value["tables_from"]
            if type(tables_from) is not int or not 0 < tables_from <= UINT_MAX:
                raise RemoteProtocolError("tables_from is a LOG INDEX")
            return ConfigEntry(check_voters(value["new"]), old, tables_from)
        if value.keys() != {"old", "new"}:
            raise RemoteProtocolError("a joint configuration holds old and new")
        return ConfigEntry(check_voters(value["new"]), check_voters(value["old"]))
    return ConfigEntry(check_voters(value))


def batch_config(batch: EntryBatch) -> ConfigEntry | None:
    """Returns the config entry in a checked batch; None when it holds entries of other kinds.

    Raises RemoteProtocolError as decode_config_entry does.
    """
    if batch.count != 1 or block_kind(batch.block) != KIND_CONFIG:
        return None
    return decode_config_entry(block_record(batch).data)


def check_configs(batches: list[EntryBatch]) -> list[EntryBatch]:
    """Returns the batches. Raises RemoteProtocolError unless their config entries can be
    decoded."""
    for batch in batches:
        batch_config(batch)
    return batches


# ---- ConfigUpdate ----


class ConfigUpdate(NamedTuple):
    """A client's request for other members."""

    reqid: bytes
    payload: bytes  # msgpack [[PEER ID, url], ...], not yet checked.


def decode_config_update(frames: Sequence[bytes], cluster: bytes) -> ConfigUpdate:
    """Decodes a ConfigUpdate ("ConfigUpdate"), which exists in node form only.

    frames   1 reqid   12 bytes
             2 bytes   message type, 0x26
             3 bytes   cluster ident
             4 json    [[PEER ID, url], ...]: all members from then on

    Raises RemoteProtocolError on a wrong frame count, type or id, or a foreign cluster ident.
    MemberChanges checks frame 4, because the client gets the reason of a refusal.
    """
    decode_type(frames, CONFIG_UPDATE, "ConfigUpdate")
    expect(frames, "ConfigUpdate", 4, 4)
    decode_ident(frames[2], cluster)
    return ConfigUpdate(decode_reqid(frames[0]), frames[3])


class ConfigStatus(IntEnum):
    """Frame 2 of an answer to ConfigUpdate."""

    NOT_LEADER = 0
    ACCEPTED = 1  # In progress, or with an index committed.
    ERROR = 2
    BUSY = 3  # Another change is in progress.
    EXPIRED = 4  # The request id is too old, or from the future.


class ConfigUpdateAnswer(NamedTuple):
    """The answer to a ConfigUpdate. The status tells which of the other fields are valid."""

    status: ConfigStatus
    leader: str | None = None  # NOT_LEADER
    log_index: int | None = (
        None  # ACCEPTED: the index of the client's entry, once all is committed.
    )
    name: str = ""  # ERROR: one word ...
    message: str = ""  # ... and a sentence.


def encode_config_update_answer(reqid: bytes, answer: ConfigUpdateAnswer) -> list[bytes]:
    """Encodes an answer to ConfigUpdate."""
    frames = [reqid, encode_uint(answer.status)]
    match answer.status:
        case ConfigStatus.NOT_LEADER:
            frames.append(encode_json(answer.leader))
        case ConfigStatus.ACCEPTED if answer.log_index is not None:
            frames.append(encode_json(answer.log_index))
        case ConfigStatus.ERROR:
            frames.append(encode_json({"name": answer.name, "message": answer.message}))
    return frames


def decode_config_update_answer(frames: Sequence[bytes]) -> tuple[bytes, ConfigUpdateAnswer]:
    """Decodes an answer to ConfigUpdate ("ConfigUpdate").

    frames   1 reqid   of the request
             2 uint    status: 0 not the leader, 1 accepted, 2 error, 3 busy, 4 expired
             3 json    0: LEADER ID or null
                       1: absent while it is in progress, then the LOG INDEX
                       2: {"name": .., "message": ..}

    Returns (reqid, answer). Raises RemoteProtocolError on a wrong frame count, another status or
    other json.
    """
    expect(frames, "a ConfigUpdate answer", 2, 3)
    reqid, number = decode_reqid(frames[0]), decode_uint(frames[1])
    if number > ConfigStatus.EXPIRED:
        raise RemoteProtocolError(f"a ConfigUpdate answer of status {number}")
    status = ConfigStatus(number)
    if status in (ConfigStatus.NOT_LEADER, ConfigStatus.ERROR):
        expect(frames, "a ConfigUpdate answer", 3, 3)
    if status is ConfigStatus.NOT_LEADER:
        return reqid, ConfigUpdateAnswer(status, leader=decode_leader(frames[2]))
    if status is ConfigStatus.ERROR:
        match decode_json(frames[2]):
            case {"name": str(name), "message": str(message)}:
                return reqid, ConfigUpdateAnswer(status, name=name, message=message)
        raise RemoteProtocolError("the error of a ConfigUpdate has a name and a message")
    accepted = status is ConfigStatus.ACCEPTED and len(frames) > 2
    index = decode_json_uint(frames[2]) if accepted else None
    return reqid, ConfigUpdateAnswer(status, log_index=index)
