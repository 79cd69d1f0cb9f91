"""The options of grpc channels and servers: the method, the limits, and the features of grpc that are turned off.

option                    value    why
max message length        LIMIT    a packet has at most MOST bytes and some headers; a larger one is not from netq
bdp_probe, keepalive      off      both send HTTP/2 PINGs, and servers disconnect clients that send too many. The
                                   session's heartbeat is data: it passes every proxy, and detects a half-open link
lookahead_bytes           WINDOW   without the probe, the flow-control window: WINDOW bytes per round trip
retries, service config   off      netq reconnects by itself, and resumes
local subchannel pool     on       each attempt makes a new connection, without grpc's backoff
max concurrent streams    16       a link is one stream on its own connection (a proxy opens more connections), so
                                   this bounds the memory that an unknown client can occupy
max ping strikes          none     grpc's core queues each complaint about PINGs without a bound
http proxy                off      netq chooses the proxy as for other transports, and connects to it
http connect              server   what to ask that proxy for
so_reuseport              off      otherwise two servers share a port, and each gets half of the clients
"""

from __future__ import annotations

from netq.grpc.packet_size import MOST
from netq.io.tunnel import authorization, server_name
from netq.options import ConnectionOptions, NetworkLocation
from netq.proxy import Proxy
from netq.text import format_netloc

SERVICE, CONNECT = "netq.Queue", "Connect"
METHOD = f"/{SERVICE}/{CONNECT}"
LIMIT = 2 * MOST  # bytes of one gRPC message: the memory that an unknown peer can occupy
WINDOW = 4 * 1024 * 1024  # bytes
_STREAMS = 16
_NEVER = 2**31 - 1
_BACKOFF = 100  # milliseconds; grpc's core keeps a failed channel for so long after it is closed

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


def of_client(netloc: NetworkLocation, proxy: Proxy | None = None) -> Options:
    """Return the options of a channel to an address of `netloc`, or of the proxy on the way to it.

    The host of `netloc` is the name that the server must prove. Raises OSError if a proxy cannot be asked for it.
    """
    name = format_netloc(netloc.host.partition("%")[0], netloc.port)  # without the zone of a link-local address
    tunnel: Options = []
    if proxy is not None:
        target = format_netloc(server_name(netloc).decode(), netloc.port)
        tunnel = [("grpc.http_connect_server", target), ("grpc.http_connect_headers", authorization(proxy))]
    return [
        *_BOTH,
        *tunnel,
        ("grpc.default_authority", name),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", _BACKOFF),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]


def of_server(options: ConnectionOptions) -> Options:
    """Return the options of a server. grpc disconnects clients that open no stream in time."""
    timeout = max(1, int(min(options.handshake_timeout * 1000, _NEVER)))
    return [
        *_BOTH,
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.server_handshake_timeout_ms", timeout),
        ("grpc.max_connection_idle_ms", timeout),
    ]
