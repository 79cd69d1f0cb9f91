"""TCP, plain or under TLS: one socket a link."""

from netq.tcp import client, server

__all__ = ["client", "server"]
