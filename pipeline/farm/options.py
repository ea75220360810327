"""The options of the kind `farm`. None of them is a password, because Spark shows options in its
plans.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...clients.farm.operations import TIMEOUT_MS
from ...clients.farm.values import checked_servers
from ...protocols.zre import services
from ..log.offset import FarmOffset
from ..log.options import EntryOptions
from ..options import FLAG, TEXT, TIME_MS, OptionType, addresses, one_of, option

if TYPE_CHECKING:
    from .read import FarmView

PASSWORD = (
    "Spark shows options in its plans. Write the password into a file that only you may read, and "
    "name that as secretFile"
)


def _parse_proxy(value: str) -> str:
    try:
        checked_servers(value)
    except ValueError:
        raise ValueError(f"HOST:PORT of an HTTP proxy, not {value!r}") from None
    return value


@dataclass(frozen=True, kw_only=True)
class FarmReadOptions(EntryOptions):
    """What to read from a farm's log."""

    service = services.FARM
    refused = {"password": PASSWORD, "secret": PASSWORD}
    urls: tuple[str, ...] = option(
        addresses("the servers' addresses, tls://HOST:PORT", lambda url: checked_servers([url])),
        "some of the servers, `tls://HOST:PORT`, separated by commas",
        required=True,
    )
    farm: str = option(TEXT, "the farm's name", "farm")
    user: str = option(
        TEXT, "a user of the servers' password file; need not be an administrator", required=True
    )
    secret_file: str = option(
        TEXT, "a file that holds the password only and that only you may read", required=True
    )
    ca_file: str | None = option(
        TEXT,
        "the CA that signed the servers' certificates (PEM); default: those that the system trusts",
    )
    certificate_file: str | None = option(
        TEXT, "the user's certificate (PEM), for servers that ask for one"
    )
    key_file: str | None = option(TEXT, "its private key (PEM), in a file that only you may read")
    tls: str = option(one_of("1.3", "1.2"), "`1.2` for servers without 1.3", "1.3")
    server_name: str = option(
        TEXT, "the name in the certificates, if it differs from the host of `urls`", ""
    )
    proxy: str | None = option(
        OptionType(_parse_proxy, "`HOST:PORT`"),
        "I2P's HTTP proxy on each executor: no TLS, `urls` like `tcp://HOST.b32.i2p:80`",
    )
    i2p: bool = option(
        FLAG, "`true`: no TLS, `urls` are of tunnels that end on each executor", "false"
    )
    timeout_ms: int = option(TIME_MS, "longest time without an answer", str(TIMEOUT_MS))
    fail_on_compaction: bool = option(
        FLAG,
        "`false`: compacted entries are skipped, except the last document of each server",
        "true",
    )

    @property
    def origin(self) -> FarmOffset:
        return FarmOffset(self.farm)

    def connect(self) -> "FarmView":
        from .read import FarmView

        return FarmView(self)
