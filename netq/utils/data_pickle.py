"""Interprets pickles of protocol 5 as data. Pure; called by PickleSerializer when it has `allow`.

`load` takes the opcodes that pickle's own Pickler writes, and no others. It never imports, never changes a class or a
function, and calls only what netq/utils/data_classes.py has made for an allowed class. Time and memory are bounded by
the constants below and by the bytes of the message, whatever these bytes are.

A stack of values is all that most opcodes see. Containers, instances and classes also have a `_Part`, in the order in
which they lie on the stack, with what the limits need. Three rules follow from it:

- A class with a Builder is no value. It can be called, and cannot get into a container, an instance or the result.
- A container can be filled until it is used a second time (fetched from the memo). So a message cannot change what a
  constructor has checked, and nothing contains itself.
- NEWOBJ opens a frame, as MARK does, and BUILD closes it: an instance is on no stack before it is whole. BUILD has no
  other target, except an exception or OrderedDict that REDUCE has just made.
"""

from __future__ import annotations

import codecs
import pickle
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from netq.errors import NotAllowed, Unreadable
from netq.utils import large
from netq.utils.data_classes import set_attributes
from netq.utils.data_values import Builder

MAX_OPCODES = 2**20  # half a second of work at most; a list of a million numbers
MAX_MEMO = 2**19  # values in the memo: each takes an opcode more
MAX_DEPTH = 100  # containers and instances in one another: code that recurses over a message has 1000 frames
MAX_SIZE = 2**22  # values, each as often as it can be reached: what a walk over the result visits
MAX_KEY_SIZE = 100  # values in a dict's key or a set's member, which are hashed each time they are used
MAX_WORK = 2**22  # values that are hashed in keys, compared, or given to constructors, each time they are
MAX_SAME_HASH = 8  # keys of one dict or set with one hash: looking up n of them takes n**2 steps
MAX_SAME_HASHES = 1000  # such keys in a message: comparing two may compare long texts
MAX_NUMBERS = 10_000  # keys of one dict or set that are not texts: a peer can choose n so that they take n**2 steps
MAX_STEPS = MAX_NUMBERS**2  # such steps of all dicts and sets of a message
MAX_INT = 4096  # bytes of an integer: hashing and printing it take more than linear time
_PIECE = 2**18  # bytes of a text that one call decodes with the interpreter's lock held: 10 ms at most
_SMALL_INT = 32  # bytes: a larger integer has a part, as containers have
_FREE_PARTS = 2**15  # parts that any message may have; above, one more for each `_BYTES_A_PART` bytes read
_BYTES_A_PART = 4  # an empty dict takes one byte in a message, and a hundred and fifty here
_SET_PARTS = 3  # an empty set, or deque, takes as much memory as four other containers: so many more
_VALUES_A_PART = 4  # of a dict, or a shape, that a constructor copies
_COPIED_A_PART = 128  # bytes that it copies
_UNBUILT = object()  # the value in the memo of an instance whose BUILD has not come

_unpack_int = struct.Struct("<i").unpack_from
_unpack_uint = struct.Struct("<I").unpack_from
_unpack_short = struct.Struct("<H").unpack_from
_unpack_long = struct.Struct("<Q").unpack_from
_unpack_float = struct.Struct(">d").unpack_from
_STOP = pickle.STOP[0]
_READONLY = pickle.READONLY_BUFFER[0]
_DICTS = (dict, OrderedDict, defaultdict)
_TEXT = {str}


class _Part:
    """A container, an instance, a class or a large integer, at index `at` of the stack of its frame."""

    __slots__ = ("at", "depth", "hashes", "is_again", "keys", "open", "same", "size", "value")

    def __init__(
        self, value: Any, at: int, depth: int, size: int, is_open: bool = False, is_again: bool = False
    ) -> None:
        self.value = value
        self.at = at
        self.depth = depth  # of containers and instances in it; with it, if it is one
        self.size = size  # values in it, each as often as it can be reached
        self.open = is_open  # may be filled; an exception: may get its state
        self.is_again = is_again  # a class, or fetched from the memo: takes no memory once it is off the stack
        self.keys = 0  # set by this message
        self.hashes: set[int] | None = None  # of its keys, once one is no text
        self.same = 0  # keys with the hash of an earlier one


