"""Shared memory, for peers on one host: Linux."""

from netq.shm import client, server

__all__ = ["client", "server"]
