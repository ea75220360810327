"""The certificate, key and CA of a farm_server, reloaded when a file changes.

Open connections keep the old files; new connections use the new ones.
"""

import ssl
from collections.abc import Callable

from ..errors import OperatorError
from ..topology.farm import NodeFarmSettings
from .users import WatchedFiles

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class FarmTls:
    """The TLS contexts for both directions; None without TLS."""

    def __init__(self, settings: NodeFarmSettings, location: Callable[[str], str]) -> None:
        """settings: a node's `farm:`; location: where a key stands in the topology. Raises
        OperatorError.
        """
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        self._settings, self._location = settings, location
        self._files: WatchedFiles | None = None
        if not (settings.i2p or settings.insecure_jraft):
            self._files = WatchedFiles(
                settings.certificate_file, settings.key_file, settings.ca_file
            )
            self._load()

    def _load(self) -> None:
        settings = self._settings
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.minimum_version = client.minimum_version = _VERSIONS[settings.tls]
        server.num_tickets = 0  # Sessions are not resumed: servers stay connected.
        key = "certificate_file"
        try:
            # Refuses an encrypted key: OpenSSL would prompt at the terminal and block the loop.
            server.load_cert_chain(
                settings.certificate_file, settings.key_file, password=lambda: b""
            )
            key = "ca_file"
            client.load_verify_locations(settings.ca_file)
        except OSError as error:
            problem = f"is not usable: {error.strerror or error}"
            raise OperatorError(self._location(key), problem, "use files in PEM format") from error
        self.server, self.client = server, client

    def reload(self, now_ms: int) -> bool:
        """Whether the files have changed. After an error the old files stay, for example while a
        new certificate lacks its key, and the error is reported once. Raises OperatorError.
        """
        if self._files is None or not self._files.have_changed(now_ms):
            return False
        self._load()
        return True
