"""The limit of open files: it bounds the sockets and connections of a process."""

import resource

FILES_MAX = 65_536
_FILES_A_SOCKET = 4  # Its own, its connection, the other side's to us; the program wants some, too.


def raise_nofile_limit() -> int:
    """Raises the limit of open files as far as this user may: each connection is one.

    At the limit libzmq's thread turns in circles. Connections can't be refused before that: a
    listener that is unbound takes the connections that it has accepted with it.

    Returns the limit that holds now.
    """
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if high == resource.RLIM_INFINITY else min(high, FILES_MAX)
    if low != resource.RLIM_INFINITY and low < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, high))
        return wanted
    return FILES_MAX if low == resource.RLIM_INFINITY else low


def sockets_for_files(files: int) -> int:
    """How many sockets of libzmq, one connection each, that many open files are enough for."""
    return min(files, FILES_MAX) // _FILES_A_SOCKET
