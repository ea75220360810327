"""Who the members are, as the log has it, and where each of them is.

It decides nothing: core counts, config_changes changes. docs/internals/log.md, "Members".
"""

from collections.abc import Mapping

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

UNLISTED_PEERS_MAX = 64  # Peers that say hello and are in no configuration that we know.


class MemberDirectory:
    """The config entries of our log with their urls, and what is known beside them.

    Who is a member, the log says. Where a member is, the topology says when it names it, else the
    configuration; a kelek member's `peer_url` comes from the topology or from its own hello.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        peer_urls: Mapping[str, str],
        base: ConfigEntry | None = None,
        base_index: int = 0,
    ) -> None:
        """urls and peer_urls are the topology's; base is the configuration at the log's base, None
        when nothing on our disk says what the cluster began with."""
        self._urls = dict(urls)
        self._peer_urls = dict(peer_urls)
        self._entries = {base_index: base or ConfigEntry(tuple(self._urls.items()))}
        self.members_known = base is not None  # Else the topology stands in for it.
        self.history = ConfigurationHistory(self._entries[base_index].configuration, (), base_index)
        self.peer_url_members = frozenset(
            peer_urls
        )  # Who has a door of its own, and counts only there.
        self._unlisted: dict[str, None] = {}

    # What the log says.

    def read_config(self, batch: EntryBatch) -> Configuration | None:
        """What a batch puts in force (raft.messages.Setup.configuration)."""
        entry = batch_config(batch)
        if entry is None:
            return None
        self._entries[batch.first_index] = entry
        return entry.configuration

    def recover(self, batch: EntryBatch) -> None:
        """A batch of our own log at the start, in order."""
        configuration = self.read_config(batch)
        if configuration is not None:
            self.history.append(batch.first_index, configuration)
            self.members_known = True

    def install(self, index: int, data: bytes) -> Configuration:
        """A snapshot up to index holds this one, or none: then what we know goes on.

        Raises RemoteProtocolError when it is no configuration.
        """
        entry = self._entries[index] = decode_config_entry(data) if data else self.entry
        self.members_known = True
        return entry.configuration

    def set_initial_members(self, members: Members) -> Configuration:
        """Somebody who knows says what the cluster began with; the log begins at 1."""
        entry = self._entries[0] = ConfigEntry(members)
        self.members_known = True
        return entry.configuration

    def at(self, index: int) -> ConfigEntry:
        """What was in force at an index, which is not below the base."""
        return self._entries[self.history.entry_at(index)]

    @property
    def entry(self) -> ConfigEntry:
        """What is in force."""
        return self._entries[self.history.last_index]

    @property
    def initial_members(self) -> Members | None:
        """What the cluster began with, if we know it and our log still begins there."""
        return (
            self._entries[0].new if self.members_known and self.history.first_index == 0 else None
        )

    def encode_at(self, index: int) -> bytes:
        """What was in force at an index as it goes into a snapshot."""
        return encode_config_entry(self.at(index))

    # Where they are.

    @property
    def members(self) -> Members:
        """All members, of both sets while joint, and where clients reach them."""
        return tuple((peer, self._urls.get(peer, url)) for peer, url in self.entry.members)

    def url_of(self, peer: str, otherwise: str = "") -> str:
        """Where our requests to a peer go; `otherwise` when nothing is known of it."""
        return (
            self._peer_urls.get(peer)
            or self._urls.get(peer)
            or dict(self.entry.members).get(peer, otherwise)
        )

    def on_peer_url(self, peer: str, url: str) -> bool:
        """It says itself where its door is; returns whether that is news: the topology wins."""
        if not url or peer in self._peer_urls:
            return False
        self._peer_urls[peer] = url
        self.peer_url_members = frozenset(self._peer_urls)
        return True

    def forget_peer_url(self, peer: str) -> None:
        """Nobody has to do with it any more: what it said of itself may be out of date."""
        if peer not in self._urls:
            self._peer_urls.pop(peer, None)
            self.peer_url_members = frozenset(self._peer_urls)

    def is_declared_foreign(self, peer: str) -> bool:
        """Whether the topology names it as one of another implementation."""
        return peer in self._urls and peer not in self._peer_urls

    # Who is heard.

    def add_unlisted(self, peer: str) -> None:
        """It said hello at the peers' door: it may be a member of a newer configuration."""
        if len(self._unlisted) < UNLISTED_PEERS_MAX:
            self._unlisted[peer] = None

    @property
    def accepted_senders(self) -> frozenset[str]:
        """Whose requests are taken in."""
        return frozenset((*self._urls, *member_ids(self.entry.members), *self._unlisted))

    @property
    def drift(self) -> list[str]:
        """Where the topology differs from what is in force, in words."""
        found = []
        members = dict(self.entry.members)
        for peer, url in members.items():
            if peer not in self._urls:
                found.append(f"{peer} at {url} is a member, the topology does not name it")
            elif self._urls[peer] != url:
                found.append(f"{peer} is at {url}, the topology says {self._urls[peer]}")
        found += [f"{peer} is no member" for peer in self._urls if peer not in members]
        return found
