"""`fl.Page` in a federation: it shows what happens, and changes nothing."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fl
from fl.callbacks.base import Observed
from fl.page.overview import Overview
from netq import InvalidOption
from tests.fl.federation import SOON, A, B, Federation, at, gives


def status(page: fl.Page, path: str = "/status.json") -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{page.port}{path}", timeout=SOON) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end


def test_page_shows_rounds_clients_and_metrics() -> None:
    with fl.Page(0) as page, Federation(callbacks=[page]) as federation:
        federation.join(A, gives(1.0, loss=0.5))
        federation.join(B, gives(3.0, loss=1.5))
        federation.round(2)
        found, rounds = status(page), status(page, "/rounds.json")["rounds"]
    assert (found["done"], found["clients"], found["stages"]) == (1, 2, {"done": 2})
    assert [each["name"] for each in found["table"]] == ["client 1", "client 2"]
    assert rounds[0]["metrics"] == {"loss": 1.0}
    assert rounds[0]["spread"]["metrics/loss"] == [0.5, 0.75, 1.0, 1.25, 1.5]


def test_why_a_client_failed_is_shown() -> None:
    def fails(model: Any, config: Any) -> fl.Update:
        raise OSError("no such disk")

    with fl.Page(0) as page, Federation(callbacks=[page]) as federation:
        federation.join(A, gives(1.0))
        federation.join(B, fails)
        federation.round(2)
        row = status(page)["table"][0]
    assert (row["name"], row["stage"], row["failures"]) == ("client 2", "failed", 1)
    assert "no such disk" in row["reason"]


def test_names_of_clients_are_shown() -> None:
    with fl.Page(0) as page, Federation(callbacks=[page]) as federation:
        for id, name in ((A, "board-3"), (B, "<b>&\N{SNOWMAN}")):
            client = fl.Client(gives(1.0), name=name)
            federation.start(client.run, at(federation.server.netloc, id))
        federation.round(2)
        names = [each["name"] for each in status(page)["table"]]
    assert sorted(names) == ["<b>&\N{SNOWMAN}", "board-3"]


def test_connection_that_is_turned_away_is_shown() -> None:
    with fl.Page(0) as page, Federation(callbacks=[page]) as federation:
        with socket.create_connection(federation.server.netloc, SOON) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost:51966\r\nAccept: */*\r\n\r\n")
            sock.recv(100)
        until(lambda: bool(status(page)["refused"]))
        refused = status(page)["refused"][0]
    assert "127.0.0.1" in refused["address"]
    assert "netq" in refused["reason"]


def test_log_lines_are_shown() -> None:
    with fl.Page(0) as page:
        page._handler.emit(logging.LogRecord("netq", logging.WARNING, "", 0, "a line %d", ("of another type",), None))
        logging.getLogger("netq.fl").warning("a line with\n a break")
        texts = [each["text"] for each in status(page)["log"]]
    assert texts[0] == "a line with\\n a break"
    assert texts[1].startswith("a line %d")
    assert not [each for each in logging.getLogger("netq").handlers if type(each).__name__ == "_Lines"]


def test_port_in_use_is_said_and_the_federation_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, fl.Page(taken.getsockname()[1]) as page, Federation(callbacks=[page]) as federation:
        federation.join(A, gives(1.0))
        federation.join(B, gives(3.0))
        assert len(federation.round(2).clients) == 2
        assert page.port == 0
    assert "there is no page: it cannot be served at 127.0.0.1" in caplog.text
    assert "give another port" in caplog.text


def test_page_without_a_federation_shows_none() -> None:
    with fl.Page(0) as page:
        assert status(page)["clients"] == 0


def test_page_that_fails_inside_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Overview) -> bytes:
        raise RuntimeError("a defect of the page")

    monkeypatch.setattr(Overview, "look", broken)
    with fl.Page(0) as page, Federation(callbacks=[page]) as federation:
        federation.join(A, gives(1.0))
        federation.join(B, gives(3.0))
        with pytest.raises(OSError):
            status(page)
        assert len(federation.round(2).clients) == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"port": -1}, "Page.port: -1"),
        ({"port": "8080"}, "Page.port: '8080'"),
        ({"host": "0.0.0.0"}, "Page.host: '0.0.0.0': others can reach it"),
        ({"password": ""}, "Page.password"),
        ({"security": "tls"}, "Page.security: 'tls'"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidOption, match=match):
        fl.Page(**options)


def test_simulation_has_a_page_too() -> None:
    with fl.Page(0) as page:
        fl.simulate({"w": np.zeros(2)}, [gives_w] * 3, 2, callbacks=[page], seed=1)
        found = status(page)
    assert (found["done"], found["rounds"]) == (2, 2)


def test_any_thread_may_ask_where_clients_stand_while_rounds_go_on() -> None:
    class Asks(fl.Callback):
        def __init__(self) -> None:
            self.stages: set[fl.Stage] = set()
            self.errors: list[Exception] = []
            self._over = threading.Event()

        def listens(self, server: Observed) -> None:
            self.thread = threading.Thread(target=self._ask, args=(server,))
            self.thread.start()

        def _ask(self, server: Observed) -> None:
            try:
                while not self._over.is_set():
                    self.stages |= {each.stage for each in server.members()}
            except Exception as error:
                self.errors.append(error)

        def end(self) -> None:
            self._over.set()
            self.thread.join()

    asks = Asks()
    try:
        fl.simulate({"w": np.zeros(2)}, [gives_w] * 30, 20, callbacks=[asks], seed=1)
    finally:
        asks.end()
    assert asks.errors == []
    assert fl.Stage.DONE in asks.stages


def gives_w(model: Any, config: Any) -> fl.Update:
    return fl.Update({"w": model["w"] + 1}, 1)
