"""Events that the owner of a Raft host passes in, on any wire: receive() processes each at once.

What the owner must do then is the result of the host's next wake(). Events of one wire alone are
among the values of its server.
"""

from typing import Generic, NamedTuple, TypeVar

Source = TypeVar("Source")
Data = TypeVar("Data")


class Requests(NamedTuple, Generic[Source, Data]):
    """Requests of clients and other servers at one of our sockets or connections.

    unix_s   the time, where requests expire
    """

    source: Source
    data: Data
    unix_s: int = 0


class Responses(NamedTuple, Generic[Source, Data]):
    """Answers of another server, on our link to it."""

    server: Source
    data: Data


class LinkLost(NamedTuple, Generic[Source]):
    """Our link to another server has ended, with its answers."""

    server: Source
