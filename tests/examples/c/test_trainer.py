"""examples/c as a trainer: it trains like examples/digits/model.py, and takes part in a federation of fl."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import netq
from examples.c.partition import rows
from examples.digits import data, model
from fl.envelope import End, Job, Leave, Offer, Permit
from fl.messages import MESSAGES, Reply, Report, Task, Update, with_fields
from netq.security import certificates
from tests.examples.c import programs
from tests.examples.c.programs import LIMIT, Programs, end, peer_of
from tests.examples.c.test_faults import damaged, records

pytestmark = pytest.mark.slow

HERE = netq.NetworkLocation("127.0.0.1", 0)
CLIENTS = 4
FEW = 20  # examples: one minibatch, whose order does not matter
LARGE = 2**30


class Conversation:
    """A server that says to one trainer what a test says. `examples` are the trainer's."""

    def __init__(self, server: netq.core.Communicator, process: subprocess.Popen[str], examples: data.Examples) -> None:
        self.server, self.process, self.examples = server, process, examples
        self.peer = peer_of(server)

    def say(self, message: Any) -> None:
        self.server.put(message, self.peer)

    def hear(self) -> Any:
        return self.server.get(timeout=LIMIT).data

    def task(self, **changes: Any) -> Task:
        fields = {"job": Job(7, 3, "train"), "model": model.initial(0), "config": {"seed": 0}, "unasked": LARGE}
        return Task(**{**fields, **changes})

    def end(self) -> tuple[int, str]:
        self.server.put(End(3), self.peer, lane=1)
        return end(self.process)


@pytest.fixture
def trainer(clients: Programs, tmp_path: Path) -> Iterator[Conversation]:
    examples = data.load()[0].take(np.arange(FEW))
    (tmp_path / "few.u8").write_bytes(rows(examples))
    serialization = netq.SerializationOptions(load=MESSAGES.load, dump=MESSAGES.dump)
    options = netq.CommunicatorOptions(netloc=HERE, serialization=serialization)
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        process = clients.start("train", server.netloc, tmp_path / "few.u8")
        yield Conversation(server, process, examples)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.allclose(one[name], other[name], atol=1e-6) for name in one)


