"""examples/c: what breaks the protocol costs a link and no more; damaged bytes do no harm, under the sanitizers."""

from __future__ import annotations

import random
import struct
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.examples.c.programs import (
    ACK,
    ANSWER,
    DROP,
    FIN,
    INI,
    LIMIT,
    MSG,
    PING,
    RESUME,
    Listener,
    Programs,
    cursor,
    end,
    frame,
    greeting,
)

pytestmark = pytest.mark.slow

MIB = 1024**2

# Faults. A case is what a server sends after its INI, or in place of it.

ONE = frame(MSG, 1, 300, bytes(5))
BAD = {
    "kind": frame(0),
    "later kind": frame(7),
    "flags": frame(MSG, 1, 1, b"x", flags=1),
    "lane": frame(MSG, 1, 1, b"x", lane=16),
    "lane of a PING": frame(PING, lane=1),
    "second INI": greeting(1),
    "body of an ACK": frame(ACK, body=b"x"),
    "ACK of what was not sent": frame(ACK, 2),
    "ACK of an unused lane": frame(ACK, 1, lane=3),
    "gap": frame(MSG, 2, 1, b"x"),
    "other value": ONE + frame(MSG, 1, 301, b"x"),
    "no bytes": ONE + frame(MSG, 1, 300),
    "more bytes than announced": ONE + frame(MSG, 1, 300, bytes(296)),
    "beyond message_size": frame(MSG, 1, 2**21, b"x"),
    "beyond the window": frame(MSG, 1, 2000, bytes(1001)),
    "no end": frame(MSG, 1, 2**63, b"x"),
    "DROP of another": frame(DROP, 2),
    "DROP too large": frame(DROP, 1, 2**62),
    "DROP with another value": ONE + frame(DROP, 1, 1),
    "DROP beyond all positions": frame(DROP, 1, 2**62 - 1) + frame(DROP, 2, 2**62 - 1) + frame(DROP, 3, 2**62 - 1),
    "code of a FIN": frame(FIN, 4),
    "reason of a FIN": frame(FIN, 1, body=bytes(257)),
    "MSG after FIN": frame(FIN) + frame(MSG, 1, 1, b"x"),
    "FIN after FIN": frame(FIN) + frame(FIN),
}
BAD_INI = {
    "magic": greeting(1, magic=b"HTTP"),
    "version": greeting(1, version=2),
    "length": frame(INI, body=greeting(1)[24:] + b"x"),
    "short": frame(INI, body=b"NETQ"),
    "long": frame(INI, body=bytes(577)),
    "cursors": greeting(1, count=17),
    "credit": greeting(1, credit=0),
    "heartbeat": greeting(1, heartbeat=0),
    "message_size": greeting(1, message_size=0),
    "epoch": greeting(2**32 - 1),
    "epoch that does not follow": greeting(5),
    "order of lanes": greeting(1, cursor(1, 0, 0, 1) + cursor(0, 0, 0, 1), flags=RESUME),
    "lane of a cursor": greeting(1, cursor(16, 0, 0, 1), flags=RESUME),
    "reserved": greeting(1, cursor(1, 0, 0, 1, reserved=1), flags=RESUME),
    "another server": greeting(1, flags=RESUME, server=uuid.UUID(int=1)),
    "cursor of what was not sent": greeting(1, cursor(3, 1, 0, 1), flags=RESUME),
    "partial of what was not sent": greeting(1, cursor(3, 0, 1, 1), flags=RESUME),
    "FIN of code 0": frame(FIN),
    "MSG": frame(MSG, 1, 1, b"x"),
}


def test_faults_cost_the_link_only(clients: Programs, listener: Listener) -> None:
    """After each, the client resumes the session, and has forgotten what was wrong on that link."""
    process = clients.start("echo", listener.netloc, "--window", 1000, "--message-size", 2**20)
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1))
    for case, data in {**BAD, **BAD_INI}.items():
        with listener.accept() as link:
            assert link.frame()[:2] == bytes([INI, RESUME]), case
            link.send(data if case in BAD_INI else greeting(1, flags=RESUME) + data)
            reason = link.rest()  # the client hangs up, and mostly says why; what we send meanwhile may hinder that
            assert not reason or b"expected" in reason, (case, reason)
        if case in BAD_INI:  # a good link, after which the client makes short pauses again
            with listener.accept() as link:
                assert link.frame()[:2] == bytes([INI, RESUME]), case
                link.send(greeting(1, flags=RESUME) + frame(PING, 9))
                while link.frame()[:2] != bytes([PING, ANSWER]):
                    pass
    process.kill()
    _, errors = end(process)
    assert "Sanitizer" not in errors
    assert "runtime error" not in errors
    assert errors.count("expected") >= 30, "of at most 60 lines a minute"


def test_ack_of_bytes_that_wait_here_frees_nothing(clients: Programs, listener: Listener, tmp_path: Path) -> None:
    """The server acknowledges a message whose last bytes it cannot have."""
    (tmp_path / "large").write_bytes(bytes(30 * MIB))
    process = clients.start("send", listener.netloc, tmp_path / "large")
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1, credit=2**40))
        link.take(24)
        link.send(frame(ACK, 1, 2**50))
        link.rest()
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1, cursor(0, 0, 30 * MIB - 1, 2**40), flags=RESUME))
        link.rest()  # impossible: not so much was sent
    process.kill()
    _, errors = end(process)
    assert "an ACK of message 1 of lane 0: expected at most 0" in errors
    assert "Sanitizer" not in errors


def records(harness: Path, mode: str, bodies: list[bytes]) -> list[str]:
    data = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    result = subprocess.run([harness, mode], input=data, capture_output=True, timeout=4 * LIMIT)
    assert (result.returncode, b"ERROR" in result.stderr) == (0, False), result.stderr.decode(errors="replace")
    return result.stdout.decode("utf-8", "surrogateescape").split("\n")[:-1]


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Change, remove or double some bytes."""
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(changed))
        choice = draw.randrange(4)
        if choice == 0:
            changed[at] = draw.randrange(256)
        elif choice == 1:
            changed[at] ^= 1 << draw.randrange(8)
        elif choice == 2:
            del changed[at : at + draw.randrange(1, 30)]
        else:
            changed[at:at] = changed[at : at + draw.randrange(1, 30)]
        if not changed:
            break
    return bytes(changed)


def test_damaged_links_do_no_harm(harness: Path) -> None:
    draw = random.Random(1)
    stream = greeting(1) + frame(PING, 1) + frame(MSG, 1, 9000, bytes(4000)) + frame(ACK, 1, 2**40)
    stream += frame(MSG, 1, 9000, bytes(5000)) + frame(DROP, 2, 77) + frame(MSG, 1, 0, lane=2) + frame(FIN, 0)
    resumed = greeting(1) + frame(MSG, 1, 9000, bytes(4000)) + greeting(1, cursor(0, 1, 5, 99), flags=RESUME)
    cases = [damaged(draw.choice([stream, resumed, *BAD.values(), *BAD_INI.values()]), draw) for _ in range(4000)]
    lines = records(harness, "frames", cases)
    assert len(lines) == 2 * len(cases)
    assert 0.1 < sum(line == "fine" for line in lines) / len(lines) < 0.9