class _Opened:
    """An instance between its NEWOBJ and its BUILD."""

    __slots__ = ("args", "builder", "depth", "memo_at", "size")

    def __init__(self, builder: Builder, args: tuple[Any, ...], depth: int, size: int) -> None:
        self.builder = builder
        self.args = args
        self.depth = depth
        self.size = size
        self.memo_at: int | None = None  # its place in the memo


class _Load:
    """The state of loading one pickle."""

    __slots__ = (
        *("bounded", "buffers", "classes", "data", "end", "frames", "made", "memo", "opened", "parts", "persistent"),
        *("same", "stack", "steps", "unread", "work"),
    )

    def __init__(
        self,
        data: bytes | memoryview,
        buffers: Iterable[memoryview],
        classes: Callable[[str, str], Any],
        persistent: Callable[[Any], Any],
        bounded: bool,
    ) -> None:
        self.bounded = bounded
        self.data = data
        self.end = len(data)
        self.buffers = iter(buffers)
        self.classes = classes
        self.persistent = persistent
        self.memo: list[Any] = []  # a value, or the _Part of one
        self.stack: list[Any] = []  # of the current frame
        self.parts: list[_Part] = []
        self.opened: _Opened | None = None  # what the current frame will build; None: a MARK, or the whole message
        self.frames: list[tuple[list[Any], list[_Part], _Opened | None]] = []  # around the current one
        self.made = 0  # parts
        self.work = 0  # values hashed, compared, or given to constructors
        self.same = 0  # keys with the hash of another in their dict or set
        self.steps = 0  # of finding places for keys that are not texts, if their hashes meet in the table
        self.unread = 0  # bytes of buffers that constructors may read

    def run(self) -> Any:
        data, table = self.data, _TABLE
        if bytes(data[:2]) != b"\x80\x05":
            raise Unreadable("a message is no pickle of protocol 5")
        at = 2
        for _ in range(MAX_OPCODES if self.bounded else self.end):  # each takes a byte or more
            opcode = data[at]
            if opcode == _STOP:
                return self.stop(at + 1)
            at = table[opcode](self, at + 1)
        raise Unreadable(f"a message has more than {MAX_OPCODES} opcodes; send many numbers as an array or as bytes")

    def stop(self, at: int) -> Any:
        if self.frames or len(self.stack) != 1:
            raise Unreadable("a pickle ends before its value is complete")
        self.take_parts(0)
        if at != self.end:
            raise Unreadable(f"{self.end - at} bytes follow the end of a pickle")
        if next(self.buffers, None) is not None:
            raise Unreadable("a message has more out-of-band buffers than its pickle uses")
        return self.stack[0]

    def span(self, at: int, size: int) -> int:
        """Return the end of the next `size` bytes."""
        if size > self.end - at:
            raise Unreadable(f"a pickle announces {size} bytes, and has {self.end - at}")
        return at + size

    def count(self, at: int, weight: int = 1) -> None:
        """Count a part. `at` is the number of bytes read."""
        self.made += weight
        if self.made > _FREE_PARTS and self.made > _FREE_PARTS + at // _BYTES_A_PART:
            raise Unreadable(f"a message has more than {_FREE_PARTS} containers, most of them empty or shared")

    def push(self, at: int, value: Any, depth: int, size: int, is_open: bool = False, is_again: bool = False) -> int:
        """Put a value with a part on the stack; return `at`, the number of bytes read."""
        self.count(at)
        if depth > MAX_DEPTH or size > MAX_SIZE:
            raise _too_much(depth)
        self.parts.append(_Part(value, len(self.stack), depth, size, is_open, is_again))
        self.stack.append(value)
        return at

    def take_parts(self, base: int) -> tuple[int, int]:
        """Forget the parts of the values from index `base` of the stack; return their depth and size."""
        parts, depth, size = self.parts, 0, 0
        while parts and parts[-1].at >= base:
            part = parts.pop()
            if type(part.value) is Builder:
                raise NotAllowed(f"a message has the class {part.value.name} as a value; expected data")
            self.made -= part.is_again
            depth = max(depth, part.depth)
            size += part.size
        return depth, size

    def begin_frame(self, opened: _Opened | None) -> None:
        """Set the stack aside, and begin a new one."""
        if len(self.frames) > 2 * MAX_DEPTH:
            raise _too_much(MAX_DEPTH + 1)
        self.frames.append((self.stack, self.parts, self.opened))
        self.stack, self.parts, self.opened = [], [], opened

    def end_frame(self) -> tuple[list[Any], int, int]:
        """Return the values since the last MARK, with their depth and size; go on with the stack before it."""
        if self.opened is not None or not self.frames:
            raise Unreadable("a pickle ends a part that it has not begun")
        values = self.stack
        depth, size = self.take_parts(0)
        self.stack, self.parts, self.opened = self.frames.pop()
        return values, depth, size + len(values)

    def filled(self, kinds: tuple[type, ...], depth: int, size: int) -> _Part:
        """Return the part of the container at the top of the stack, to which these values are added."""
        part = self.parts[-1] if self.parts else None
        if part is None or part.at != len(self.stack) - 1 or not isinstance(part.value, kinds):
            raise Unreadable(f"a pickle adds values to something that is no {kinds[0].__name__} of its own")
        if not part.open:
            raise Unreadable("a message changes a container after it was used, or has one that contains itself")
        part.depth = max(part.depth, depth + 1)
        part.size += size
        if part.depth > MAX_DEPTH or part.size > MAX_SIZE:
            raise _too_much(part.depth)
        return part

    def check_keys(self, base: int, step: int) -> None:
        """Refuse keys that take long to hash. They are each `step`th value from index `base` of the stack."""
        for part in reversed(self.parts):
            if part.at < base:
                break
            if (part.at - base) % step == 0:
                if part.size > MAX_KEY_SIZE:
                    raise Unreadable(f"a message has a key of more than {MAX_KEY_SIZE} values")
                self.charge(part.size)

    def check_hashes(self, part: _Part, keys: Sequence[Any]) -> None:
        """Refuse many keys of equal hash, and very many that are not texts: the hashes of texts are secret.

        A peer can choose numbers, and tuples of them, of equal hash. And it can choose numbers of different hashes that
        look for a free place in a hash table in the same order.
        """
        if set(map(type, keys)) <= _TEXT:
            if len(set(map(id, keys))) < len(keys):  # comparing two long texts once is enough
                raise Unreadable("a message sets a key twice")
            return
        hashes = part.hashes = part.hashes or set()
        self.steps += (2 * len(hashes) + len(keys)) * len(keys)
        if self.steps > MAX_STEPS:
            raise Unreadable(
                f"a message has more than {MAX_NUMBERS} numbers or other keys that are not texts in a dict or set, or "
                "in all together; expected texts as keys, or two arrays"
            )
        for key in keys:
            value = hash(key)
            if value in hashes:
                part.same += 1
                self.same += 1
                if part.same > MAX_SAME_HASH or self.same > MAX_SAME_HASHES:
                    raise Unreadable(f"a message has a dict or set with more than {MAX_SAME_HASH} keys of equal hash")
            hashes.add(value)

    def charge(self, size: int) -> None:
        self.work += size
        if self.work > MAX_WORK:
            raise Unreadable(f"a message has more than {MAX_WORK} values in keys and in the arguments of constructors")

    def refuse(self, at: int) -> int:
        opcode = bytes(self.data[at - 1 : at])
        name = next((name for name, value in vars(pickle).items() if value == opcode and name.isupper()), repr(opcode))
        raise Unreadable(f"a message has the opcode {name}, which PickleSerializer.dump never makes")


