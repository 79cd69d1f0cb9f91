"""What reaches the user names options of the command line and addresses: none of the API's, and no id."""

from __future__ import annotations

import ast
import logging
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from netq import Closed, MessageTooLarge
from netq.bench import words
from netq.options import NetworkLocation

HERE = NetworkLocation("here", 5)
CLIENT, SERVER, MQTT = words.of_client(HERE), words.of_server(HERE, mqtt=False), words.of_server(HERE, mqtt=True)
NO_MERGE = "--no-put-merge: TLS joins, only TCP can send each by itself; expected --put-merge"
FOREIGN = re.compile(
    r"\b\w+Options\b|\bProtocol\.[A-Z]|session_timeout|\(linger\)|\(netloc\)|\bmessage_size\b|\bput_merge\b|\bclose\("
)
ID = uuid.UUID("45f54ebe-cc66-4b4d-acf5-3791f759c071")
NETQ = Path(__file__).parents[3] / "netq"


@pytest.mark.parametrize(
    ("text", "client", "server"),
    [
        ("CommunicatorOptions.netloc: x", "--netloc: x", "--netloc: x"),
        ("cannot listen (netloc): x", "cannot listen (--netloc): x", "cannot listen (--netloc): x"),
        ("SecurityOptions.certificate: f: x", "--tls: f: x", "--certificate: f: x"),
        ("SecurityOptions.key: f: x", "--key: f: x", "--key: f: x"),
        ("set SecurityOptions(certificate=...), or", "give --tls CA.pem, or", "give --tls CA.pem, or"),
        ("MqttOptions.prefix: 'a#'", "--prefix: 'a#'", "--prefix: 'a#'"),
        ("see MqttOptions.user and password", "see --user and --password", "see --user and --password"),
        ("netq.Protocol.GRPC needs grpcio", "grpc needs grpcio", "grpc needs grpcio"),
        ("Protocol.MQTT needs paho", "mqtt needs paho", "mqtt needs paho"),
        ("ConnectionOptions.transport_size: 1; x", "--transport-size: 1; x", "--transport-size: 1; x"),
        (
            "ConnectionOptions.put_merge: False; TLS joins, only TCP can send each by itself; expected True",
            NO_MERGE,
            NO_MERGE,
        ),
        ("netq.security.certificates needs cryptography", "--secure needs cryptography", "--secure needs cryptography"),
        ("it waits; close(timeout=...) waits no longer than that", "it waits", "it waits"),
        ("[Errno 111] Connection refused", "Connection refused", "Connection refused"),
        (str(Closed(ID, "gone")), "the server at here:5: gone", "a client: gone"),
        (
            str(MessageTooLarge(None, 2, 1)),
            "the server: a message of 2 bytes; it takes at most 1 (its --max-message)",
            "the server: a message of 2 bytes; it takes at most 1 (its --max-message)",
        ),
    ],
)
def test_options_of_the_api_become_those_of_the_command(text: str, client: str, server: str) -> None:
    assert (CLIENT(text), SERVER(text)) == (client, server)


def test_at_a_broker_both_sides_have_tls() -> None:
    assert MQTT("SecurityOptions.certificate: f") == "--tls: f"


def test_places_are_as_netloc_takes_them() -> None:
    assert words.of_client(NetworkLocation("/run/q", 0))("/run/q:0: no") == "/run/q: no"
    assert words.of_client(NetworkLocation("::1", 5))("::1:5: no") == "[::1]:5: no"
    assert words.of_client(None)(str(Closed(ID, "gone"))) == "the server: gone"


def _strings() -> Iterator[str]:
    """All text in netq's code that a user of the command could be told, a piece of an f-string too."""
    for path in NETQ.glob("**/*.py"):
        if {"bench", "testing", "aio.py", "__init__.py"}.isdisjoint(path.relative_to(NETQ).parts):
            tree = ast.parse(path.read_text())
            documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                    yield node.value


def test_nothing_that_netq_could_say_names_an_option_of_its_api() -> None:
    told = [text for text in _strings() if FOREIGN.search(text) and " " in text]
    assert len(told) > 10
    assert [text for text in told if FOREIGN.search(CLIENT(text)) or FOREIGN.search(SERVER(text))] == []


def test_trouble_is_told_in_these_words_from_when_it_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("netq.any")
    with words.Trouble(CLIENT, is_told=False) as trouble:
        log.warning("%s: no link for 1 s (session_timeout)", ID)
        assert trouble.last == "the server at here:5: no link for 1 s"
        assert capsys.readouterr() == ("", "")
        trouble.is_told = True
        log.warning("at here:5 (netloc)")
    log.warning("and nothing after it")
    assert "netq bench: at here:5 (--netloc)\n" in capsys.readouterr().err
