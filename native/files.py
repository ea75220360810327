"""The limit of open files, which bounds the sockets and connections of a process."""

import resource

FILES_MAX = 65_536
_FILES_A_SOCKET = 4  # Of the socket, its connection, the peer's connection, and the program.


def raise_nofile_limit() -> int:
    """Raises the limit of open files as far as this user may; returns the limit that then holds.

    Each connection is a file. At the limit libzmq's thread loops without progress. Connections
    can't be refused earlier: unbinding a listener also closes the connections it has accepted.
    """
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if high == resource.RLIM_INFINITY else min(high, FILES_MAX)
    if low != resource.RLIM_INFINITY and low < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, high))
        return wanted
    return FILES_MAX if low == resource.RLIM_INFINITY else low


def sockets_for_files(files: int) -> int:
    """How many sockets with one connection each that many files allow."""
    return min(files, FILES_MAX) // _FILES_A_SOCKET