def _too_much(depth: int) -> Unreadable:
    if depth > MAX_DEPTH:
        return Unreadable(f"a message has more than {MAX_DEPTH} containers in one another")
    return Unreadable(f"a message has more than {MAX_SIZE} values, if shared ones count each time")


def load(
    data: bytes | memoryview,
    buffers: Iterable[memoryview],
    classes: Callable[[str, str], Any],
    persistent: Callable[[Any], Any],
    bounded: bool = True,
) -> Any:
    """Return the value of a pickle.

    buffers:    its out-of-band buffers; it must use all of them.
    classes:    takes module and name; returns a Builder, or a value. Raises NotAllowed.
    persistent: takes a persistent identifier; returns the object.
    bounded:    whether MAX_OPCODES and MAX_MEMO hold; False for a file of one's own, whose work its size bounds.

    Raises Unreadable, what `classes` and `persistent` raise, and what constructors raise for the values they get.
    """
    return _Load(data, buffers, classes, persistent, bounded).run()


_TABLE: list[Callable[[_Load, int], int]] = [_Load.refuse] * 256


def _opcode(*names: bytes) -> Callable[[Callable[[_Load, int], int]], Callable[[_Load, int], int]]:
    """Enter a function for these opcodes. It gets the offset after the opcode, and returns that of the next one."""

    def enter(function: Callable[[_Load, int], int]) -> Callable[[_Load, int], int]:
        for name in names:
            _TABLE[name[0]] = function
        return function

    return enter