def expected(trainer: Conversation, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what Python trains with the same examples."""
    monkeypatch.setattr(data, "partition", lambda config: trainer.examples)
    return model.train(model.initial(0), {"seed": 0, "partition": 0, "round": 3}).model


def test_trains_as_python_does(trainer: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.say(trainer.task())
    reply = trainer.hear()
    assert isinstance(reply, Reply)
    assert reply.job == Job(7, 3, "train")
    assert isinstance(reply.content, Update)
    assert reply.content.num_examples == FEW
    trained = expected(trainer, monkeypatch)
    assert same(reply.content.model, trained)
    trainer.say(trainer.task(deltas=True))
    start = model.initial(0)
    assert same(trainer.hear().content.model, {name: trained[name] - start[name] for name in trained})
    turned = {name: np.asfortranarray(array) for name, array in start.items()}
    trainer.say(trainer.task(model=turned, config={}))
    assert same(trainer.hear().content.model, trained)
    assert trainer.end() == (0, "")


def test_evaluates_as_python_does(trainer: Conversation) -> None:
    trainer.say(trainer.task(job=Job(2**63 - 1, 1, "evaluate")))
    reply = trainer.hear()
    assert reply.job == Job(2**63 - 1, 1, "evaluate")
    assert isinstance(reply.content, Report)
    accuracy, loss = model.measure(model.initial(0), trainer.examples)
    assert reply.content.num_examples == FEW
    assert reply.content.metrics == pytest.approx({"accuracy": accuracy, "loss": loss}, rel=1e-5)
    assert trainer.end() == (0, "")


@pytest.mark.parametrize(
    ("purpose", "secure"), [("train", {"number": 1}), ("secure", {"step": "keys"}), ("secure", {})]
)
def test_takes_no_part_in_secure_aggregation(trainer: Conversation, purpose: Any, secure: dict[str, Any]) -> None:
    valid = trainer.task(job=Job(7, 3, purpose), secure=secure or {"step": "keys"})
    trainer.say(with_fields(valid, secure=secure))
    assert trainer.hear().content == "this client takes no part in secure aggregation"
    assert trainer.end()[0] == 0


def test_offers_an_update_that_is_large(trainer: Conversation) -> None:
    """A Task in place of the Permit means that the reply is discarded; so is the Permit of another job."""
    size = sum(array.nbytes for array in model.initial(0).values())
    trainer.say(trainer.task(unasked=size - 1))
    assert trainer.hear() == Offer(Job(7, 3, "train"), size)
    trainer.say(trainer.task(job=Job(7, 4, "train"), unasked=size - 1))
    assert trainer.hear() == Offer(Job(7, 4, "train"), size)
    trainer.say(Permit(Job(7, 3, "train")))
    trainer.say(Permit(Job(7, 4, "train")))
    assert trainer.hear().job == Job(7, 4, "train")
    assert trainer.end() == (0, "")


def test_says_why_it_cannot_train(trainer: Conversation) -> None:
    for changed, why in {
        "hidden.bias": "expected 64 rows and 0 columns",
        "other": 'an object without "hidden.bias"',
    }.items():
        tensors = model.initial(0)
        tensors[changed] = tensors.pop("hidden.bias").reshape(8, 8)
        trainer.say(trainer.task(model=tensors))
        content = trainer.hear().content
        assert why.replace('"', "'") in content
    trainer.say(trainer.task(model=model.initial(0) | {"output.bias": np.full(10, np.nan, np.float32)}))
    assert "diverged" in trainer.hear().content
    assert trainer.end()[0] == 0


def test_says_that_it_gives_no_statistics(trainer: Conversation) -> None:
    trainer.say(trainer.task(job=Job(7, 1, "statistics"), model={}, config={"columns": {}}))
    assert trainer.hear() == Reply(Job(7, 1, "statistics"), "this client gives no statistics of its data")
    assert trainer.end()[0] == 0


def test_ignores_what_is_no_message(trainer: Conversation) -> None:
    trainer.say([1, 2])
    trainer.say(trainer.task())
    assert trainer.hear().content.num_examples == FEW
    status, errors = trainer.end()
    assert status == 0
    assert (
        errors == "netq: a message of the server is ignored: a message of another type: expected Task, Permit or End\n"
    )


def test_signal_ends_it_with_leave(trainer: Conversation) -> None:
    trainer.process.terminate()
    assert trainer.hear() == Leave("told to stop")
    assert end(trainer.process) == (0, "")


def test_file_of_examples_is_checked(clients: Programs, tmp_path: Path) -> None:
    for bad in (b"", bytes(64), bytes(64) + b"\x0a", b"\x11" + bytes(64)):
        (tmp_path / "bad.u8").write_bytes(bad)
        status, errors = end(clients.start("train", ("127.0.0.1", 1), tmp_path / "bad.u8"))
        assert status == 2
        assert "expected rows of 64 pixels" in errors


# Texts

TEXTS = [
    '{"a":[1,-2.5e+3,true,false,null],"b":{"c":""}}',
    '"\\u00e9\\ud83d\\ude00 \\"\\\\\\/\\b\\f\\n\\r\\t é"',
    " [ [ ] , { } , 0 ] ",
    "-0.0",
    "12345678901234567890",
]
BAD_TEXTS = [
    *(
        "",
        "{",
        "[1,]",
        "[1",
        '{"a"}',
        '{"a":1,}',
        "{1:2}",
        "01",
        "1.",
        "+1",
        "-",
        "1e",
        "nul",
        "tru",
        "[1]x",
        '"',
        '"\n"',
    ),
    *('"\\x"', '"\\u12g4"', '"\\ud83d"', '"\\ude00"', '"\\ud83d\\u0041"', "[" * 66 + "]" * 66, "NaN", "'a'", "\x00"),
]


def layout(text: str, *buffers: bytes) -> bytes:
    """Return a message of fl (fl-messages.md, section 1)."""
    encoded = text.encode()
    message = struct.pack("<QQ", len(encoded), len(buffers)) + b"".join(struct.pack("<Q", len(b)) for b in buffers)
    message += encoded
    for buffer in buffers:
        message += bytes(-len(message) % 64) + buffer
    return message


def test_texts_are_read_as_python_reads_them(harness: Path) -> None:
    lines = records(harness, "texts", [layout(text) for text in TEXTS])
    assert [json.loads(line) for line in lines] == [json.loads(text) for text in TEXTS]
    lines = records(harness, "texts", [layout(text) for text in BAD_TEXTS])
    assert [text for text, line in zip(BAD_TEXTS, lines, strict=True) if not line.startswith("fault:")] == []


def test_damaged_messages_do_no_harm(harness: Path) -> None:
    draw = random.Random(1)
    task = Task(Job(7, 3, "train"), model.initial(0), {"seed": 0, "name": "é\n"}, LARGE)
    whole = bytes(MESSAGES.dump(task))
    assert "hidden.weight" in records(harness, "texts", [whole])[0]
    head = whole.index(b"}}") + 200
    cases = [whole[:size] for size in range(0, head, 7)]
    cases += [damaged(whole[:head], draw) + whole[head:] for _ in range(1500)]
    lines = records(harness, "texts", cases)
    assert sum(line.startswith("fault:") for line in lines) > len(cases) / 2


# Federations


class Training:
    """Three clients of Python, in threads, next to one or more in C."""

    def __init__(self, stack: ExitStack, server: fl.Server, security: netq.SecurityOptions | None) -> None:
        self._stack, self._server = stack, server
        for part in range(1, CLIENTS):
            options = netq.CommunicatorOptions(netloc=server.netloc, security=security)
            thread = threading.Thread(target=self._train, args=(part, options))
            thread.start()
            stack.callback(thread.join)

    def _train(self, part: int, options: netq.CommunicatorOptions) -> None:
        place = {"partition": part, "partitions": CLIENTS}
        fl.Client(lambda weights, config: model.train(weights, {**config, **place})).run(options)


@pytest.mark.parametrize(("tls", "rounds", "least"), [(False, 18, 0.96), (True, 5, 0.9)], ids=["tcp", "tls"])
def test_federation_with_one_trainer_in_c(
    clients: Programs, tmp_path: Path, tls: bool, rounds: int, least: float
) -> None:
    if tls and not programs.has_openssl():
        pytest.skip("no header files of OpenSSL here; `apt install libssl-dev` brings them")
    files = certificates.init(tmp_path / "certificates")
    security = netq.SecurityOptions(files.key, files.certificate) if tls else None
    theirs = netq.SecurityOptions(certificate=files.authority) if tls else None
    (tmp_path / "0.u8").write_bytes(rows(data.partition({"partition": 0, "partitions": CLIENTS, "seed": 0})))
    options = netq.CommunicatorOptions(netloc=HERE, security=security)
    identity = uuid.uuid4()
    with ExitStack() as stack:
        server = fl.Server(model.initial(0), options, min_clients=CLIENTS, config={"seed": 0})
        stack.callback(server.close)
        words = ("--id", identity, *(("--authority", files.authority) if tls else ()))
        process = clients.start("train", server.netloc, tmp_path / "0.u8", *words)
        Training(stack, server, theirs)
        stack.callback(server.close)  # before it waits for the threads, also if a round fails
        for report in server.rounds(rounds):
            assert identity in report.clients, report.failures
        final = {name: np.asarray(array) for name, array in server.model.items()}
        accuracy, _ = model.measure(final, data.held_out())
        server.close()
        assert end(process) == (0, "")
    assert accuracy >= least
