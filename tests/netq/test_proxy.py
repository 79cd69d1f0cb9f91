"""Which proxy is used: the option, the variables of the environment, and the hosts that need none."""

from __future__ import annotations

import pytest

from netq import CommunicatorOptions, InvalidOption
from netq.proxy import Proxy, proxy_for


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://proxy:3128", Proxy("http", "proxy", 3128)),
        ("http://proxy:3128/", Proxy("http", "proxy", 3128)),
        ("proxy:3128", Proxy("http", "proxy", 3128)),
        ("http://proxy", Proxy("http", "proxy", 80)),
        ("HTTP://[2001:db8::1]:9", Proxy("http", "2001:db8::1", 9)),
        ("socks5://proxy", Proxy("socks5", "proxy", 1080)),
        ("socks5h://proxy:9", Proxy("socks5", "proxy", 9)),
        ("http://me:a%40b%3Ac@proxy:1", Proxy("http", "proxy", 1, "me", "a@b:c")),
        ("http://me@proxy:1", Proxy("http", "proxy", 1, "me", "")),
    ],
)
def test_url(text: str, expected: Proxy) -> None:
    assert proxy_for(text, "server", 1) == expected


@pytest.mark.parametrize(
    "wrong",
    ["", "  ", "environment ", "http://", "http://proxy:0", "http://pr\noxy:1", "http://pr\0oxy:1", "http://u\udcff@proxy:1",
     "https://proxy:1", "socks4://proxy:1", "http://proxy:99999", "http://proxy:x", "http://proxy/path",
     "http://proxy?x", "http://[::1", "http://u:" + "p" * 256 + "@proxy", 3128, None, b"http://proxy:1"],
)  # fmt: skip
def test_what_is_no_url(wrong: str) -> None:
    with pytest.raises(InvalidOption, match=r'^CommunicatorOptions.proxy: .*expected "http://HOST:PORT"'):
        CommunicatorOptions(proxy=wrong)


def test_password_is_seen_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    options = CommunicatorOptions(proxy="http://me:secret@proxy:1")
    assert "secret" not in repr(options)
    found = proxy_for(options.proxy, "server", 1)
    assert found is not None
    assert (found.password, str(found)) == ("secret", "http://proxy:1")
    assert "secret" not in repr(found)
    for wrong in (
        "http://me:secret@proxy:x",
        "ftp://me:secret@proxy:1",
        "me:secret@proxy:x",
        "http://me:secret",
        "me:secret",
    ):
        with pytest.raises(InvalidOption) as raised:
            CommunicatorOptions(proxy=wrong)
        assert "secret" not in str(raised.value)
        monkeypatch.setenv("https_proxy", wrong)
        with pytest.raises(InvalidOption, match=r"^\$https_proxy: ") as raised:
            proxy_for("environment", "server", 1)
        assert "secret" not in str(raised.value)


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> str:
        return str(proxy_for("environment", "server", 1))

    assert found() == "None"
    monkeypatch.setenv("http_proxy", "http://other:1")  # for HTTP in the clear
    assert found() == "None"
    monkeypatch.setenv("ALL_PROXY", "socks5://all:1")
    assert found() == "socks5://all:1 ($ALL_PROXY)"
    monkeypatch.setenv("https_proxy", "")
    assert found() == "socks5://all:1 ($ALL_PROXY)"
    monkeypatch.setenv("https_proxy", "secure:1")
    assert found() == "http://secure:1 ($https_proxy)"
    assert proxy_for("none", "server", 1) is None


@pytest.mark.parametrize(
    ("host", "exempt"),
    [
        ("localhost", True),
        ("127.0.0.5", True),
        ("::1", True),
        ("hospital.example", True),
        ("server.hospital.example", True),
        ("Server.Hospital.Example.", True),
        ("nothospital.example", False),
        ("10.1.2.3", True),
        ("11.1.2.3", False),
        ("2001:db8::7", True),
        ("192.0.2.7", True),
        ("0.0.0.0", True),
        ("::", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.7", True),
        ("fe80::1", True),
        ("a.star.example", True),
        ("spaced.example", True),
        ("port.example", False),
        ("example", False),
    ],
)
def test_hosts_without_a_proxy(monkeypatch: pytest.MonkeyPatch, host: str, exempt: bool) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    exempted = ".hospital.example, 10.0.0.0/8,2001:db8::/32,192.0.2.7, port.example:444 ,,"
    exempted += "*.star.example spaced.example. [fe80::1]"
    monkeypatch.setenv("no_proxy", exempted)
    assert (proxy_for("environment", host, 443) is None) == exempt
    assert proxy_for("environment", "port.example", 444) is None
    assert proxy_for("http://proxy:1", host, 443) is not None  # the option is stronger
    monkeypatch.setenv("no_proxy", "*")
    assert proxy_for("environment", host, 443) is None
