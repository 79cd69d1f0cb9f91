"""Which proxy a client connects through: by an option, or by the environment. netq/io/tunnel.py speaks with it.

variable                  meaning
https_proxy, all_proxy    the URL of the proxy; the first that is set, in small letters or capitals
no_proxy                  hosts, domains and networks that are reached without it, separated by commas; * for all

http_proxy is for HTTP in the clear only, and is not read. `localhost` and loopback addresses are always reached without
a proxy.
"""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from netq.errors import InvalidOption
from netq.text import format_netloc, printable
from netq.utils.secret import Hidden

ENVIRONMENT, NONE = "environment", "none"  # values of CommunicatorOptions.proxy besides a URL

Scheme = Literal["http", "socks5"]
_SCHEMES: dict[str, Scheme] = {"http": "http", "socks5": "socks5", "socks5h": "socks5"}  # h: the proxy resolves names
_PORTS = {"http": 80, "socks5": 1080}  # the default by scheme
_EXPECTED = (
    'expected "http://HOST:PORT" or "socks5://HOST:PORT", with USER:PASSWORD@ before the host if the proxy asks for '
    'them; "environment", or "none"'
)
_LONGEST = 255  # bytes of a user or a password (RFC 1929, section 2)


@dataclass(frozen=True)
class Proxy:
    """A proxy. Its text has no password. `origin`: the variable that names it, "" for the option."""

    scheme: Scheme
    host: str
    port: int
    user: str | None = None
    password: str = Hidden("")
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{format_netloc(self.host, self.port)}" + (f" (${self.origin})" if self.origin else "")


def check(where: str, text: object) -> str:
    """Return the value of the option `where`; one with a password is hidden. Raises InvalidOption."""
    if not isinstance(text, str):
        raise InvalidOption(f"{where}: {text!r}; {_EXPECTED}")
    if text in (ENVIRONMENT, NONE):
        return text
    return Hidden(text) if _parse(where, text).password else text


def proxy_for(option: str, host: str, port: int) -> Proxy | None:
    """Return the proxy for a server, None for none. Raises InvalidOption for a variable without a valid URL."""
    if option == NONE:
        return None
    if option != ENVIRONMENT:
        return _parse("CommunicatorOptions.proxy", option)
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        if text := os.environ.get(name):
            return None if _is_exempt(host, port) else _parse(f"${name}", text, name)
    return None


def _parse(where: str, text: str, origin: str = "") -> Proxy:
    found = None
    with suppress(ValueError):  # a port or an IPv6 address that is none, or text that is no UTF-8
        found = _parsed(text, origin)
    if found is None:
        shown = f"…@{text.rpartition('@')[2]}" if "@" in text else text  # its password is not to be seen
        shown = re.sub(r":(?!//)(?!\d+/?$)[^:\]]+$", ":…", shown)  # nor one without a host behind it
        hint = "; netq does not encrypt the way to the proxy itself, only what passes it"
        hint = hint if text.lower().startswith("https://") else ""
        raise InvalidOption(f"{where}: {printable(shown)!r}; {_EXPECTED}{hint}")
    return found


def _parsed(text: str, origin: str) -> Proxy | None:
    """Return what a URL names, None or ValueError for another text."""
    url = urlsplit(text if "://" in text else f"http://{text}")
    scheme = _SCHEMES.get(url.scheme)
    user = None if url.username is None else unquote(url.username)
    password = Hidden(unquote(url.password or ""))
    too_long = max(len((user or "").encode()), len(password.encode())) > _LONGEST
    wrong = url.path not in ("", "/") or url.query or url.fragment or url.port == 0
    if scheme is None or not url.hostname or not re.fullmatch("[!-~]+", text) or wrong or too_long:
        return None
    port = _PORTS[scheme] if url.port is None else url.port
    return Proxy(scheme, unquote(url.hostname), port, user, password, origin)


def _is_exempt(host: str, port: int) -> bool:
    """Return whether the environment says that this host is reached without a proxy."""
    host = host.lower().rstrip(".")
    address = _address(host)
    if host == "localhost" or (address is not None and (address.is_loopback or address.is_unspecified)):
        return True
    for entry in re.split("[,\\s]+", (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").lower()):
        name = entry.removeprefix("*").lstrip(".").rstrip(".") or entry
        if name in ("*", host, format_netloc(host, port)) or (name and host.endswith(f".{name}")):
            return True
        with suppress(ValueError):
            if address is not None and address in ipaddress.ip_network(name.strip("[]"), strict=False):
                return True
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is, None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return address if mapped is None else mapped
