"""What both sides tell grpc of a connection: its method, its limits, and which of its habits are off.

option                    value    why
max message length        see it   a packet is at most MOST and some headers; who sends more is not netq
bdp_probe, keepalive      off      each sends PINGs of HTTP/2, and a server cuts off who sends too many; the session's
                                   own heartbeat is data, so it passes every proxy and finds a half-open link
lookahead_bytes           WINDOW   without the probe, what a stream may have under way: WINDOW bytes a round trip
retries, service config   off      netq tries again by itself, and resumes
local subchannel pool     on       each attempt is an attempt: no pause of grpc's, and no connection of another's
max concurrent streams    16       a link is one stream of a connection of its own (a proxy opens more connections):
                                   what a stranger may hold is some packets for each
max ping strikes          none     a core that complains queues each complaint, and its memory has no bound
http proxy                off      of the environment: other transports do not go by it, and no log would name it
so_reuseport              off      else two servers share a port, and each has half of the clients
"""

from __future__ import annotations

from netq.grpc.packet_size import MOST
from netq.options import ConnectionOptions, NetworkLocation

SERVICE, CONNECT = "netq.Queue", "Connect"
METHOD = f"/{SERVICE}/{CONNECT}"
LIMIT = 2 * MOST  # bytes of one gRPC message: what a stranger can make us hold
WINDOW = 4 * 1024 * 1024  # bytes
_STREAMS = 16
_NEVER = 2**31 - 1
_LINGER = 100  # milliseconds for which the core keeps a channel that has failed and is closed

Options = list[tuple[str, int | str]]

_BOTH: Options = [
    ("grpc.max_receive_message_length", LIMIT),
    ("grpc.max_send_message_length", LIMIT),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # identity
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.keepalive_time_ms", _NEVER),
    ("grpc.http2.max_ping_strikes", 0),
]


def of_client(netloc: NetworkLocation) -> Options:
    """Return the options of a channel to an address of `netloc`, by whose name the server is to be known."""
    host = netloc.host.partition("%")[0]  # the zone of a link-local address is no part of who it is
    return [
        *_BOTH,
        ("grpc.default_authority", f"[{host}]:{netloc.port}" if ":" in host else f"{host}:{netloc.port}"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", _LINGER),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]


def of_server(options: ConnectionOptions) -> Options:
    """Return the options of a server. Who opens no stream in time is cut by grpc, who says nothing on one by netq."""
    patience = max(1, int(min(options.handshake_timeout * 1000, _NEVER)))
    return [
        *_BOTH,
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.server_handshake_timeout_ms", patience),
        ("grpc.max_connection_idle_ms", patience),
    ]
