"""Serialisers: objects to bytes and back. Pure; called in the thread that calls `put` or `get`, never in the loop.

A `Stream` is the bytes of one message, as a list of buffers. A serialiser's `dump` returns it, and `load` takes it.
`load_into`, which a serialiser may have, takes it as well, and copies what is large into buffers of the user.
Out-of-band buffers of a pickle (protocol 5, PEP 574) are neither copied nor joined: they are sent from the caller's
memory, and `load` returns views on the memory of the message.

The layout of a pickled message is in docs/reference/protocol.md, "Pickled messages".
"""

from __future__ import annotations

import ctypes
import io
import itertools
import pickle
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeAlias

from netq.buffers import ALIGNMENT, Buffer, aligned, bytes_of, copy, use_huge_pages
from netq.errors import BufferMismatch, SerializationError, Unreadable
from netq.text import printable
from netq.utils import data_pickle, forms, large
from netq.utils.data_classes import AllowedNames, Classes, Sent
from netq.validate import expect

_HEAD = struct.Struct("<QQ")  # bytes of the pickle, number of out-of-band buffers
_HEAD_SIZE, _pack_head, _unpack_head = _HEAD.size, _HEAD.pack, _HEAD.unpack_from
_SIZE = struct.Struct("<Q")
_FUNCTION = "a function, or None; for names, PickleSerializer.allow_by_name makes one"
_ZEROS = bytes(ALIGNMENT)
_COPIED = 68 * 1024  # bytes, a small message and more: a pickle of this size or less is copied before it is interpreted
_SMALL = 4096  # bytes: a Pickler that has written more has a large memo, and is not kept
_MANY = 1024  # buffers: as many as one call of the system sends; of more, the small ones are joined
_JOINED = 1024  # bytes of a small one: its Python objects have as many
_DENSE = 16 * 1024  # bytes of a message for each buffer: to receive fewer by themselves takes longer than a copy
_SHOWN = 8  # sizes of buffers in an error's text: a peer decides how many there are
_LINE = 4096  # bytes that `readline` reads at once

_Loads: TypeAlias = Callable[[bytes | memoryview, Iterable[memoryview]], Any]


class Stream:
    """The bytes of one message, in order, in one or more buffers.

    It has the methods of a binary file: `read`, `readinto`, `readline`, `seek` and `tell`. So `json.load(stream)`,
    `pickle.load(stream)` and `numpy.load(stream)` work in your own serialiser.
    """

    __slots__ = ("_position", "_stops", "buffers", "nbytes")

    def __init__(self, buffers: Iterable[Buffer] = ()) -> None:
        self.buffers = [bytes_of(memoryview(buffer)) for buffer in buffers]
        self.nbytes = sum([buffer.nbytes for buffer in self.buffers])
        self._stops: list[int] | None = None
        self._position = 0  # offset of the next byte to read

    @classmethod
    def of(cls, *views: memoryview) -> Stream:
        """Return a stream of these views of bytes."""
        stream = cls.__new__(cls)
        stream.buffers, stream.nbytes, stream._stops, stream._position = [*views], sum(map(len, views)), None, 0
        return stream

    def __len__(self) -> int:
        return self.nbytes

    def __reduce__(self) -> tuple[type[Stream], tuple[list[bytes]]]:
        return Stream, ([bytes(self)],)  # of options that are passed to another process

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers)

    def contiguous(self) -> memoryview:
        """Return all bytes in one writable buffer. Its address is a multiple of 64 if the bytes came from a peer.

        Copies the bytes only if they lie in several buffers, or in a read-only one, as those of small messages do.
        """
        if len(self.buffers) == 1 and not self.buffers[0].readonly:
            return self.buffers[0]
        joined, start = aligned(self.nbytes), 0
        for buffer in self.buffers:
            copy(joined[start : start + buffer.nbytes], buffer)
            start += buffer.nbytes
        return joined

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes; fewer at the end; all remaining bytes if `size` is None or negative."""
        start, self._position = self._position, self._stop(size)
        return b"".join(self.slices(start, self._position))

    def readinto(self, buffer: Buffer) -> int:
        """Copy the next bytes into `buffer`; return how many."""
        target = bytes_of(memoryview(buffer))
        start, self._position = self._position, self._stop(target.nbytes)
        filled = 0
        for view in self.slices(start, self._position):
            copy(target[filled : filled + view.nbytes], view)
            filled += view.nbytes
        return filled

    def readline(self, size: int | None = -1) -> bytes:
        """Return the bytes up to and including the next newline; at most `size` bytes if that is given."""
        stop, pieces = self._stop(size), list[bytes]()
        while self._position < stop:
            piece = self.read(min(_LINE, stop - self._position))
            if end := piece.find(b"\n") + 1:
                self._position -= len(piece) - end
                pieces.append(piece[:end])
                break
            pieces.append(piece)
        return b"".join(pieces)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position to `offset` from the start, the position or the end; return the new position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.nbytes}[whence]
        if base + offset < 0:
            raise ValueError(f"seek: {offset} from {base} is before the start of the message")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position of the next byte to read."""
        return self._position

    def seekable(self) -> bool:
        """Return True: part of the interface of files."""
        return True

    def readable(self) -> bool:
        """Return True: part of the interface of files."""
        return True

    def _stop(self, size: int | None) -> int:
        """Return the position after a read of `size` bytes."""
        end = max(self._position, self.nbytes)
        return end if size is None or size < 0 else min(self._position + size, end)

    def slices(self, start: int, stop: int) -> list[memoryview]:
        """Return the bytes [start, stop) as views, without a copy."""
        if start == 0 and stop == self.nbytes:
            return self.buffers
        if self._stops is None:
            self._stops = list(itertools.accumulate(buffer.nbytes for buffer in self.buffers))
        found = []
        first = bisect_right(self._stops, start)
        for buffer, end in zip(self.buffers[first:], self._stops[first:], strict=True):
            begin = end - buffer.nbytes
            if begin >= stop:
                break
            found.append(buffer[max(start - begin, 0) : stop - begin])
        return found


