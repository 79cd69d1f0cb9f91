"""gRPC: one bidirectional stream of bytes for each connection. For networks that let only HTTP/2 through."""

from netq.grpc import client, server

__all__ = ["client", "server"]
