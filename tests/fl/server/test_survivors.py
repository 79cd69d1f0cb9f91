"""Three of ten clients are killed in each phase of a round: the model is the mean of the others' whole updates."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fl
from fl.messages import Update
from tests.fl.federation import SHORT, SOON, Federation

SIZE = 1_000_000  # elements: 4 MB, so that an update can be cut in the middle
SURVIVORS = [uuid.UUID(int=n) for n in range(1, 8)]
KILLED = [uuid.UUID(int=n) for n in range(8, 11)]

DIES = """
import os, signal, socket, sys, uuid
import numpy as np
import fl, fl.envelope, netq

phase, port, id = sys.argv[1], int(sys.argv[2]), uuid.UUID(sys.argv[3])

def die():
    print("dies", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def train(model, config):
    if phase == "training":
        die()
    return fl.Update({"w": model["w"] + np.float32(id.int)}, 1)

if phase == "sending":
    from netq.io.sockets import PlainSocket
    send, sent = PlainSocket.send, [0]

    def counted(self, buffers):
        count = send(self, [buffers[0][:100_000]])
        sent[0] += count
        if sent[0] > 1_000_000:
            die()
        return count

    PlainSocket.send = counted
if phase == "sent":
    put = netq.Communicator.put

    def told(self, data, *peers, lane=0):
        delivery = put(self, data, *peers, lane=lane)
        if not isinstance(data, fl.envelope.Introduction):
            delivery.add_done_callback(lambda _: die())
        return delivery

    netq.Communicator.put = told
options = netq.CommunicatorOptions(id=id, netloc=netq.NetworkLocation("127.0.0.1", port))
fl.Client(train).run(options)
"""


@contextlib.contextmanager
def doomed(phase: str, port: int) -> Iterator[list[subprocess.Popen[str]]]:
    with contextlib.ExitStack() as stack:
        processes = []
        for id in KILLED:
            command = [sys.executable, "-c", DIES, phase, str(port), str(id)]
            processes.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
            stack.callback(processes[-1].kill)
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "counted"), [("training", 7), ("sending", 7), ("sent", 10)])
def test_the_model_is_the_mean_of_the_survivors(phase: str, counted: int) -> None:
    start = {"w": np.zeros(SIZE, np.float32)}
    with (
        Federation(start, min_clients=7, grace=SHORT) as federation,
        doomed(phase, federation.server.netloc.port) as processes,
    ):
        for id in SURVIVORS:
            federation.join(id, lambda model, config, id=id: Update({"w": model["w"] + np.float32(id.int)}, 1))  # type: ignore[misc]
        report = federation.round(10)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.read() == "dies\n"
        expected = [*SURVIVORS, *KILLED][:counted]
        assert set(report.clients) == set(expected)
        assert set(report.failures) == {*SURVIVORS, *KILLED} - set(expected)
        assert all(refusal.why is fl.FailureKind.LOST for refusal in report.failures.values())
        assert report.seconds < SOON
        w: Any = federation.server.model["w"]
        mean = np.float32(sum(id.int for id in expected) / counted)
        assert (np.abs(w - mean) <= np.spacing(mean) * 4).all()
        assert (w == w[0]).all(), "no part of a partial update counts"