class BytesSerializer:
    """Plain bytes. `dump` takes any object with a contiguous buffer; `load` returns bytes."""

    def dump(self, data: Buffer) -> Stream:
        """Return a stream of `data`, without a copy: `data` must not change until the future is done."""
        try:
            return Stream([data])
        except (TypeError, BufferError) as error:
            kind = type(data).__name__
            raise SerializationError(
                f"put: a {kind}; {type(self).__name__} takes bytes, or another contiguous buffer ({error})"
            ) from error

    def load(self, stream: Stream) -> bytes:
        """Return the bytes of a stream: a copy."""
        return large.copied(stream.buffers[0], bytes) if len(stream.buffers) == 1 else bytes(stream)


class BufferSerializer(BytesSerializer):
    """Like BytesSerializer, but `load` returns a writable view of the message's memory, without a copy."""

    def load(self, stream: Stream) -> memoryview:  # type: ignore[override]
        """Return the bytes of a stream as one view, whose address is a multiple of 64."""
        return stream.contiguous()

    def load_into(self, stream: Stream, buffers: Sequence[memoryview]) -> memoryview:
        """Copy the bytes of a stream to the start of the one buffer; return a view of what it has filled.

        Raises BufferMismatch if the buffer is shorter than the message, or is not the only one.
        """
        if len(buffers) != 1 or buffers[0].nbytes < stream.nbytes:
            given = f"{len(buffers)} buffers" if len(buffers) != 1 else f"one buffer of {buffers[0].nbytes} bytes"
            raise BufferMismatch(f"into has {given}; expected one buffer of {stream.nbytes} bytes or more")
        return buffers[0][: stream.readinto(buffers[0])]

    def plan_into(self, nbytes: int, buffers: Sequence[memoryview]) -> Iterator[memoryview]:
        """Yield where the bytes of a message belong: see PickleSerializer."""
        if len(buffers) == 1 and buffers[0].nbytes >= nbytes:
            yield buffers[0][:nbytes]


class StreamSerializer:
    """Binary files. `dump` takes one; `load` returns one, a Stream."""

    def dump(self, file: BinaryIO) -> Stream:
        """Return a stream of the bytes of `file`, from its position to its end."""
        return Stream([file.read()])

    def load(self, stream: Stream) -> Stream:
        """Return the stream itself, to read from."""
        return stream


