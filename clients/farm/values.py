"""The values that a farm's client returns, and the checks of its arguments."""

import json
import os
import ssl
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...net.errors import OperatorError
from ...net.private_files import read_private_file
from ...protocols.errors import RemoteProtocolError
from ...protocols.garlicfarm.app.orders import hash_of
from ...protocols.garlicfarm.wire.messages import ID_MAX, ID_MIN
from ...protocols.garlicfarm.wire.values import Address, parse_address
from ...protocols.zre import services
from ..aliases import warn_renamed
from ..errors import FarmError, KeyUnusable
from ..io.urls import cluster_of, resolve_urls

if TYPE_CHECKING:
    from ...net.client_keys import ServerKeys
    from ..io.keys import KeyArguments, KeyPath

Servers = str | Iterable[str] | Mapping[int, str]
APPLICATION = "application"
CONFIGURATION = "configuration"
POSTER = "poster"
SECRET_BYTES_MAX = 1024
KEY_BYTES_MAX = 64 << 10
_KINDS = {1: APPLICATION, 2: CONFIGURATION}


@dataclass(frozen=True, slots=True)
class FarmEntry:
    """A committed entry of the farm's log.

    kind   "application": appended by a client or a server; "configuration": the members; "poster":
           a leader's record of the user of the entries after it
    user   the user that appended it, if a kelek leader recorded it; otherwise None
    """

    index: int
    term: int
    kind: str
    value: bytes
    user: str | None = None

    @property
    def document(self) -> dict[str, Any] | None:
        """The value as a JSON object (a status document or an order), or None."""
        try:
            found = json.loads(self.value)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


class FarmPage(NamedTuple):
    """A page of the log.

    entries        empty: no more entries yet
    next_index     the index after the page, which counts entries of other kinds too
    first_index    the oldest index in the log
    commit_index   the last committed index known to the server
    """

    entries: tuple[FarmEntry, ...]
    next_index: int
    first_index: int
    commit_index: int

    @property
    def last_index(self) -> int:
        """The index to read on after."""
        return self.next_index - 1


class FarmServer(NamedTuple):
    """A member and its status.

    state   leader, follower, candidate, waiting, silent; "" without an answer, see problem
    """

    id: int
    endpoint: str
    state: str = ""
    term: int = 0
    commit_index: int = 0
    last_index: int = 0
    problem: str = ""


class EntryRange(NamedTuple):
    """The first entry to read, and whether to wait for more at the end of the log."""

    first_index: int
    is_endless: bool


def entry_range(from_index: int | None, after: int, follow: bool | None = None) -> EntryRange:
    """The range of entries() or read(), whose old arguments from_index and follow warn."""
    if follow is not None:
        warn_renamed("follow=", "watch(), or entries(), which ends at the last commit", 5)
    if from_index is None:
        return EntryRange(after + 1, bool(follow))
    warn_renamed("from_index", "after=, which is exclusive", 5)
    return EntryRange(from_index, follow is not False)


def discovery_keys(
    key: "KeyPath | None", server_keys: "ServerKeys | None"
) -> "KeyArguments | None":
    """The keys of a search for zre://CLUSTER; None: without CURVE. Raises KeyUnusable: one of them
    is missing."""
    if key is None and server_keys is None:
        return None
    from ..io.keys import KeyArguments  # It loads zmq, which other clients of farms do without.

    return KeyArguments(key, server_keys)


class ServerAddresses(NamedTuple):
    """Addresses of servers, some with ids."""

    known: tuple[Address, ...]
    ids: tuple[tuple[int, Address], ...] = ()


def checked_servers(servers: Servers, keys: "KeyArguments | None" = None) -> ServerAddresses:
    """Addresses from a list, a string joined by commas, or a mapping from ids. Looks up
    zre://CLUSTER.

    keys   of the search for the nodes of a cluster with CURVE (resolve_urls())

    Raises ValueError, TypeError, NodeError, KeyUnusable: there are keys, and no zre://CLUSTER.
    """
    listed: list[str] = []
    if not isinstance(servers, Mapping):
        listed = servers.split(",") if isinstance(servers, str) else list(servers)
    if keys is not None and keys.key is not None and not cluster_of(listed):
        raise KeyUnusable("key and server_keys are for zre:// urls: servers of a farm have TLS")
    if isinstance(servers, Mapping):
        ids = tuple((checked_id(key), _address(value)) for key, value in servers.items())
        places = ServerAddresses(tuple(dict.fromkeys(address for _, address in ids)), ids)
    else:
        known = resolve_urls(listed, services.FARM, keys)
        places = ServerAddresses(tuple(dict.fromkeys(map(_address, known))))
    if not places.known:
        raise ValueError("give the address of a server: tls://HOST:PORT")
    return places


def _address(endpoint: str) -> Address:
    if not isinstance(endpoint, str):
        raise TypeError(f"a server's address must be str, not {type(endpoint).__name__}")
    scheme, separator, _ = endpoint.strip().rpartition("://")
    if separator and scheme not in ("tls", "tcp"):
        raise ValueError(f"{scheme}:// is not supported; write tls://HOST:PORT")
    try:
        return parse_address(endpoint.strip())
    except RemoteProtocolError as error:
        raise ValueError(f"{error}; write tls://HOST:PORT") from None


