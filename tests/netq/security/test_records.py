"""Records: one direction of one link, in order, under keys that change."""

from __future__ import annotations

import pytest

from netq.errors import SecurityError
from netq.security import records
from netq.security.handshake import TAG, Cipher, Unit
from netq.security.records import RECORD, RecordReader, RecordWriter

KEY = bytes(range(32))


@pytest.fixture(params=Cipher)
def cipher(request: pytest.FixtureRequest) -> Cipher:
    return Cipher(request.param)


def test_records_open_in_their_order_only(cipher: Cipher) -> None:
    writer = RecordWriter(cipher, KEY)
    sealed = [writer.seal(Unit.DATA, b"%d" % number) for number in range(4)]
    reader = RecordReader(cipher, KEY)
    assert reader.open(*_views(sealed[0])) == b"0"
    target = bytearray(1)
    reader.open_into(*_views(sealed[1]), memoryview(target))
    assert target == b"1"
    for wrong in (sealed[1], sealed[3]):
        late = RecordReader(cipher, KEY)
        with pytest.raises(SecurityError, match="record 1 does not authenticate"):
            late.open(*_views(wrong))
    with pytest.raises(SecurityError, match="record 3 does not authenticate"):
        reader.open_into(*_views(sealed[3]), memoryview(target))


def test_header_and_key_are_authenticated(cipher: Cipher) -> None:
    header, body = RecordWriter(cipher, KEY).seal(Unit.DATA, b"data")
    for key, wrong in ((KEY, bytes([Unit.SHARED]) + header[1:]), (KEY[::-1], header)):
        with pytest.raises(SecurityError, match="does not authenticate"):
            RecordReader(cipher, key).open(wrong, memoryview(body))
    for short in range(TAG + 4):
        with pytest.raises(SecurityError, match="does not authenticate"):
            RecordReader(cipher, KEY).open(header, memoryview(body)[:short])


def test_no_two_records_have_the_same_key_and_nonce(cipher: Cipher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "REKEY", 3)
    writer, reader = RecordWriter(cipher, KEY), RecordReader(cipher, KEY)
    sealed = [writer.seal(Unit.DATA, b"same") for _ in range(10)]
    assert len({body for _, body in sealed}) == 10
    assert [reader.open(*_views(each)) for each in sealed] == [b"same"] * 10
    assert reader._key == writer._key != KEY


def test_interrupted_record_uses_up_its_nonce(cipher: Cipher) -> None:
    """A signal handler may raise in the middle: the nonce is not used again."""
    writer = RecordWriter(cipher, KEY)
    with pytest.raises(TypeError):
        writer.seal(Unit.DATA, ["no bytes"])  # type: ignore[arg-type]
    second = RecordWriter(cipher, KEY)
    second.seal(Unit.DATA, b"first")
    assert writer.seal(Unit.DATA, b"data") == second.seal(Unit.DATA, b"data")


def test_small_data_is_joined_and_large_data_divided(cipher: Cipher) -> None:
    writer, out = RecordWriter(cipher, KEY), list[bytes]()
    for size in (10, 20, 8192, 8193, 5, 2 * RECORD + 1):
        writer.add(bytes([size % 251]) * size, out)
    writer.flush(out)
    writer.flush(out)
    assert [len(body) - TAG for body in out[1::2]] == [8222, 8193, 5, RECORD, RECORD, 1]
    reader = RecordReader(cipher, KEY)
    opened = b"".join(reader.open(header, memoryview(body)) for header, body in zip(out[::2], out[1::2], strict=True))
    assert opened == b"".join(bytes([size % 251]) * size for size in (10, 20, 8192, 8193, 5, 2 * RECORD + 1))


def test_much_small_data_fits_no_record_that_is_too_large(cipher: Cipher) -> None:
    writer, out = RecordWriter(cipher, KEY), list[bytes]()
    for _ in range(200):
        writer.add(bytes(8192), out)
    writer.flush(out)
    sizes = [len(body) - TAG for body in out[1::2]]
    assert sum(sizes) == 200 * 8192
    assert max(sizes) <= RECORD


def _views(sealed: tuple[bytes, bytes]) -> tuple[bytes, memoryview]:
    return sealed[0], memoryview(sealed[1])
