"""Each payload of the corpus is refused with a documented error, in little memory, and changes nothing."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest

from netq.errors import Unreadable
from netq.utils.stream import PickleSerializer, Stream
from tests.attacks import classes, pickles
from tests.attacks.pickles import LONGEST, MIB, PAYLOADS, Payload, readers, state, text
from tests.pages import ROOT

READERS = readers()
LARGE = 100_000  # bytes of a payload


@pytest.mark.parametrize("payload", [name for name, payload in PAYLOADS.items() if len(payload.opcodes) < LARGE])
@pytest.mark.parametrize("reader", READERS)
def test_payload_is_refused(reader: str, payload: str) -> None:
    message = Stream([PAYLOADS[payload].message])
    classes_before, modules_before = classes.state(), set(sys.modules)
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable) as caught:
            READERS[reader](message)
        assert tracemalloc.get_traced_memory()[1] < 20 * MIB
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < LONGEST
    assert classes.state() == classes_before
    assert set(sys.modules) == modules_before


@pytest.mark.slow
def test_large_payload_is_refused() -> None:
    """The command makes the other checks. It measures memory: to trace that of a million opcodes takes long."""
    command = [sys.executable, "-m", pickles.__name__, str(LARGE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    rows = [[cell.strip() for cell in line.split(" | ")] for line in done.stdout.splitlines()[4:]]
    large = [(name, reader) for name in PAYLOADS if len(PAYLOADS[name].opcodes) >= LARGE for reader in READERS]
    assert [(row[0].removeprefix("| "), row[2]) for row in rows] == large
    for name, _, _, error, _, mib in rows:
        assert error.startswith(("Unreadable: ", "NotAllowed: ")), name
        assert float(mib.removesuffix(" |")) < 20, name


def test_every_kind_of_payload_is_there() -> None:
    assert {name.split()[0] for name in PAYLOADS} == {f"P{number}" for number in range(1, 25)}


@pytest.mark.slow
def test_no_opcode_takes_much_memory() -> None:
    """Each opcode, repeated, in a list."""
    loads = PickleSerializer(allow=lambda name: False).load
    for opcode in range(256):
        message = Stream([Payload(b"](" + text("x") + bytes([opcode]) * 2**17).message])
        tracemalloc.start()
        try:
            with pytest.raises(Unreadable):
                loads(message)
            assert tracemalloc.get_traced_memory()[1] < 12 * MIB, hex(opcode)
        finally:
            tracemalloc.stop()


def test_a_good_instance_still_loads_after_the_attacks() -> None:
    loads = PickleSerializer(PickleSerializer.allow_by_name(classes.__name__)).load
    for attack in [payload for name, payload in PAYLOADS.items() if name.startswith(("P8", "P9", "P10"))]:
        with pytest.raises(Unreadable):
            loads(Stream([attack.message]))
    config = classes.Config(0.25, ["a"])
    assert loads(PickleSerializer().dump(config)) == config
    assert config.doubled() == 0.5
    assert (classes.Key(1) == classes.Key(1), classes.Key(1) == classes.Key(2)) == (True, False)
    assert state(a=b"N") == b"}(" + text("a") + b"Nu"
