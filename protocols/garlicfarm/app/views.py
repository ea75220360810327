"""The views of the HTTP API: JSON from a farm server's application.

Documents appear byte for byte as they were posted.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...errors import RemoteProtocolError
from ...raft.core import Role
from ...raft.messages import EntryBatch
from ..server.own_membership import MemberState
from ..wire.entries import entries_of, peer_of
from ..wire.http_api import (
    DOCUMENTS_BYTES_MAX,
    ENTRIES_COUNT_DEFAULT,
    ENTRIES_VALUES_BYTES_MAX,
    ViewRequest,
)
from ..wire.messages import FarmLogEntry, ValueType
from ..wire.values import decode_configuration
from .documents import decode_status
from .orders import ORDER_PREFIX, decode_order, export_document, publish_value
from .posters import POSTER_PREFIX, REPEAT_BYTES, REPEAT_ENTRIES, decode_poster

if TYPE_CHECKING:
    from ..server.peer import FarmPeer
    from .application import Application

USER_SEARCH_BYTES_MAX = 64 << 20  # The log bytes searched for an entry's user.


def render_view(application: "Application", request: ViewRequest) -> bytes:
    match request.name:
        case "status":
            return _status(application, request.user)
        case "documents":
            return _documents(application, request.parameters.get("id"))
        case "entries":
            return _entries(application, request.parameters)
        case _:
            return _configuration(application)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _object(pairs: Mapping[str, bytes]) -> bytes:
    """A JSON object from values that are JSON already."""
    return b"{%s}" % b",".join(b'"%s":%s' % (key.encode(), data) for key, data in pairs.items())


def _array(values: Iterable[bytes]) -> bytes:
    return b"[%s]" % b",".join(values)


# ---- status ----


def _status(application: "Application", user: str) -> bytes:
    peer, state = application.peer, application.state
    core, change = peer.core, peer.membership.change
    return _json(
        {
            "cluster": application.setup.cluster,
            "asked_by": {"user": user, "admin": user in application.setup.admins},
            "id": peer.setup.server_id,
            "state": _state_of(application),
            "term": core.term,
            "leader": None if core.leader is None else int(core.leader),
            "first": core.log.base_index + 1,
            "applied": state.index,
            "commit": core.commit_index,
            "last": core.log.last_index,
            "members": _members(application),
            "change": change and {"server": change.server.id, "stage": change.stage.name.lower()},
            "publisher": application.publisher,
            "publish": publish_value(state.config.publish),
            "posting": {
                "interval": application.post_interval_ms,
                "publishConfig": application.setup.publish_config,
                "posted": application.posted,
                "kept": application.logged_date_ms or None,
                "error": application.router_error,
            },
            "connections": dict(application.connection_info()),
            "counters": {
                **state.counters,
                "malformed": peer.malformed,
                **{f"refused_{kind.name.lower()}": n for kind, n in peer.refused.items() if n},
                "resets": peer.own_membership.resets,
                "snapshots not understood": application.unreadable_snapshots,
            },
        }
    )


def _state_of(application: "Application") -> str:
    state = application.peer.own_membership.state
    is_outside = state in (MemberState.WAITING, MemberState.SILENT)
    return str(state if is_outside else application.peer.core.role)


def _members(application: "Application") -> list[dict[str, object]]:
    """The latest members with the state of our link, and by a leader what each has confirmed."""
    peer = application.peer
    own = peer.setup.server_id
    matches = {follower.peer: follower.match_index for follower in peer.core.followers}
    found: list[dict[str, object]] = []
    for server in peer.directory.latest.servers:
        link = peer.links.get(server.id)
        up = "up" if link is not None and link.is_up else "down"
        member: dict[str, object] = {
            "id": server.id,
            "endpoint": server.endpoint,
            "link": "self" if server.id == own else up,
        }
        if peer.core.role is Role.LEADER:
            own_match = peer.core.durable_index
            member["match"] = own_match if server.id == own else matches.get(peer_of(server.id), 0)
        found.append(member)
    return found


# ---- contents of the log ----


def _documents(application: "Application", server_id: int | None) -> bytes:
    """All documents or one server's. A document beyond the size limit is null, unless requested
    alone.
    """
    state = application.state
    room, shown = DOCUMENTS_BYTES_MAX, []
    for number, posted in sorted(state.posted.items()):
        if server_id not in (None, number):
            continue
        data = posted.status.data
        room -= len(data)
        fits = room >= 0 or number == server_id
        head = {"id": _json(number), "index": _json(posted.log_index)}
        shown.append(_object({**head, "document": data if fits else b"null"}))
    ordered = export_document(state.config)
    contents = [{"server": leaf.server_id, "hash": leaf.hash} for leaf in application.contents]
    return _object(
        {
            "cluster": _json(state.cluster),
            "index": _json(state.index),
            "publisher": _json(application.publisher),
            **{key: _json(ordered[key]) for key in ("publish", "excluded", "settings")},
            "contents": _json(contents),
            "documents": _array(shown),
        }
    )


def _configuration(application: "Application") -> bytes:
    """The configuration for an import, and the members."""
    servers = tuple(
        (each.id, each.endpoint) for each in application.peer.directory.committed.servers
    )
    return _json(export_document(application.state.config._replace(servers=servers)))


def _entries(application: "Application", parameters: Mapping[str, int]) -> bytes:
    """Committed entries that are still in the log, from the requested index on."""
    peer = application.peer
    first = peer.core.log.base_index + 1
    index = max(parameters.get("from", 1), first)
    count, raw = parameters.get("count", ENTRIES_COUNT_DEFAULT), bool(parameters.get("raw", 0))
    last_index = min(peer.readable_index, index + count - 1)
    shown: list[bytes] = []
    room = ENTRIES_VALUES_BYTES_MAX
    user, term = _user_of(peer, index), peer.core.log.term_at(index)
    for batch in peer.read(index, ENTRIES_VALUES_BYTES_MAX):
        if batch.term != term:
            user, term = "", batch.term
        for at, entry in enumerate(entries_of((batch,)), batch.first_index):
            if at != index or at > last_index or (shown and len(entry.value) > room):
                continue  # Before the first one or after the last one.
            named = _poster_user(entry)
            user = user if named is None else named
            shown.append(_entry(at, entry, user, None if raw else application.setup.cluster))
            room -= len(entry.value)
            index += 1
    return _object(
        {
            "cluster": _json(application.setup.cluster),
            "first": _json(first),
            "commit": _json(peer.readable_index),
            "next": _json(index),
            "entries": _array(shown),
        }
    )


def _user_of(peer: "FarmPeer", index: int) -> str:
    """The user of an entry, by the last poster entry before it in its term; "" if unknown. The
    search goes back in growing steps.
    """
    term, first, end = peer.core.log.term_at(index), peer.core.log.base_index + 1, index
    count, room = 8, USER_SEARCH_BYTES_MAX
    while end > first and peer.core.log.term_at(end - 1) == term and room > 0:
        begin = max(first, end - count)
        found: str | None = None
        at = begin
        while at < end:
            batches = peer.read(at, REPEAT_BYTES)
            if not batches:
                return ""
            for batch in batches:
                room -= len(batch.block)
                if batch.term == term and POSTER_PREFIX in batch.block:
                    named = _last_user(batch, end)
                    found = found if named is None else named
            at = batches[-1].last_index + 1
        if found is not None:
            return found
        end, count = begin, min(8 * count, REPEAT_ENTRIES)
    return ""


def _last_user(batch: EntryBatch, end: int) -> str | None:
    """The user in the last poster entry of a batch before entry `end`."""
    entries = entries_of((batch,))[: max(0, end - batch.first_index)]
    named = (_poster_user(entry) for entry in reversed(entries))
    return next((user for user in named if user is not None), None)


def _poster_user(entry: FarmLogEntry) -> str | None:
    """The user in a poster entry; None for other entries."""
    return decode_poster(entry.value) if entry.value_type is ValueType.APPLICATION else None


def _entry(index: int, entry: FarmLogEntry, user: str, cluster: str | None) -> bytes:
    """One entry as JSON. With a cluster, documents and orders of that farm appear as JSON
    objects.
    """
    head = {
        "index": _json(index),
        "term": _json(entry.term),
        "type": _json(int(entry.value_type)),
    }
    if entry.value_type is ValueType.APPLICATION:
        is_poster = _poster_user(entry) is not None
        head["poster" if is_poster else "user"] = _json(user or None)
    if cluster is not None:
        if entry.value_type is ValueType.CONFIGURATION:
            servers = decode_configuration(entry.value).servers
            listed = [{"id": each.id, "endpoint": each.endpoint} for each in servers]
            return _object({**head, "servers": _json(listed)})
        if _is_own(entry.value, cluster):
            return _object({**head, "document": entry.value})
    return _object({**head, "value": _json(b64encode(entry.value).decode())})


def _is_own(value: bytes, cluster: str) -> bool:
    """Whether it is a document or an order of this farm."""
    try:
        if value.startswith(ORDER_PREFIX):
            return decode_order(value).cluster == cluster
        return decode_status(value).cluster == cluster
    except RemoteProtocolError:
        return False
