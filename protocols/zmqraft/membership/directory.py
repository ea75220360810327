"""The members by the log, and the address of each (docs/internals/log.md, "Members").

It decides nothing: the core counts majorities, and members.py changes the configuration.
"""

from collections.abc import Mapping
from operator import attrgetter

from ...host.configurations import ConfigurationLog
from ...raft.membership import Configuration, ConfigurationHistory
from ...raft.messages import EntryBatch
from ..wire.config_codec import (
    ConfigEntry,
    Members,
    batch_config,
    decode_config_entry,
    encode_config_entry,
    member_ids,
)

UNLISTED_PEERS_MAX = 64  # Peers with a hello that no configuration here names.


class MemberDirectory(ConfigurationLog[ConfigEntry]):
    """The config entries of the log with their URLs, and the topology's addresses.

    The log says which peers are members. Their addresses come from the topology, else from the
    configuration. A kelek member's `peer_url` comes from the topology or from its own hello.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        peer_urls: Mapping[str, str],
        base: ConfigEntry | None = None,
        base_index: int = 0,
    ) -> None:
        """Takes the topology's urls and peer_urls, and the configuration at the log's base.

        base is None when nothing on disk names the initial members.
        """
        self.urls = dict(urls)  # By the topology.
        self._peer_urls = dict(peer_urls)
        self.members_known = base is not None  # Else the topology's members are assumed.
        base = base or ConfigEntry(tuple(self.urls.items()))
        history = ConfigurationHistory(base.configuration, (), base_index)
        voters = attrgetter("configuration")
        super().__init__({base_index: base}, history, batch_config, voters)
        self.peer_url_members = frozenset(peer_urls)  # They must send peer messages to `peer_url`.
        self._unlisted: dict[str, None] = {}

    # ---- by the log ----

    def recover(self, batch: EntryBatch) -> None:
        """Reads a batch of our own log at the start; call it in order."""
        configuration = self.read_config(batch)
        if configuration is not None:
            self.history.append(batch.first_index, configuration)
            self.members_known = True

    def install(self, index: int, data: bytes) -> Configuration:
        """Takes the configuration of a snapshot up to index; without one the current stays in
        force.

        Raises RemoteProtocolError when data is no configuration.
        """
        entry = decode_config_entry(data) if data else self.latest
        self.members_known = True
        return self.record(index, entry)

    def set_initial_members(self, members: Members) -> Configuration:
        """Takes the initial members from a peer that knows them. The log begins at index 1."""
        self.members_known = True
        return self.record(0, ConfigEntry(members))

    @property
    def initial_members(self) -> Members | None:
        """The cluster's initial members, if they are known and the log still begins at index 1."""
        return self.at(0).new if self.members_known and self.history.first_index == 0 else None

    def encode_at(self, index: int) -> bytes:
        """Encodes the config entry in force at an index for a snapshot."""
        return encode_config_entry(self.at(index))

    # ---- addresses ----

    @property
    def members(self) -> Members:
        """All members, of both sets while joint, with their client URLs."""
        return tuple((peer, self.urls.get(peer, url)) for peer, url in self.latest.members)

    def url_of(self, peer: str, otherwise: str = "") -> str:
        """Returns the URL for our requests to a peer; `otherwise` when none is known."""
        return (
            self._peer_urls.get(peer)
            or self.urls.get(peer)
            or dict(self.latest.members).get(peer, otherwise)
        )

    def on_peer_url(self, peer: str, url: str) -> bool:
        """Takes a peer_url from a hello. Returns True if it is new; the topology's takes
        precedence."""
        if not url or peer in self._peer_urls:
            return False
        self._peer_urls[peer] = url
        self.peer_url_members = frozenset(self._peer_urls)
        return True

    def forget_peer_url(self, peer: str) -> None:
        """Forgets a peer_url from a hello: without a link to the peer it may become outdated."""
        if peer not in self.urls:
            self._peer_urls.pop(peer, None)
            self.peer_url_members = frozenset(self._peer_urls)

    def is_declared_foreign(self, peer: str) -> bool:
        """Whether the topology names it as a peer of another implementation."""
        return peer in self.urls and peer not in self._peer_urls

    # ---- senders ----

    def add_unlisted(self, peer: str) -> None:
        """Accepts a peer without a configuration that names it: it said hello at `peer_url`, and
        may be a member of a newer configuration."""
        if len(self._unlisted) < UNLISTED_PEERS_MAX:
            self._unlisted[peer] = None

    @property
    def accepted_senders(self) -> frozenset[str]:
        """The peers whose requests are processed."""
        return frozenset((*self.urls, *member_ids(self.latest.members), *self._unlisted))

    @property
    def drift(self) -> list[str]:
        """Differences between the topology and the configuration in force, one line each."""
        found = []
        members = dict(self.latest.members)
        for peer, url in members.items():
            if peer not in self.urls:
                found.append(f"{peer} at {url} is a member, but not in the topology")
            elif self.urls[peer] != url:
                found.append(f"{peer} is at {url} by the log, at {self.urls[peer]} by the topology")
        found += [
            f"{peer} is in the topology, but no member" for peer in self.urls if peer not in members
        ]
        return found
