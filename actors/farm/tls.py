"""The certificate, key and CA of a farm_server, reloaded when a file changes.

Open connections keep the old files; new connections use the new ones.
"""

import ssl
from collections.abc import Callable
from typing import NamedTuple

from ..errors import OperatorError
from ..topology.farm import NodeFarmSettings
from .users import CHECK_INTERVAL_MS, file_version


class TlsFiles(NamedTuple):
    """The certificate files and the lowest TLS version."""

    certificate: str
    key: str
    ca: str
    version: str  # "1.3" or "1.2".


def _with_minimum(context: ssl.SSLContext, version: str) -> ssl.SSLContext:
    resolver = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    context.minimum_version = resolver[version]
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises OSError (or its subclass ssl.SSLError) if a file is unusable."""
    context = _with_minimum(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.version)
    # Refuses an encrypted key: OpenSSL would prompt at the terminal and block the loop.
    context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    context.num_tickets = 0  # Sessions are not resumed: servers stay connected.
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Verifies servers by name or address. Raises OSError."""
    context = _with_minimum(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files.version)
    context.load_verify_locations(files.ca)
    return context


class FarmTls:
    """The TLS contexts for both directions; None without TLS."""

    def __init__(self, settings: NodeFarmSettings, location: Callable[[str], str]) -> None:
        """settings: a node's `farm:`; location: where a key stands in the topology. Raises
        OperatorError.
        """
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        self._location = location
        self._files: TlsFiles | None = None
        self._next_check_ms = 0
        self._versions: tuple[tuple[int, ...], ...] = ()
        if not (settings.i2p or settings.insecure_jraft):
            self._files = TlsFiles(
                settings.certificate_file, settings.key_file, settings.ca_file, settings.tls
            )
            self._versions = self._file_versions(self._files)
            self._load(self._files)

    @staticmethod
    def _file_versions(files: TlsFiles) -> tuple[tuple[int, ...], ...]:
        return tuple(map(file_version, (files.certificate, files.key, files.ca)))

    def _load(self, files: TlsFiles) -> None:
        key = "certificate_file"
        try:
            server = server_context(files)
            key = "ca_file"
            self.server, self.client = server, client_context(files)
        except OSError as error:
            problem = f"is not usable: {error.strerror or error}"
            raise OperatorError(self._location(key), problem, "use files in PEM format") from error

    def reload(self, now_ms: int) -> bool:
        """Whether the files have changed. After an error the old files stay, for example while a
        new certificate lacks its key, and the error is reported once. Raises OperatorError.
        """
        if self._files is None or now_ms < self._next_check_ms:
            return False
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        versions = self._file_versions(self._files)
        if versions == self._versions:
            return False
        self._versions = versions
        self._load(self._files)
        return True
