"""Codec of configurations: config entries, ConfigUpdate and its answers.

Pure functions over frames and data (docs/protocols/zmq-raft.md, "ConfigUpdate").
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...raft.membership import Configuration
from ...raft.messages import KIND_CONFIG, EntryBatch
from ...record import block_kind, block_record
from ...wire import Case, Cases, Constant, Frame, FrameType, Layout
from . import values as v

Members = tuple[tuple[str, str], ...]  # Pairs of PEER ID and URL.


class ConfigEntry(NamedTuple):
    """The data of a config entry: the members, and while it is joint also the members before."""

    new: Members
    old: Members = ()
    # After this LOG INDEX tables accept only entries of their own kind; 0: disabled.
    tables_from: int = 0
    # The operations that all members know: 1 with increments and appends, 2 also with versions of
    # keys; 0 without.
    operations: int = 0

    @property
    def configuration(self) -> Configuration:
        """The core's configuration: the ids alone."""
        return Configuration(member_ids(self.new), member_ids(self.old))

    @property
    def members(self) -> Members:
        """The union of both sets. If they differ in a URL, the new one counts."""
        return tuple({**dict(self.old), **dict(self.new)}.items())


def member_ids(members: Members) -> tuple[str, ...]:
    return tuple(peer for peer, _ in members)


def encode_config_entry(entry: ConfigEntry) -> bytes:
    """Encodes the data of a config entry; decode_config_entry describes it."""
    old, new = ([list(member) for member in members] for members in (entry.old, entry.new))
    if entry.tables_from:
        known = {"operations": entry.operations} if entry.operations else {}
        return v.encode_json({"old": old, "new": new, "tables_from": entry.tables_from, **known})
    return v.encode_json({"old": old, "new": new} if old else new)


def decode_config_entry(data: bytes) -> ConfigEntry:
    """Decodes the data of a config entry.

    joint   {"old": [[PEER ID, url], ...], "new": [[PEER ID, url], ...]}
    sealed  {"old": as above, or [], "new": as above, "tables_from": LOG INDEX}, and "operations":
            a number, unless it is 0
    else    [[PEER ID, url], ...]

    Raises RemoteProtocolError on other data, on no member and on a member named twice.
    """
    value = v.decode_json(data)
    if not isinstance(value, dict):
        return ConfigEntry(v.check_voters(value))
    if value.keys() - {"tables_from", "operations"} != {"old", "new"}:
        raise RemoteProtocolError("a joint configuration holds old and new")
    operations = value.get("operations", 0)
    if type(operations) is not int or not 0 <= operations <= v.UINT_MAX:
        raise RemoteProtocolError("operations is a number")
    if "tables_from" not in value:
        return ConfigEntry(v.check_voters(value["new"]), v.check_voters(value["old"]))
    tables_from = value["tables_from"]
    if type(tables_from) is not int or not 0 < tables_from <= v.UINT_MAX:
        raise RemoteProtocolError("tables_from is a LOG INDEX")
    old = v.check_voters(value["old"]) if value["old"] != [] else ()
    return ConfigEntry(v.check_voters(value["new"]), old, tables_from, operations)


def batch_config(batch: EntryBatch) -> ConfigEntry | None:
    """Returns the config entry in a checked batch; None when it holds entries of other kinds.

    Raises RemoteProtocolError as decode_config_entry does.
    """
    if batch.count != 1 or block_kind(batch.block) != KIND_CONFIG:
        return None
    return decode_config_entry(block_record(batch).data)


def check_configs(batches: Iterable[EntryBatch]) -> None:
    """Raises RemoteProtocolError unless the config entries of batches can be decoded."""
    for batch in batches:
        batch_config(batch)


# ---- ConfigUpdate ----


class ConfigUpdate(NamedTuple):
    """A client's request for other members."""

    reqid: bytes
    payload: bytes  # MemberChanges checks it, because the client gets the reason of a refusal.


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
    leader: str | None = None
    log_index: int | None = None  # Of the client's entry, once all is committed.
    name: str = ""  # Of an error: one word ...
    message: str = ""  # ... and a sentence.


def _decode_error(frame: bytes) -> tuple[str, str]:
    match v.decode_json(frame):
        case {"name": str(name), "message": str(message)}:
            return name, message
    raise RemoteProtocolError("the error of a ConfigUpdate has a name and a message")


ERROR = FrameType(
    "json", lambda error: v.encode_json({"name": error[0], "message": error[1]}), _decode_error
)

# It exists in node form only.
CONFIG_UPDATE_REQUEST = Layout(
    "ConfigUpdate", ConfigUpdate,
    Frame("reqid", v.REQID, "reqid"),
    Constant(v.CONFIG_UPDATE), v.IDENT,
    Frame("payload", v.JSON, "`[[PEER ID, url], ...]`: all members from then on"),
)  # fmt: skip
CONFIG_UPDATE_ANSWER = Layout(
    "ConfigUpdate answer", ConfigUpdateAnswer,
    v.ANSWER_REQID,
    Cases("status", v.UINT, "status",
        Case(ConfigStatus.NOT_LEADER, "not the leader",
            Frame("leader", v.LEADER, "LEADER ID or null")),
        Case(ConfigStatus.ACCEPTED, "in progress, at once and every 100 ms, or done",
            Frame("log_index", v.JSON_UINT,
                "LOG INDEX of the entry with this reqid, once the change is done",
                optional=True)),
        Case(ConfigStatus.ERROR, "refused: nothing has changed",
            Frame(("name", "message"), ERROR, '`{"name": .., "message": ..}`')),
        Case(ConfigStatus.BUSY, "another change is in progress"),
        Case(ConfigStatus.EXPIRED,
            "the reqid is older than the known request ids, or from the future")),
    ignores_more=True,
)  # fmt: skip
