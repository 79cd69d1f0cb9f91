"""MQTT 5: server and clients connect to one broker, and a link is a pair of topics."""

from netq.mqtt import client, server

__all__ = ["client", "server"]
