"""The keys of a client: its own, and those that its servers must have."""

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from .errors import OperatorError
from .sockets import CurveClient

if TYPE_CHECKING:  # Every client imports this module; only one with a key needs these.
    from ..protocols.access.certificates import Certificate

FILE_SYSTEM = "ipc://"  # The mode of its file decides which users may connect.

ServerKeys = str | Mapping[str, str | None] | Collection[str]


class UnpinnedServer(OperatorError):
    """The client knows no key of the server, so it does not connect to it."""


class ClientKeys:
    """The own key of a client, and the pinned keys of its servers."""

    def __init__(self, own: "Certificate", servers: bytes | Mapping[str, bytes]) -> None:
        """
        own       with its secret key
        servers   public keys of 32 bytes by url; b"" allows a connection without CURVE. A single
                  key is the key of all servers.
        """
        self.own = own
        self._servers = servers

    def __repr__(self) -> str:
        return f"ClientKeys({self.own!r})"

    def __reduce__(self) -> str:
        raise TypeError("a secret key stays in its process; send the path of its file")

    def curve(self, url: str, named_by: str = "") -> CurveClient | None:
        """The keys of a connection. None: it has no CURVE.

        named_by   the url of the server that gave this one, as an address of its own: the key of
                   that server is expected there, unless the url has a key

        Raises UnpinnedServer for a url without a server key: never connect to it.
        """
        if url.startswith(FILE_SYSTEM):
            return None
        servers = self._servers
        pinned = servers if isinstance(servers, bytes) else servers.get(url)
        if pinned is None and not isinstance(servers, bytes):
            pinned = servers.get(named_by) or None  # Without CURVE only by its own url.
        if pinned is None:
            raise UnpinnedServer(url, "no key of this server is known", "add it to the server keys")
        return CurveClient(pinned, self.own.public_key, self.own.secret_key) if pinned else None


def load_client_keys(
    path: str | os.PathLike[str], server_keys: ServerKeys, place: str = ""
) -> ClientKeys:
    """Loads a client's own key, and decodes the server keys.

    server_keys   Z85 by url, None: that server has no CURVE; or one Z85 of all servers. A list of
                  keys is for zre:// urls, whose nodes prove which key is theirs
    place         as of load_key()

    Raises OperatorError.
    """
    from .access.keys import load_key

    own = load_key(path, place)
    if isinstance(server_keys, str):
        return ClientKeys(own, _decode(server_keys, "server key"))
    if not isinstance(server_keys, Mapping):
        problem = "a list of server keys is for zre:// urls"
        raise OperatorError(place or "server keys", problem, "give the key of each url")
    keys = {url: _decode(text, url) if text is not None else b"" for url, text in
            server_keys.items()}  # fmt: skip
    return ClientKeys(own, keys)


def _decode(text: str, place: str) -> bytes:
    from ..protocols.access.certificates import CertificateError, decode_key

    try:
        return decode_key(text)
    except CertificateError as error:
        problem = f"the server key is malformed: {error}"
        raise OperatorError(place, problem, "kelek keys show FILE prints it") from error
