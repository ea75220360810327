"""Errors about protocols: the peer broke the specification, or kelek did."""


class ProtocolError(Exception):
    """A rule of a protocol was broken: the base of the two kinds below."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the specification. Drop or answer the message, count it, and go on."""


class TooLarge(RemoteProtocolError):
    """A message that may be valid exceeds a limit of kelek."""


class LocalProtocolError(ProtocolError):
    """Kelek broke the specification. The process ends, and the supervisor restarts it from disk."""


class StorageFailure(Exception):
    """Base of the errors of storage: a protocol reports the message to its client and goes on."""

    is_damage = False  # Stored data is damaged: this node must fetch it from another one.
