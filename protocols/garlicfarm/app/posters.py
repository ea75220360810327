"""Poster entries: a leader writes one before entries of another user, to record who appended
them.

The wire has no field for a user, and an entry keeps the bytes of its client. So the leader appends
an Application entry of its own, `{"kelek":"poster","user":"ann"}`, where the user changes. It
covers the entries after it, up to the next poster entry, in its own term only: the leader of
another term may be a JRaft server, which writes none.
"""

import json

from ...errors import RemoteProtocolError
from .documents import load_object

POSTER_PREFIX = b'{"kelek":'  # Clients must not append entries with this prefix.
POSTER_BYTES_MAX = 4096
# A leader repeats the entry after so much, which bounds a reader's search.
REPEAT_ENTRIES = 1000
REPEAT_BYTES = 1 << 20


def encode_poster(user: str) -> bytes:
    body = {"kelek": "poster", "user": user}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def decode_poster(value: bytes) -> str | None:
    """The user that an Application entry names: "" if the next entries have none; None if it is
    not a poster entry.
    """
    if not value.startswith(POSTER_PREFIX):
        return None
    try:
        found = load_object(value, POSTER_BYTES_MAX)
    except RemoteProtocolError:
        return None
    user = found.get("user")
    return user if found.get("kelek") == "poster" and isinstance(user, str) else None


class PosterWriter:
    """Decides where a leader must write a poster entry."""

    __slots__ = ("_bytes", "_entries", "_term", "_user")

    def __init__(self) -> None:
        self._term = 0
        self._user = ""
        self._entries = 0  # Since the last poster entry.
        self._bytes = 0

    def is_due(self, term: int, user: str, count: int, size: int) -> bool:
        """Whether a poster entry must precede the next `count` entries of `size` bytes by this
        user in this term. Counts them as appended.
        """
        if term != self._term:
            self._term, self._user = term, ""
        is_near = self._entries < REPEAT_ENTRIES and self._bytes < REPEAT_BYTES
        if user == self._user and (is_near or not user):
            self._entries += count
            self._bytes += size
            return False
        self._user, self._entries, self._bytes = user, count, size
        return True
