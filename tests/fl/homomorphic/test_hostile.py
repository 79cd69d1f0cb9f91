"""Bytes of hostile clients: TenSEAL parses them in C++, in the server's process, which must go on."""

from __future__ import annotations

import random
import struct
import subprocess
import sys

import numpy as np
import pytest

from fl.errors import InvalidUpdate
from fl.homomorphic.codec import split
from tests.fl.homomorphic.keys import Circle, payload, with_payload

FEW = {"w": np.ones(3, np.float32)}
TRIES = 400


def hostile(seed: int) -> None:
    """Fold damaged updates. None may crash this process, or change the sum unless it is taken as a whole."""
    chance, circle = random.Random(seed), Circle(FEW)
    update = circle.update(FEW, 1)
    [good] = split(circle.sum._context, payload(update), circle.sum._header.specs)
    refused = 0
    for number in range(TRIES):
        damaged = bytearray(good)
        match number % 5:
            case 0:
                damaged = damaged[: chance.randrange(1, len(damaged))]
            case 1:  # in the headers of SEAL, of zstd, and of the ciphertext
                for _ in range(chance.randrange(1, 4)):
                    damaged[chance.randrange(150)] = chance.randrange(256)
            case 2:
                damaged = bytearray(chance.randbytes(chance.randrange(1, 3000)))
            case 3:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            case 4:  # an honest header, and anything
                damaged = damaged[:16] + chance.randbytes(chance.randrange(1, len(damaged) - 16))
        try:
            circle.fold(with_payload(update, struct.pack("<I", len(damaged)) + damaged))
        except InvalidUpdate:
            refused += 1
        else:
            circle.sum.abandon()
    assert refused > TRIES // 2
    circle.fold(update)
    assert circle.opened()["w"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_ciphertexts_do_not_end_the_process(seed: int) -> None:
    command = [sys.executable, "-c", f"from tests.fl.homomorphic.test_hostile import hostile; hostile({seed})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_a_ciphertext_that_inflates_takes_no_memory() -> None:
    """zstd blocks of one byte repeated: 40 kB that would be 1.3 GB."""
    blocks = b"".join(struct.pack("<I", 131072 << 3 | 1 << 1 | (at == 9_999))[:3] + b"\0" for at in range(10_000))
    frame = bytes.fromhex("28b52ffd0050") + blocks
    circle = Circle(FEW)
    update = circle.update(FEW, 1)
    [good] = split(circle.sum._context, payload(update), circle.sum._header.specs)
    bomb = bytes(good[:8]) + struct.pack("<Q", 16 + len(frame)) + frame
    with open("/proc/self/statm") as statm:
        before = int(statm.read().split()[0])
    with pytest.raises(InvalidUpdate, match="it is no ciphertext of these parameters"):
        circle.fold(with_payload(update, struct.pack("<I", len(bomb)) + bomb))
    with open("/proc/self/statm") as statm:
        assert int(statm.read().split()[0]) - before < 25_000  # pages: 100 MB


def test_a_ciphertext_of_another_scale_is_refused() -> None:
    circle = Circle(FEW)
    context = circle.client._key._context
    context.global_scale = 2.0**29
    try:
        update = circle.update(FEW, 1)
    finally:
        context.global_scale = 2.0**30
    with pytest.raises(InvalidUpdate, match="expected one with the parameters' scale"):
        circle.fold(update)


def test_a_ciphertext_of_a_product_is_refused() -> None:
    """It has three polynomials, and the sum with it would, too."""
    circle = Circle(FEW, "ciber-cafe")
    key = circle.client._key
    update = circle.update(FEW, 1)
    [good] = split(key, payload(update), circle.sum._header.specs)
    shorter = key.load(bytes(good)) * 2.0  # which rescales it to one prime less
    found = key.dump(shorter)
    with pytest.raises(InvalidUpdate, match="it is no fresh ciphertext"):
        circle.fold(with_payload(update, struct.pack("<I", len(found)) + found))


def test_a_ciphertext_that_anyone_reads_is_refused() -> None:
    """SEAL refuses a sum that is one, so that another update could not be taken out of the sum again."""
    zstandard = pytest.importorskip("zstandard")
    circle = Circle(FEW)
    update = circle.update(FEW, 1)
    [good] = split(circle.sum._context, payload(update), circle.sum._header.specs)
    whole = zstandard.ZstdDecompressor().decompressobj().decompress(bytes(good[16:]))
    half = circle.sum._context.memory // 2
    plain = whole[:-half] + bytes(half)
    found = bytes(good[:5]) + b"\0" + bytes(good[6:8]) + struct.pack("<Q", 16 + len(plain)) + plain
    with pytest.raises(InvalidUpdate, match="it is no fresh ciphertext"):
        circle.fold(with_payload(update, struct.pack("<I", len(found)) + found))