def checked_id(server_id: int) -> int:
    """Raises TypeError, ValueError."""
    if not isinstance(server_id, int) or isinstance(server_id, bool):
        raise TypeError(f"a server's id must be a number, not {type(server_id).__name__}")
    if not ID_MIN <= server_id <= ID_MAX:
        raise ValueError(f"a server's id must have 32 bits: {server_id}")
    return server_id


def checked_hash(text: str) -> str:
    """The hash of an I2P destination, given as hash, HASH.b32.i2p, or whole. Raises TypeError,
    ValueError.
    """
    if not isinstance(text, str):
        raise TypeError(f"a hash must be str, not {type(text).__name__}")
    found = hash_of(text)
    if found is None:
        short = text if len(text) <= 60 else f"{text[:57]}..."
        raise ValueError(
            f"{short!r} is not a destination: give its hash, HASH.b32.i2p, or the whole destination"
        )
    return found


def checked_endpoint(endpoint: str) -> str:
    """A server's endpoint for the other servers. Raises TypeError, ValueError."""
    if not _address(endpoint).host.isascii():
        raise ValueError(f"{endpoint!r}: a host must be ASCII")
    return endpoint.strip()


def read_private(path: str | os.PathLike[str], bytes_max: int) -> str:
    """The text of a file with a secret (net/private_files.py).

    Raises FarmError if other users can read it or it is malformed; OSError.
    """
    try:
        return read_private_file(path, bytes_max)
    except OperatorError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise FarmError(f"{error.problem}; {error.way_out}") from None


def read_secret(path: str | os.PathLike[str]) -> str:
    """The password in a file: UTF-8, without the line end.

    Raises FarmError if others can read the file or it holds no password; OSError.
    """
    return secret_of(read_private(path, SECRET_BYTES_MAX).encode(), str(path))


def secret_of(data: bytes, place: str) -> str:
    """The password in the contents of a file or of standard input. Raises FarmError."""
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    if not line or len(data) > SECRET_BYTES_MAX or b"\n" in line or b"\0" in line:
        raise FarmError(f"{place}: a password must be one line of 1 to {SECRET_BYTES_MAX} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise FarmError(f"{place}: a password must be UTF-8") from None


class TlsFiles(NamedTuple):
    """PEM files of a client. None: the system's authorities; no certificate.

    key_file   of the certificate; None: the certificate's file has it too
    """

    ca_file: str | os.PathLike[str] | None = None
    certificate_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None


def make_tls(files: TlsFiles, version: str) -> ssl.SSLContext:
    """A TLS context with these files.

    version: "1.3", or "1.2" for both versions. Raises FarmError, ValueError.
    """
    if version not in ("1.2", "1.3"):
        raise ValueError(f"the TLS version must be 1.3, or 1.2 for old servers, not {version!r}")
    ca_file, certificate_file, key_file = files
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except ssl.SSLError:
        raise FarmError(f"{ca_file}: it contains no CA certificate (PEM)") from None
    except OSError as error:
        raise FarmError(f"{ca_file}: {error.strerror}") from None
    old, new = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    context.minimum_version = old if version == "1.2" else new
    if certificate_file is None:
        if key_file is not None:
            raise ValueError("key_file needs certificate_file")
        return context
    key = certificate_file if key_file is None else key_file
    try:
        read_private(key, KEY_BYTES_MAX)
        # Refuses an encrypted key: OpenSSL would prompt at the terminal.
        context.load_cert_chain(certificate_file, key, password=lambda: b"")
    except OSError as error:
        why = "not a certificate and its key (PEM, without a password)"
        why = why if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise FarmError(f"{certificate_file}, {key}: {why}") from None
    return context


def page_of(found: Mapping[str, Any]) -> FarmPage:
    """A page from the servers' `entries` view with `raw=1`. Raises FarmError."""
    try:
        entries = tuple(
            FarmEntry(
                int(each["index"]),
                int(each["term"]),
                POSTER if "poster" in each else _KINDS[each["type"]],
                b64decode(each["value"], validate=True),
                each.get("user"),
            )
            for each in found["entries"]
        )
        return FarmPage(entries, int(found["next"]), int(found["first"]), int(found["commit"]))
    except (KeyError, TypeError, ValueError, BinasciiError) as error:
        raise FarmError(f"a server's response has no entries: {error!r}") from None


def server_of(member: Mapping[str, Any], status: Mapping[str, Any] | str) -> FarmServer:
    """A member from another server's list, with its own status or a problem. Raises FarmError."""
    try:
        found = FarmServer(int(member["id"]), str(member["endpoint"]))
        if isinstance(status, str):
            return found._replace(problem=status)
        return found._replace(
            state=str(status["state"]),
            term=int(status["term"]),
            commit_index=int(status["commit"]),
            last_index=int(status["last"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FarmError(f"a server's response is not a status: {error!r}") from None