# Single values


@_opcode(pickle.FRAME)
def _frame(load: _Load, at: int) -> int:
    load.span(at + 8, _unpack_long(load.data, at)[0])
    return at + 8


@_opcode(pickle.NONE)
def _none(load: _Load, at: int) -> int:
    load.stack.append(None)
    return at


@_opcode(pickle.NEWTRUE)
def _true(load: _Load, at: int) -> int:
    load.stack.append(True)
    return at


@_opcode(pickle.NEWFALSE)
def _false(load: _Load, at: int) -> int:
    load.stack.append(False)
    return at


@_opcode(pickle.BININT1)
def _int_of_1(load: _Load, at: int) -> int:
    load.stack.append(load.data[at])
    return at + 1


@_opcode(pickle.BININT2)
def _int_of_2(load: _Load, at: int) -> int:
    load.stack.append(_unpack_short(load.data, at)[0])
    return at + 2


@_opcode(pickle.BININT)
def _int_of_4(load: _Load, at: int) -> int:
    load.stack.append(_unpack_int(load.data, at)[0])
    return at + 4


@_opcode(pickle.LONG1)
def _long_of_1(load: _Load, at: int) -> int:
    return _long(load, at + 1, load.data[at])


@_opcode(pickle.LONG4)
def _long_of_4(load: _Load, at: int) -> int:
    return _long(load, at + 4, _unpack_uint(load.data, at)[0])


