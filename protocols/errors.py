"""The two ways in which a protocol can be broken: by the peer, or by ourselves."""


class ProtocolError(Exception):
    """A rule of a protocol was broken; see the two kinds below."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the specification: drop or answer as it says, count it, go on."""


class LocalProtocolError(ProtocolError):
    """We broke the specification: crash, the supervisor restarts us from disk."""
