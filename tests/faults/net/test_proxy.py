"""A federation between two hosts whose firewall lets only a proxy through, as between a hospital and the world."""

from __future__ import annotations

import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import edge
import fl
from netq import CommunicatorOptions, NetworkLocation, SecurityOptions
from netq.security import certificates
from netq.testing.fixtures import LIMIT
from tests.edge import training
from tests.faults.conftest import Figure
from tests.faults.hosts import Cable
from tests.servers import forward

ROUNDS = 3
FILE = """
[server]
host = "{host}"
port = {port}
[client]
id = "{id}"
train = "{module}:train"
[training]
keep = true
[security]
certificate = "{authority}"
"""


@pytest.mark.slow
def test_federation_through_a_proxy_with_connect_only(
    cable: Cable, files: certificates.Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """The agents have the proxy from the environment; it allows one port, and TLS passes it from end to end."""
    here = NetworkLocation(cable.server.address, 0)
    security = SecurityOptions(files.key, files.certificate)
    options = CommunicatorOptions(netloc=here, security=security)
    cable.server.run("ip", "link", "set", "lo", "up")  # by which the proxy reaches the server
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        with cable.server.inside():
            model = {"w": np.zeros(3, np.float32)}
            server = stack.enter_context(fl.Server(model, options, min_clients=2))
            proxy = stack.enter_context(forward.tinyproxy(tmp_path, here.host, allow=server.netloc.port))
        monkeypatch.setenv("https_proxy", "http://{}:{}".format(*proxy))
        cable.server.run("nft", f"add rule ip faults input iif cable tcp dport != {proxy.port} reject with tcp reset")
        with cable.client.inside(), pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.netloc, LIMIT)

        def device(number: int) -> None:
            path = tmp_path / f"device-{number}.toml"
            names = {"host": here.host, "port": server.netloc.port, "authority": files.authority}
            path.write_text(FILE.format(id=uuid.UUID(int=number), module=training.__name__, **names))
            with cable.client.inside():
                edge.run(edge.Config.load(path))

        runs = [pool.submit(device, number) for number in (1, 2)]
        reports = list(server.rounds(ROUNDS))
        server.close(LIMIT)
        for run in runs:
            run.result(LIMIT)
    assert [len(report.clients) for report in reports] == [2] * ROUNDS
    assert all(not report.failures for report in reports)
    figure("through a proxy, CONNECT only", f"{ROUNDS} rounds of 2 agents, TLS")
