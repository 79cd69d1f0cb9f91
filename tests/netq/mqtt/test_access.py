"""The access list of docs/how-to/mqtt.md is sufficient for clients, and protects the server's topics."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import netq
from netq import MqttOptions, Protocol, Purpose
from netq.testing.fixtures import LIMIT
from tests.netq.mqtt.conftest import NewBroker
from tests.pages import Page
from tests.servers.mosquitto import Mosquitto

PAGE = Page("docs/how-to/mqtt.md")
PASSWORD = "secret"


def access_list() -> str:
    """Return the block of the page that begins with a user."""
    return next(block for block in PAGE.blocks() if block.startswith("user "))


def federation(new_broker: NewBroker, folder: Path, without: str = "-") -> Mosquitto:
    """Start a broker with the page's users and access list, except for the lines that contain `without`."""
    access = folder / "access"
    lines = [line for line in access_list().splitlines() if without not in line]
    access.write_text("\n".join(lines) + "\n", encoding="utf-8")
    broker = new_broker(user="aggregator", password=PASSWORD, config=f"acl_file {access}")
    send_control = [str(shutil.which("mosquitto_passwd")), "-b", str(broker.folder / "passwords"), "board", PASSWORD]
    subprocess.run(send_control, check=True, capture_output=True)
    broker.kill()
    broker.start()
    return broker


def communicator(broker: Mosquitto, purpose: Purpose, user: str) -> netq.Communicator:
    mqtt = MqttOptions(prefix="farm/north", user=user, password=PASSWORD)
    return netq.new(Protocol.MQTT, purpose, netq.CommunicatorOptions(netloc=broker.netloc, mqtt=mqtt))


def put_to_two_boards(broker: Mosquitto, times: int) -> None:
    """Put a model to two clients, `times` times, and close all three."""
    model = np.ones(2**18)
    with (
        communicator(broker, Purpose.SERVER, "aggregator") as server,
        communicator(broker, Purpose.CLIENT, "board") as one,
        communicator(broker, Purpose.CLIENT, "board") as other,
    ):
        clients = (one, other)
        for client in clients:
            client.put("here")
        peers = [server.get(timeout=LIMIT).peer for _ in clients]
        for _ in range(times):
            server.put(model, *peers).result(LIMIT)
            for client in clients:
                assert np.array_equal(client.get(timeout=LIMIT).data, model)
        for client in clients:
            client.close(LIMIT)


def test_broadcast_works_with_the_documented_access_list(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = federation(new_broker, tmp_path)
    put_to_two_boards(broker, times=2)  # the first over links that begin small, the second by a group
    assert "g/" in broker.log  # so there was a group
    assert "Denied" not in broker.log


@pytest.mark.slow
def test_clients_without_read_access_to_groups_get_messages(new_broker: NewBroker, tmp_path: Path) -> None:
    put_to_two_boards(federation(new_broker, tmp_path, without="g/#"), times=3)


def test_client_may_not_publish_as_the_server(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = federation(new_broker, tmp_path)
    with communicator(broker, Purpose.SERVER, "board"):
        deadline = time.monotonic() + LIMIT
        while "Denied PUBLISH" not in broker.log:
            assert time.monotonic() < deadline, broker.log
            threading.Event().wait(0.01)
