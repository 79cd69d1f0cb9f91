"""The names of topics under one prefix, and back (docs/reference/mqtt.md). Pure.

    {prefix}/hello                   a server has come, or is gone
    {prefix}/s/{client}/{link}       towards the server      {prefix}/s/{client}/gone    the client is gone
    {prefix}/s/{client}/who          whoever is the server is to say hello
    {prefix}/c/{client}/{link}       towards the client      {prefix}/g/{group}          blocks for several clients

`client` is a client's id at the broker, `link` and `group` are random: all of them 16 hexadecimal digits, so that no
name of a user's gets into a topic but the prefix, which MqttOptions checks.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

GONE, WHO = "gone", "who"  # in the place of a link
ANY = "+"  # in the place of an id, to subscribe to
_ID = "([0-9a-f]{16})"


class LinkTopic(NamedTuple):
    """One link, in one direction: to the server ("s") or to the client ("c")."""

    to: str
    client: str
    link: str

    @property
    def back(self) -> LinkTopic:
        """The other direction."""
        return self._replace(to="c" if self.to == "s" else "s")


class Topics:
    """The names under `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.hello = f"{prefix}/hello"
        self._prefix = prefix
        self._way = re.compile(f"{re.escape(prefix)}/(?:(s)/{_ID}/(?:{_ID}|({GONE}|{WHO}))|(c)/{_ID}/{_ID})")
        self._group = re.compile(f"{re.escape(prefix)}/g/{_ID}")

    def link(self, way: LinkTopic) -> str:
        """The topic of one direction of a link; of several, if it has ANY."""
        return "/".join((self._prefix, *way))

    def group(self, id: str) -> str:
        """The topic of a group's blocks."""
        return f"{self._prefix}/g/{id}"

    def way(self, topic: str) -> LinkTopic | None:
        """Whose link a topic is; None if it is not of this form."""
        found = self._way.fullmatch(topic)
        return LinkTopic(*filter(None, found.groups())) if found else None

    def group_of(self, topic: str) -> str | None:
        """Whose blocks a topic brings; None if it is not of this form."""
        found = self._group.fullmatch(topic)
        return found[1] if found else None


def new_id() -> str:
    """Return an id that nobody else has, nor can guess."""
    return secrets.token_hex(8)


def server_id(prefix: str) -> str:
    """Return the id at the broker of the server of a prefix: one for all that come, so that the last takes over.

    Of letters and digits only: brokers take no `/` in an id where access lists have patterns.
    """
    return "netq-server-" + hashlib.sha256(prefix.encode()).hexdigest()[:16]