def _long(load: _Load, at: int, size: int) -> int:
    if size > MAX_INT:
        raise Unreadable(f"a message has an integer of {size} bytes; expected at most {MAX_INT}; send bytes")
    stop = load.span(at, size)
    value = int.from_bytes(load.data[at:stop], "little", signed=True)
    if size > _SMALL_INT:  # hashing it takes as long as that of several values
        return load.push(stop, value, 0, size // 8)
    load.stack.append(value)
    return stop


@_opcode(pickle.BINFLOAT)
def _float(load: _Load, at: int) -> int:
    load.stack.append(_unpack_float(load.data, at)[0])
    return at + 8


@_opcode(pickle.SHORT_BINUNICODE)
def _text_of_1(load: _Load, at: int) -> int:
    return _text(load, at + 1, load.data[at])


@_opcode(pickle.BINUNICODE)
def _text_of_4(load: _Load, at: int) -> int:
    return _text(load, at + 4, _unpack_uint(load.data, at)[0])


@_opcode(pickle.BINUNICODE8)
def _text_of_8(load: _Load, at: int) -> int:
    return _text(load, at + 8, _unpack_long(load.data, at)[0])


def _text(load: _Load, at: int, size: int) -> int:
    stop = load.span(at, size)
    text = load.data[at:stop]
    load.stack.append(str(text, "utf-8", "surrogatepass") if size <= _PIECE else _long_text(text))
    return stop


def _long_text(content: bytes | memoryview) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    pieces = [decoder.decode(content[start : start + _PIECE]) for start in range(0, len(content), _PIECE)]
    return "".join([*pieces, decoder.decode(b"", True)])


@_opcode(pickle.SHORT_BINBYTES)
def _bytes_of_1(load: _Load, at: int) -> int:
    return _bytes(load, at + 1, load.data[at])


@_opcode(pickle.BINBYTES)
def _bytes_of_4(load: _Load, at: int) -> int:
    return _bytes(load, at + 4, _unpack_uint(load.data, at)[0])


@_opcode(pickle.BINBYTES8)
def _bytes_of_8(load: _Load, at: int) -> int:
    return _bytes(load, at + 8, _unpack_long(load.data, at)[0])


def _bytes(load: _Load, at: int, size: int) -> int:
    stop = load.span(at, size)
    load.stack.append(large.copied(load.data[at:stop], bytes))
    return stop


@_opcode(pickle.BYTEARRAY8)
def _bytearray(load: _Load, at: int) -> int:
    stop = load.span(at + 8, _unpack_long(load.data, at)[0])
    load.stack.append(large.copied(load.data[at + 8 : stop], bytearray))
    return stop


@_opcode(pickle.NEXT_BUFFER)
def _next_buffer(load: _Load, at: int) -> int:
    buffer = next(load.buffers, None)
    if buffer is None:
        raise Unreadable("a pickle uses more out-of-band buffers than its message has")
    load.unread += len(buffer)
    if load.data[at] != _READONLY:
        load.stack.append(buffer)
        return at
    load.stack.append(buffer.toreadonly())  # one view, which keeps its hash: hashing another takes as long again
    return at + 1


@_opcode(pickle.BINPERSID)
def _persistent_id(load: _Load, at: int) -> int:
    pid = load.stack.pop()
    load.charge(load.take_parts(len(load.stack))[1])
    load.stack.append(load.persistent(pid))
    return at


# The memo


@_opcode(pickle.MEMOIZE)
def _memoize(load: _Load, at: int) -> int:
    memo, parts, opened = load.memo, load.parts, load.opened
    if len(memo) == MAX_MEMO and load.bounded:
        raise Unreadable(f"a message has more than {MAX_MEMO} values that it may use again")
    if load.stack:
        last = len(load.stack) - 1
        memo.append(parts[-1] if parts and parts[-1].at == last else load.stack[last])
    elif opened is not None and opened.memo_at is None:
        opened.memo_at = len(memo)
        memo.append(_UNBUILT)
    else:
        raise Unreadable("a pickle stores a value before it has one")
    return at


@_opcode(pickle.BINGET)
def _get_of_1(load: _Load, at: int) -> int:
    return _get(load, at + 1, load.data[at])


@_opcode(pickle.LONG_BINGET)
def _get_of_4(load: _Load, at: int) -> int:
    return _get(load, at + 4, _unpack_uint(load.data, at)[0])


def _get(load: _Load, at: int, index: int) -> int:
    value = load.memo[index]
    if type(value) is _Part:
        value.open = False
        return load.push(at, value.value, value.depth, value.size, is_again=True)
    if value is _UNBUILT:
        raise Unreadable("a message has an object that contains itself")
    load.stack.append(value)
    return at


# Containers


@_opcode(pickle.MARK)
def _mark(load: _Load, at: int) -> int:
    load.begin_frame(None)
    return at


@_opcode(pickle.EMPTY_TUPLE)
def _empty_tuple(load: _Load, at: int) -> int:
    load.stack.append(())
    return at


@_opcode(pickle.TUPLE1)
def _tuple_of_1(load: _Load, at: int) -> int:
    return _tuple(load, at, 1)


@_opcode(pickle.TUPLE2)
def _tuple_of_2(load: _Load, at: int) -> int:
    return _tuple(load, at, 2)


@_opcode(pickle.TUPLE3)
def _tuple_of_3(load: _Load, at: int) -> int:
    return _tuple(load, at, 3)


def _tuple(load: _Load, at: int, length: int) -> int:
    stack = load.stack
    base = len(stack) - length
    if base < 0:
        raise Unreadable("a pickle makes a tuple of more values than it has")
    values = tuple(stack[base:])
    del stack[base:]
    parts = load.parts
    depth, size = load.take_parts(base) if parts and parts[-1].at >= base else (0, 0)
    return load.push(at, values, depth + 1, size + length)


@_opcode(pickle.TUPLE)
def _tuple_of_frame(load: _Load, at: int) -> int:
    values, depth, size = load.end_frame()
    return load.push(at, tuple(values), depth + 1, size)


@_opcode(pickle.EMPTY_LIST)
def _empty_list(load: _Load, at: int) -> int:
    return load.push(at, [], 1, 1, is_open=True)


@_opcode(pickle.EMPTY_DICT)
def _empty_dict(load: _Load, at: int) -> int:
    return load.push(at, {}, 1, 1, is_open=True)


@_opcode(pickle.EMPTY_SET)
def _empty_set(load: _Load, at: int) -> int:
    load.count(at, _SET_PARTS)
    return load.push(at, set(), 1, 1, is_open=True)


@_opcode(pickle.APPEND)
def _append(load: _Load, at: int) -> int:
    value = load.stack.pop()
    depth, size = load.take_parts(len(load.stack))
    load.filled((list, deque), depth, size + 1).value.append(value)
    return at


@_opcode(pickle.APPENDS)
def _appends(load: _Load, at: int) -> int:
    values, depth, size = load.end_frame()
    load.filled((list, deque), depth, size).value.extend(values)
    return at


@_opcode(pickle.SETITEM)
def _set_item(load: _Load, at: int) -> int:
    stack = load.stack
    base = len(stack) - 2
    key, value = stack[base:]
    load.check_keys(base, 2)
    del stack[base:]
    depth, size = load.take_parts(base)
    part = load.filled(_DICTS, depth, size + 2)
    if type(key) is not str:
        load.check_hashes(part, (key,))
    part.value[key] = value
    return _check_grown(part, 1, at)


@_opcode(pickle.SETITEMS)
def _set_items(load: _Load, at: int) -> int:
    load.check_keys(0, 2)
    values, depth, size = load.end_frame()
    part, keys = load.filled(_DICTS, depth, size), values[::2]
    load.check_hashes(part, keys)
    part.value.update(zip(keys, values[1::2], strict=True))
    return _check_grown(part, len(keys), at)


@_opcode(pickle.ADDITEMS)
def _add_items(load: _Load, at: int) -> int:
    load.check_keys(0, 1)
    values, depth, size = load.end_frame()
    part = load.filled((set,), depth, size)
    load.check_hashes(part, values)
    part.value.update(values)
    return _check_grown(part, len(values), at)


@_opcode(pickle.FROZENSET)
def _frozenset(load: _Load, at: int) -> int:
    load.check_keys(0, 1)
    values, depth, size = load.end_frame()
    load.count(at, _SET_PARTS)
    part = _Part(set(), 0, 0, 0)
    load.check_hashes(part, values)
    part.value.update(values)
    _check_grown(part, len(values), at)
    return load.push(at, frozenset(part.value), depth + 1, size)


def _check_grown(part: _Part, count: int, at: int) -> int:
    """Refuse a key that was there before; return `at`. Comparing equal texts takes long, and pickle repeats no key."""
    part.keys += count
    if len(part.value) != part.keys:
        raise Unreadable("a message sets a key twice")
    return at


# Instances of allowed classes


@_opcode(pickle.STACK_GLOBAL)
def _class(load: _Load, at: int) -> int:
    base = len(load.stack) - 2
    module, name = load.stack[base:]
    if type(module) is not str or type(name) is not str:
        raise Unreadable("a pickle names a class by something that is no text")
    del load.stack[base:]
    found = load.classes(module, name)
    if type(found) is Builder:
        return load.push(at, found, 0, 0, is_again=True)
    load.stack.append(found)
    return at


@_opcode(pickle.REDUCE)
def _reduce(load: _Load, at: int) -> int:
    builder, args, depth, size = _take_call(load)
    return _make(load, at, builder, builder.call, args, depth, size)


@_opcode(pickle.NEWOBJ)
def _new_object(load: _Load, at: int) -> int:
    builder, args, depth, size = _take_call(load)
    return _make(load, at, builder, builder.new, args, depth, size)


def _take_call(load: _Load) -> tuple[Builder, tuple[Any, ...], int, int]:
    """Take a class and a tuple of arguments from the stack."""
    stack = load.stack
    base = len(stack) - 2
    builder, args = stack[base:]
    depth, size = load.take_parts(base + 1)
    if type(builder) is not Builder or type(args) is not tuple:
        raise Unreadable("a pickle calls something that is no class, or without arguments")
    load.parts.pop()
    load.made -= 1
    load.charge(size + builder.work)
    del stack[base:]
    return builder, args, depth, size


def _make(
    load: _Load,
    at: int,
    builder: Builder,
    make: Callable[..., Any] | None,
    args: tuple[Any, ...],
    depth: int,
    size: int,
) -> int:
    if make is not None:
        if builder.copies or builder.opens:
            load.count(at, _copied(args, size) if builder.copies else _SET_PARTS)
        if builder.reads and args and type(args[0]) is memoryview:
            load.unread -= len(args[0])
            if load.unread < 0:
                raise Unreadable("a message uses the bytes of an array for another one")
        return _push_made(load, at, builder, make(*args), depth + 1, size + 1)
    if builder.build is None:
        raise NotAllowed(f"a message makes a {builder.name} in a way that pickle itself would not for this class")
    load.begin_frame(_Opened(builder, args, depth, size))
    return at


def _copied(args: tuple[Any, ...], size: int) -> int:
    """Return how many parts weigh as much as a copy of these arguments."""
    return size // _VALUES_A_PART + sum([len(value) for value in args if type(value) is bytes]) // _COPIED_A_PART


@_opcode(pickle.BUILD)
def _build(load: _Load, at: int) -> int:
    state = load.stack.pop()
    depth, size = load.take_parts(len(load.stack))
    load.charge(size)
    if load.stack:
        part = load.filled((OrderedDict, BaseException), depth, size)
        set_attributes(part.value, state)
        return at
    opened = load.opened
    if opened is None or opened.builder.build is None:
        raise Unreadable("a pickle sets the state of something that it has not made")
    load.stack, load.parts, load.opened = load.frames.pop()
    value = opened.builder.build(opened.args, state)
    _push_made(load, at, opened.builder, value, max(depth, opened.depth) + 1, size + opened.size + 1)
    if opened.memo_at is not None:
        load.memo[opened.memo_at] = value if opened.builder.is_atom else load.parts[-1]
    return at


def _push_made(load: _Load, at: int, builder: Builder, value: Any, depth: int, size: int) -> int:
    if not builder.is_atom:
        return load.push(at, value, depth, size, is_open=builder.opens)
    load.count(at)
    load.stack.append(value)
    return at
