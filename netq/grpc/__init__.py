"""One gRPC stream of bytes for each connection: for networks that let HTTP/2 through and little else."""

from netq.grpc import client, server

__all__ = ["client", "server"]
