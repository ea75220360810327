"""The error for malformed ZRE input."""

from ..errors import RemoteProtocolError
from .values import Reason


class Malformed(RemoteProtocolError):
    """The input is discarded silently and counted by its reason."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