class PickleSerializer:
    """Pickle, protocol 5, with large buffers out of band.

    Unsafe without `allow`: a pickle can run any code, so load only messages of peers that you trust. With `allow`, a
    message is data whatever its bytes are: instances of the allowed classes are made by their constructors, functions
    are refused, and time and memory are bounded (docs/explanation/security.md).

    allow: takes "module.name" for each class that a message names; returns True to load it. Default: anything goes.
    dump:  takes each object; returns a persistent identifier (any picklable object) for an object that is sent as an
           identifier, otherwise None. A `pickle.PickleBuffer` in it is sent out of band. Default: none.
    load:  takes a persistent identifier; returns the object. Default: refuse all.
    bounded: with `allow`: whether the number of a message's opcodes is bounded. False: for a file of one's own.
    """

    loads_bytes = True  # `load` takes bytes, too: see netq/utils/serializer.py

    def __init__(
        self,
        allow: Callable[[str], bool] | None = None,
        dump: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
        *,
        bounded: bool = True,
    ) -> None:
        for name, function in (("allow", allow), ("dump", dump), ("load", load)):
            expect(function is None or callable(function), f"PickleSerializer.{name}", function, _FUNCTION)
        self.is_restricted = allow is not None
        self._is_plain = allow is None and load is None
        self._functions = allow, dump, load
        self._bounded = bounded
        self._prepare()

    def _prepare(self) -> None:
        allow, self._hook, load = self._functions
        self._picklers: list[_Pickler] = []  # idle ones: making one takes longer than a small message
        self._classes = None if allow is None else Classes(allow)
        persistent = load or _refuse_identifier
        self._loads = (
            _loads(persistent) if self._classes is None else _loads_data(self._classes, persistent, self._bounded)
        )

    def __getstate__(self) -> dict[str, Any]:
        prepared = ("_hook", "_picklers", "_classes", "_loads")
        return {name: value for name, value in vars(self).items() if name not in prepared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def _new_pickler(self) -> _Pickler:
        reduce = forms.reduce if self._classes is None else Sent(self._classes).reduce
        return _Pickler(reduce) if self._hook is None else _HookedPickler(reduce, self._hook)

    @staticmethod
    def allow_by_name(*names: str) -> Callable[[str], bool]:
        """Return an `allow` function. "uuid.UUID" allows one class, "uuid" all that this module itself defines.

        The modules must be imported where messages are loaded; a message imports none. Classes that are no data of a
        usual kind must be named themselves (docs/explanation/security.md, "Classes in messages").
        """
        form = 'names, as in allow_by_name("uuid.UUID", "mine")'
        for name in names:
            expect(isinstance(name, str) and name != "", "allow_by_name", name, form)
        return AllowedNames(names)

    def dump(self, data: Any) -> Stream:
        """Return the stream of `data`. Its out-of-band buffers must not change until the future is done."""
        packed = self.pack(data)
        return packed if isinstance(packed, Stream) else Stream([packed])

    def pack(self, data: Any) -> Stream | bytes:
        """Do as `dump`, but return bytes if there is no out-of-band buffer."""
        try:
            pickler = self._picklers.pop()
        except IndexError:
            pickler = self._new_pickler()
        pieces, out = pickler.pieces, pickler.out
        pickler.dump(data)
        if len(pieces) > 1:
            return Stream.of(*[memoryview(each) for each in layout(pieces, [buffer.raw() for buffer in out])])
        pickled = pieces.pop()
        packed = None
        if out:
            packed = Stream.of(*[memoryview(each) for each in layout([pickled], [buffer.raw() for buffer in out])])
        if len(pickled) <= _SMALL and self._classes is None:  # Sent remembers what it has seen in a message
            pickler.clear_memo()
            out.clear()
            self._picklers.append(pickler)
        return _pack_head(len(pickled), 0) + pickled if packed is None else packed

    def load(self, stream: Stream | bytes) -> Any:
        """Return the object of a stream, or of bytes. Arrays are writable, aligned views.

        They lie in the memory of the stream, or in a copy of the bytes. Raises NotAllowed, or Unreadable for bytes that
        `dump` did not make, or that exceed the limits.
        """
        data: bytes | memoryview
        buffers: Iterator[memoryview]
        if isinstance(stream, bytes):
            data = stream
        else:
            data = stream.contiguous() if len(stream.buffers) != 1 else stream.buffers[0]
        try:
            size, count = _unpack_head(data)
            stop = _HEAD_SIZE + size
            if not count and stop <= len(data):
                pickled, buffers = data[_HEAD_SIZE:stop], iter(())
            else:
                whole = stream if isinstance(stream, Stream) else Stream.of(memoryview(stream))
                buffers = parts(whole.contiguous())  # as they are used: a peer can announce millions
                pickled = next(buffers)
            if size <= _COPIED and self._is_plain:  # faster than an Unpickler
                return pickle.loads(pickled, buffers=buffers)
            return self._loads(pickled, buffers)
        except Unreadable:
            raise
        except Exception as error:  # a damaged pickle may raise any exception, says its documentation
            raise _unreadable(len(data), error) from error

    def load_into(self, stream: Stream, buffers: Sequence[memoryview]) -> Any:
        """Return the object of a stream. Its out-of-band buffers are copied into `buffers`, in the order of the pickle.

        Arrays are views of `buffers`. Raises BufferMismatch, before it has copied anything, unless the numbers of the
        buffers and of the bytes of each are equal; and what `load` raises, which may be after the copy.
        """
        try:
            size, count = _HEAD.unpack(stream.read(_HEAD_SIZE))
            sizes = [nbytes for (nbytes,) in _SIZE.iter_unpack(stream.read(count * _SIZE.size))]
            start = stream.tell()
            pickled = Stream(stream.slices(start, stream.seek(min(start + size, stream.nbytes)))).contiguous()
            _expect_fit(sizes, buffers)
            for buffer in buffers:
                stream.seek(-stream.tell() % ALIGNMENT, io.SEEK_CUR)
                if stream.readinto(buffer) < buffer.nbytes:
                    raise Unreadable(f"a message of {len(stream)} bytes ends within a buffer of {buffer.nbytes}")
            return self._loads(pickled, buffers)
        except (Unreadable, BufferMismatch):
            raise
        except Exception as error:
            raise _unreadable(len(stream), error) from error

    def plan_into(self, nbytes: int, buffers: Sequence[memoryview]) -> Iterator[memoryview]:
        """Yield where the bytes of a message belong, piece by piece, so that `load_into` has nothing to copy.

        Each piece is full when the next is asked for. Ends early if the message does not fit, or if a copy is as good.
        """
        if nbytes < _DENSE * len(buffers) or _overlap(buffers):
            return
        head = aligned(_HEAD_SIZE + _SIZE.size * len(buffers))
        yield head
        size, count = _unpack_head(head)
        sizes, at = [nbytes for (nbytes,) in _SIZE.iter_unpack(head[_HEAD_SIZE:])], len(head) + size
        if count != len(buffers) or sizes != [buffer.nbytes for buffer in buffers]:
            return
        pieces = list[memoryview]()
        for buffer in buffers:
            pieces += (memoryview(bytearray(-at % ALIGNMENT)), buffer)
            at += -at % ALIGNMENT + buffer.nbytes
        if at == nbytes:
            yield from filter(len, (aligned(size), *pieces))


def _overlap(buffers: Sequence[memoryview]) -> bool:
    """Return whether some bytes are in two of the buffers."""
    starts = [(ctypes.addressof(ctypes.c_char.from_buffer(each)), each.nbytes) for each in buffers if each.nbytes]
    return any(start + nbytes > after for (start, nbytes), (after, _) in itertools.pairwise(sorted(starts)))


def _expect_fit(sizes: Sequence[int], buffers: Sequence[memoryview]) -> None:
    """Raise BufferMismatch unless `buffers` have exactly these sizes, in bytes."""
    if len(sizes) != len(buffers):
        raise BufferMismatch(
            f"into has {len(buffers)} buffers, and the message has {len(sizes)} out of band{_listed(sizes)}; expected "
            "as many. Arrays of numbers, texts or dates, tensors, and pickle.PickleBuffer are sent out of band"
        )
    for number, (size, buffer) in enumerate(zip(sizes, buffers, strict=True)):
        if size != buffer.nbytes:
            raise BufferMismatch(
                f"into: buffer {number} of {len(buffers)} has {buffer.nbytes} bytes, and that of the message has "
                f"{size}; expected as many"
            )


def _listed(sizes: Sequence[int]) -> str:
    shown = [*map(str, sizes[:_SHOWN]), *(["…"] if len(sizes) > _SHOWN else [])]
    return f" (of {', '.join(shown)} bytes)" if sizes else ""


def _unreadable(nbytes: int, error: Exception) -> Unreadable:
    return Unreadable(f"a message of {nbytes} bytes cannot be loaded: {_described(error)}")


class _Pickler(pickle.Pickler):
    """Writes one message into `pieces` and `out`, and then perhaps another one."""

    def __init__(self, reduce: Callable[[Any], Any]) -> None:
        self.reducer_override = reduce  # type: ignore[method-assign]
        self.pieces, self.out = large.Pieces(), list[pickle.PickleBuffer]()
        super().__init__(self.pieces, 5, buffer_callback=self.out.append)


class _HookedPickler(_Pickler):
    def __init__(self, reduce: Callable[[Any], Any], hook: Callable[[Any], Any]) -> None:
        self._hook = hook
        super().__init__(reduce)

    def persistent_id(self, obj: Any) -> Any:
        return self._hook(obj)


class _Source(Stream):
    """A pickle, for an Unpickler to read. It fills the memory of large objects by `readinto`."""

    __slots__ = ()

    def readinto(self, buffer: Buffer) -> int:
        use_huge_pages(memoryview(buffer))
        return super().readinto(buffer)


def _loads(persistent: Callable[[Any], Any]) -> _Loads:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return persistent(pid)

    def loads(pickled: bytes | memoryview, buffers: Iterable[memoryview]) -> Any:
        return Unpickler(_Source([pickled]), buffers=buffers).load()

    return loads


def _loads_data(classes: Classes, persistent: Callable[[Any], Any], bounded: bool) -> _Loads:
    def loads(pickled: bytes | memoryview, buffers: Iterable[memoryview]) -> Any:
        # indexing bytes is faster; for a large pickle the copy is not
        data = pickled if len(pickled) > _COPIED else bytes(pickled)
        return data_pickle.load(data, buffers, classes, persistent, bounded)

    return loads


def _described(error: Exception) -> str:
    """Return an error as text. It may hold values of a peer, such as an integer too large to be printed."""
    try:
        return printable(repr(error))
    except Exception:  # of a `__repr__`
        return type(error).__name__


def _refuse_identifier(pid: Any) -> Any:
    raise Unreadable("a message holds a persistent identifier, and PickleSerializer has no `load` for it")


def layout(head: Sequence[Buffer], buffers: Sequence[memoryview]) -> list[Buffer]:
    """Return the buffers of a message: those of `head` behind the table of sizes, then `buffers` at multiples of 64.

    A message of many buffers has copies of the small ones, joined: to send each by itself takes longer.
    """
    nbytes, sizes = sum(map(len, head)), [buffer.nbytes for buffer in buffers]
    table = struct.pack(f"<{len(sizes)}Q", *sizes)
    found: list[Buffer] = [b"".join((_pack_head(nbytes, len(sizes)), table, head[0])), *head[1:]]
    run, pad = [found.pop()], -(_HEAD_SIZE + len(table) + nbytes) % ALIGNMENT
    small = _JOINED if len(sizes) > _MANY else -1
    for buffer, size in zip(buffers, sizes, strict=True):
        if pad:
            run.append(_ZEROS[:pad])
        if size <= small:
            run.append(buffer)
        else:
            if run:
                found.append(b"".join(run))
            found.append(buffer)
            run = []
        pad = -size % ALIGNMENT
    if run:
        found.append(b"".join(run))
    return found


def parts(data: memoryview) -> Iterator[memoryview]:
    """Yield the head of a message, then each of its buffers, as views. Raises Unreadable."""
    head_size, count = _HEAD.unpack_from(data)
    table = _HEAD.size + count * _SIZE.size
    if table + head_size > data.nbytes:
        raise Unreadable(f"a message of {data.nbytes} bytes announces {count} buffers and a head of {head_size}")
    at = table + head_size
    yield data[table:at]
    for (size,) in _SIZE.iter_unpack(data[_HEAD.size : table]):
        at += -at % ALIGNMENT
        if at + size > data.nbytes:
            raise Unreadable(f"a message of {data.nbytes} bytes announces a buffer of {size} at {at}")
        yield data[at : at + size]
        at += size
