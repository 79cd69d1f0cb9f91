"""Blocks wait for their references and references for their blocks; a lost block is detected."""

from __future__ import annotations

import pytest

from netq import ProtocolError
from netq.mqtt import packet
from netq.mqtt.multicast.reorder import MAX_BLOCKS, Receiver, ReorderBuffer
from netq.mqtt.packet import Packet, PacketKind

GROUP = "0123456789abcdef"


class Topics:
    """The subscriptions of a receiver."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.receiver = Receiver(self.now.append, self.now.remove)

    def join(self, group: str = GROUP) -> Receiver:
        self.receiver.control(PacketKind.JOIN, group)
        return self.receiver


def reference(number: int, before: bytes = b"", group: str = GROUP) -> Packet:
    return packet.decode(packet.header(PacketKind.BLOCK, 1, 0, 0) + packet.reference(group, number) + before)


def test_blocks_wait_for_their_reference() -> None:
    buffer = ReorderBuffer()
    assert buffer.take(1) is None
    buffer.put(1, memoryview(b"one"))
    buffer.put(2, memoryview(b"two"))
    assert bytes(buffer.take(1) or b"") == b"one"
    assert bytes(buffer.take(2) or b"") == b"two"


def test_later_block_shows_a_loss() -> None:
    buffer = ReorderBuffer()
    buffer.put(2, memoryview(b"two"))
    with pytest.raises(ProtocolError, match="block 1 of a group is lost, block 2 has come"):
        buffer.take(1)


def test_buffer_is_bounded_and_ignores_duplicates() -> None:
    buffer = ReorderBuffer()
    for number in range(1, MAX_BLOCKS + 2):
        buffer.put(number, memoryview(b"x"))
    buffer.put(3, memoryview(b"again"))
    with pytest.raises(ProtocolError):
        buffer.take(1)
    assert bytes(buffer.take(3) or b"") == b"x"
    with pytest.raises(ProtocolError):
        buffer.take(2)


def test_reference_precedes_the_block_with_its_bytes() -> None:
    receiver = Topics().join()
    assert receiver.take(reference(1, b"a ")) is None, "the block has yet to come"
    for number in (1, 2):
        assert receiver.put(GROUP, packet.block(number) + b"block")
    assert bytes(receiver.take(reference(1, b"a ")) or b"") == b"a block"
    assert bytes(receiver.take(reference(2)) or b"") == b"block"


def test_blocks_of_other_groups_are_ignored() -> None:
    receiver = Topics().join()
    assert not receiver.put("f" * 16, packet.block(1) + b"block")
    assert not receiver.put("f" * 16, b"not even a block")
    with pytest.raises(ProtocolError, match="a block of 4 bytes"):
        receiver.put(GROUP, b"none")


def test_reference_to_an_unknown_group_is_refused() -> None:
    topics = Topics()
    with pytest.raises(ProtocolError, match="that was not joined"):
        topics.receiver.take(reference(1))
    topics.join().control(PacketKind.LEAVE, GROUP)
    assert topics.now == []
    with pytest.raises(ProtocolError, match="that was not joined"):
        topics.receiver.take(reference(1))


def test_groups_of_a_link_are_bounded_and_distinct() -> None:
    topics = Topics()
    for number in range(8):
        topics.join(f"{number:016x}")
    with pytest.raises(ProtocolError, match="one group too many"):
        topics.join(GROUP)
    topics.receiver.control(PacketKind.LEAVE, f"{7:016x}")
    with pytest.raises(ProtocolError, match="one group too many"):
        topics.join(f"{0:016x}")
    assert len(topics.now) == 7


def test_close_unsubscribes_from_all_groups() -> None:
    topics = Topics()
    topics.join()
    topics.join("f" * 16)
    topics.receiver.control(PacketKind.LEAVE, "e" * 16)
    assert len(topics.now) == 2
    topics.receiver.close()
    assert topics.now == []
