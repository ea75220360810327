"""ZeroMQ contexts and sockets without finalizers: their owner closes them (resources.py)."""

import zmq


class Socket(zmq.Socket[bytes]):
    """A socket without pyzmq's finalizer.

    At the interpreter's exit that would close it while another thread waits for it.
    """

    def __del__(self) -> None:
        pass


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A context without pyzmq's finalizer, which can block forever.

    The collector clears the weak references to the sockets first, so the finalizer would terminate
    a context with open sockets.
    """

    _socket_class = Socket

    def __del__(self) -> None:
        pass
