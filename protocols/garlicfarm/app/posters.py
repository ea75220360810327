"""Which user appended an entry: poster entries, which a leader writes in front of the others.

An entry has no field for a user on this wire, and its bytes stay as they were appended. So the
leader appends an Application entry of its own, `{"kelek":"poster","user":"ann"}`, where the user
changes. It holds for the entries behind it up to the next one, in its own term alone: the leader of
another term may be a server of JRaft, which writes none.
"""

import json

from ...errors import RemoteProtocolError
from .documents import load_object

POSTER_PREFIX = b'{"kelek":'  # No client may append what begins so.
POSTER_BYTES_MAX = 4096
# A leader repeats the entry behind so much, so that a reader finds it without a long search.
REPEAT_ENTRIES = 1000
REPEAT_BYTES = 1 << 20


def encode_poster(user: str) -> bytes:
    """The entry that names a user."""
    body = {"kelek": "poster", "user": user}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def decode_poster(value: bytes) -> str | None:
    """The user that an Application entry names; empty: the entries behind it have none; None: it
    is no poster entry."""
    if not value.startswith(POSTER_PREFIX):
        return None
    try:
        found = load_object(value, POSTER_BYTES_MAX)
    except RemoteProtocolError:
        return None
    user = found.get("user")
    return user if found.get("kelek") == "poster" and isinstance(user, str) else None


class PosterWriter:
    """Decides, for a leader, where a poster entry is due."""

    __slots__ = ("_bytes", "_entries", "_term", "_user")

    def __init__(self) -> None:
        self._term = 0
        self._user = ""
        self._entries = 0  # Since the last poster entry.
        self._bytes = 0

    def is_due(self, term: int, user: str, count: int, size: int) -> bool:
        """Whether a poster entry has to stand in front of the next `count` entries, of `size` bytes
        together, which this user appends in this term. They count as appended."""
        if term != self._term:
            self._term, self._user = term, ""
        is_near = self._entries < REPEAT_ENTRIES and self._bytes < REPEAT_BYTES
        if user == self._user and (is_near or not user):
            self._entries += count
            self._bytes += size
            return False
        self._user, self._entries, self._bytes = user, count, size
        return True
