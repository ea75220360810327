"""A few rows of a table for a person to look at."""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from ...clients.table.arguments import Pair, behind_key, behind_prefix, parse_table
from ...clients.table.async_table import AsyncTable
from ..render import data_text

ROWS_MAX = 50
BYTES_MAX = 1 << 20  # Of the rows of one answer, beside the last one.
SHOWN_BYTES_MAX = 256  # Of a key or value.
TEXT_MAX = 4096  # Of a parameter.


class BrowseError(Exception):
    """Why there are no rows."""

    def __init__(self, problem: str, status: int = 400) -> None:
        super().__init__(problem)
        self.status = status


class BrowseRequest(NamedTuple):
    """The rows of a table whose keys begin with prefix, from the key `start` on."""

    table: int | str
    prefix: bytes
    start: bytes

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Self:
        """Raises BrowseError."""
        table, prefix, start = (parameters.get(name, "") for name in ("table", "prefix", "start"))
        try:
            wanted_table = parse_table(table)
        except ValueError as error:
            raise BrowseError(str(error)) from None
        if max(len(prefix), len(start)) > TEXT_MAX:
            raise BrowseError(f"prefix: at most {TEXT_MAX} characters")
        try:
            wanted = _data(prefix)
            return cls(wanted_table, wanted, max(wanted, base64.b64decode(start, b"-_")))
        except ValueError:
            raise BrowseError("prefix: write text, or hexadecimal as 0x6b65") from None

    async def read(self, table: AsyncTable) -> dict[str, Any]:
        """The rows, and the key of the next ones in base64. Raises kelek.TableError, ValueError."""
        pairs: list[Pair] = []
        end = behind_prefix(self.prefix)
        async for page in table.scan_pages(start=self.start, end=end, limit=ROWS_MAX):
            pairs += page
            if sum(len(value) for _, value in pairs) >= BYTES_MAX:
                break
        is_cut = len(pairs) >= ROWS_MAX or sum(len(value) for _, value in pairs) >= BYTES_MAX
        following = behind_key(pairs[-1][0]) if is_cut else b""
        return {
            "rows": [
                {"key": _text(key), "value": _text(value), "bytes": len(value)}
                for key, value in pairs
            ],
            "next": base64.urlsafe_b64encode(following).decode(),
        }


def _data(text: str) -> bytes:
    """As a command takes DATA. Raises ValueError."""
    return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()


def _text(data: bytes) -> str:
    shown = data_text(data[:SHOWN_BYTES_MAX])
    return shown if len(data) <= SHOWN_BYTES_MAX else f"{shown}…"
