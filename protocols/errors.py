"""The two ways in which a protocol can be broken: by the peer, or by ourselves."""


class ProtocolError(Exception):
    """A rule of a protocol was broken; see the two kinds below."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the specification: drop or answer as it says, count it, go on."""


class TooLarge(RemoteProtocolError):
    """The peer sent what may be right, but exceeds a limit of ours."""


class LocalProtocolError(ProtocolError):
    """We broke the specification: crash, the supervisor restarts us from disk."""


class StorageFailure(Exception):
    """Base of the errors of storage: a protocol reports the message to its client and goes on."""

    is_damage = False  # Stored data is damaged: this node must fetch it from another one.
