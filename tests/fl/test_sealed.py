"""A sealed federation over a real broker: a spy that reads all topics finds nothing of the model or of the clients."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fl
from fl.messages import Update
from netq import CommunicatorOptions, MqttOptions, Protocol, Purpose, SealOptions
from netq.mqtt.topic import new_id
from tests.fl.federation import SOON
from tests.netq.authority import Authority
from tests.netq.mqtt.stranger import Stranger
from tests.servers.mosquitto import Mosquitto

CLIENTS, SIZE = 3, 60_000
LAYER, METRIC = "layer.of.the.hospital", "patients_of_the_ward"


def weights(seed: int) -> NDArray[Any]:
    return np.random.default_rng(seed).random(SIZE, dtype=np.float32)


def federate(broker: Mosquitto, prefix: str, seals: list[SealOptions | None]) -> NDArray[Any]:
    """Run two rounds; return the last model."""

    def options(seal: SealOptions | None) -> CommunicatorOptions:
        return CommunicatorOptions(netloc=broker.netloc, mqtt=MqttOptions(prefix), seal=seal)

    def client(number: int) -> None:
        def train(model: Mapping[str, Any], config: Mapping[str, Any]) -> Update:
            return Update({LAYER: weights(number)}, 1, {METRIC: 0.5})

        fl.Client(train).run(options(seals[number]), Protocol.MQTT)

    with (
        ThreadPoolExecutor(CLIENTS) as pool,
        fl.Server(
            {LAYER: weights(0)}, options(seals[0]), protocol=Protocol.MQTT, patience=fl.Patience(deadline=3 * SOON)
        ) as server,
    ):
        running = [pool.submit(client, number) for number in range(1, CLIENTS + 1)]
        server.wait(CLIENTS, SOON)
        for _ in range(2):
            assert len(server.round().clients) == CLIENTS
        server.close()
        for each in running:
            each.result(SOON)
        return np.array(server.model[LAYER])


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [True, False])
def test_spy_at_the_broker_finds_nothing_of_a_sealed_federation(
    broker: Mosquitto, tmp_path: Path, sealed: bool
) -> None:
    spy = Stranger(broker.netloc, f"test/{new_id()}")
    ids = [uuid.uuid4() for _ in range(CLIENTS)]
    seals: list[SealOptions | None] = [None] * (CLIENTS + 1)
    if sealed:
        authority = Authority(tmp_path)
        seals = [authority.seal(Purpose.SERVER, None), *[authority.seal(Purpose.CLIENT, id) for id in ids]]
    model = federate(broker, spy.prefix, seals)
    assert np.allclose(model, np.mean([weights(number) for number in range(1, CLIENTS + 1)], axis=0))
    spy.publish("over", b"")
    spy.wait_topic("over")
    seen = spy.everything()
    spy.close()
    gc.collect()
    assert len(seen) > 2 * CLIENTS * SIZE * 4, "the updates were seen"
    secrets = [LAYER.encode(), METRIC.encode(), *[weights(number)[10:14].tobytes() for number in range(CLIENTS + 1)]]
    assert [secret in seen for secret in secrets] == [not sealed] * len(secrets)
    certificate = [b"urn:uuid", b"a peer", *[id.bytes for id in ids], *[str(id).encode() for id in ids]]
    assert not any(text in seen for text in certificate)
