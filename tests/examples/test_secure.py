"""The digits' aggregator under secure aggregation, as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fl
import netq
from examples.digits import model
from tests.fl.federation import SOON


def test_the_digits_under_secure_aggregation() -> None:
    def client(partition: int, port: int) -> None:
        def train(tensors: Any, config: Any) -> fl.Update:
            return model.train(tensors, {**config, "partition": partition, "partitions": 3})

        fl.Client(train).run(netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port)))

    command = [sys.executable, "-m", "examples.digits.aggregator", "--secure", "--clients", "3", "--rounds", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, ThreadPoolExecutor(3) as pool:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        runs = [pool.submit(client, partition, port) for partition in range(3)]
        rounds = [found for line in server.stdout if "round" in (found := json.loads(line))]
        for run in runs:
            run.result(SOON)
    assert server.returncode == 0
    assert [(each["clients"], each["failures"]) for each in rounds] == [(3, [])] * 5
    assert rounds[-1]["accuracy"] > 0.8
