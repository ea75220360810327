"""The certificate, key and authorities of a farm_server, reloaded when a file changes, and notices
before the certificate expires.

Open connections keep the old files; new connections use the new ones.
"""

import ssl
from collections.abc import Callable
from pathlib import Path

from ...net.clock import wall_ms
from ...net.private_files import read_private_file
from ...protocols.errors import RemoteProtocolError
from ...protocols.garlicfarm.wire.validity import expires_ms
from ..errors import OperatorError
from ..topology.farm import NodeFarmSettings
from .users import WatchedFiles

_MODES = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL}
NOTICE_DAYS = (30, 7, 1, 0)
NOTICE_CHECK_MS = 3_600_000
DAY_MS = 86_400_000
KEY_BYTES_MAX = 64 << 10
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class FarmTls:
    """The TLS contexts for both directions; None without TLS."""

    def __init__(
        self,
        settings: NodeFarmSettings,
        location: Callable[[str], str],
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """settings   a node's `farm:`
        location   where a key stands in the topology
        now_ms     since the epoch

        Raises OperatorError.
        """
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        self._settings, self._location, self._now_ms = settings, location, now_ms
        self._expires_ms: int | None = None
        self._notices = 0  # How many of NOTICE_DAYS have come.
        self._next_notice_ms = 0
        self._files: WatchedFiles | None = None
        if not (settings.i2p or settings.insecure_jraft):
            files = (settings.certificate_file, settings.key_file, settings.ca_file)
            self._files = WatchedFiles(*files, *filter(None, [settings.client_ca_file]))
            self._load()

    def _load(self) -> None:
        settings = self._settings
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.minimum_version = client.minimum_version = _VERSIONS[settings.tls]
        server.num_tickets = 0  # Sessions are not resumed: servers stay connected.
        read_private_file(settings.key_file, KEY_BYTES_MAX, self._location("key_file"))
        key = "certificate_file"
        try:
            # Refuses an encrypted key: OpenSSL would prompt at the terminal and block the loop.
            for context in (server, client):  # A link shows the certificate if it is asked for it.
                context.load_cert_chain(
                    settings.certificate_file, settings.key_file, password=lambda: b""
                )
            key = "ca_file"
            client.load_verify_locations(settings.ca_file)
            if settings.client_ca_file:
                key = "client_ca_file"
                server.load_verify_locations(settings.client_ca_file)
                server.verify_mode = _MODES[settings.client_certificates]
        except OSError as error:
            problem = f"is not usable: {error.strerror or error}"
            raise OperatorError(self._location(key), problem, "use files in PEM format") from error
        self._check_validity()
        self.server, self.client = server, client

    def _check_validity(self) -> None:
        path, place = self._settings.certificate_file, self._location("certificate_file")
        try:
            expires_at_ms = expires_ms(Path(path).read_text(encoding="utf-8", errors="replace"))
        except (OSError, RemoteProtocolError) as error:
            raise OperatorError(place, f"{path}: {error}", "use files in PEM format") from error
        if expires_at_ms <= self._now_ms():
            ago = -self._days(expires_at_ms)
            problem = f"the certificate in {path} expired {ago} days ago"
            raise OperatorError(place, problem, "replace it; the server rereads the file")
        self._expires_ms, self._notices, self._next_notice_ms = expires_at_ms, 0, 0

    def _days(self, expires_at_ms: int) -> int:
        return (expires_at_ms - self._now_ms()) // DAY_MS

    @property
    def days_left(self) -> int | None:
        """Whole days until the certificate expires, negative afterwards; None without TLS."""
        return None if self._expires_ms is None else self._days(self._expires_ms)

    @property
    def warning(self) -> str:
        """That the certificate expires in less than 30 days, or ""."""
        days = self.days_left
        if days is None or days >= NOTICE_DAYS[0]:
            return ""
        left = f"expires in {days} days" if days >= 0 else f"expired {-days} days ago"
        return f"{self._settings.certificate_file} {left}"

    def expiry_notice(self, now_ms: int) -> int | None:
        """The days left when the operator should hear of it: once for each of NOTICE_DAYS. It
        looks once an hour.
        """
        days = self.days_left
        if days is None or now_ms < self._next_notice_ms:
            return None
        self._next_notice_ms = now_ms + NOTICE_CHECK_MS
        before, self._notices = self._notices, sum(days < limit for limit in NOTICE_DAYS)
        return days if self._notices > before else None

    def reload(self, now_ms: int) -> bool:
        """Whether the files have changed. After an error the old files stay, for example while a
        new certificate lacks its key, and the error is reported once. Raises OperatorError.
        """
        if self._files is None or not self._files.have_changed(now_ms):
            return False
        self._load()
        return True
