"""ZeroMQ contexts and sockets that only their owner closes (resources.py), never a finalizer."""

import zmq


class Socket(zmq.Socket[bytes]):
    """A socket without pyzmq's finalizer, which at the interpreter's exit would close it under a
    thread that still waits for it."""

    def __del__(self) -> None:
        pass


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A context without pyzmq's finalizer, which can wait for ever: the collector clears the weak
    references to the sockets before it, so it ends a context whose sockets are open."""

    _socket_class = Socket

    def __del__(self) -> None:
        pass
