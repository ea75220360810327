"""What is malformed in ZRE, with the reason that is counted."""

from ..errors import RemoteProtocolError
from .values import Reason


class Malformed(RemoteProtocolError):
    """To be discarded silently and counted."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
