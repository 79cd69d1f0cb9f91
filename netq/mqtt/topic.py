"""Formats and parses the topics under one prefix (docs/reference/mqtt.md). Pure.

    {prefix}/hello                   a server is available, or has gone
    {prefix}/s/{client}/{link}       towards the server      {prefix}/s/{client}/gone    the client is gone
    {prefix}/s/{client}/who          asks the server to publish hello
    {prefix}/c/{client}/{link}       towards the client      {prefix}/g/{group}          blocks for several clients

`client` is a client's id at the broker; `link` and `group` are random. All are 16 hexadecimal digits, so the prefix,
which MqttOptions checks, is the only text of a user in a topic.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

GONE, WHO = "gone", "who"  # instead of a link
ANY = "+"  # instead of an id, in subscriptions
_ID = "([0-9a-f]{16})"


class LinkTopic(NamedTuple):
    """One direction of a link: to the server ("s") or to the client ("c")."""

    to: str
    client: str
    link: str

    @property
    def reverse(self) -> LinkTopic:
        """The topic of the other direction."""
        return self._replace(to="c" if self.to == "s" else "s")


class Topics:
    """The topics under `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.hello = f"{prefix}/hello"
        self._prefix = prefix
        self._link_pattern = re.compile(f"{re.escape(prefix)}/(?:(s)/{_ID}/(?:{_ID}|({GONE}|{WHO}))|(c)/{_ID}/{_ID})")
        self._group_pattern = re.compile(f"{re.escape(prefix)}/g/{_ID}")

    def link(self, link_topic: LinkTopic) -> str:
        """Return the topic of one direction of a link; with ANY, a filter for several."""
        return "/".join((self._prefix, *link_topic))

    def group(self, id: str) -> str:
        """Return the topic of a group's blocks."""
        return f"{self._prefix}/g/{id}"

    def parse_link(self, topic: str) -> LinkTopic | None:
        """Return the link of a topic; None if it is not the topic of a link."""
        found = self._link_pattern.fullmatch(topic)
        return LinkTopic(*filter(None, found.groups())) if found else None

    def parse_group(self, topic: str) -> str | None:
        """Return the group of a topic; None if it is not the topic of a group."""
        found = self._group_pattern.fullmatch(topic)
        return found[1] if found else None


def new_id() -> str:
    """Return a unique id that cannot be guessed."""
    return secrets.token_hex(8)


def server_id(prefix: str) -> str:
    """Return the id of a prefix's server at the broker. All its servers have the same id, so the newest takes over.

    It has no `/`: brokers whose access lists have patterns refuse that in an id.
    """
    return "netq-server-" + hashlib.sha256(prefix.encode()).hexdigest()[:16]
