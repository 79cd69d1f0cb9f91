"""The corpus of hostile pickles, and a table of what they cost.

    python -m tests.attacks.pickles [BYTES]

prints payload, error, milliseconds and MiB, for `PickleSerializer(allow=…)` with a generous allow-list, and for
`fl.serialization`; with BYTES, of the payloads that have as many. Each payload runs in a process of its own, which is
killed after 60 s.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pickle import dumps
from typing import NamedTuple

from netq.errors import Unreadable
from netq.utils.stream import PickleSerializer, Stream
from tests.attacks import classes  # must be imported, as by an application that allows it

ALLOWED = (
    *(
        "tests.attacks.classes",
        "tests.attacks.classes.Plain",
        "tests.attacks.classes.Restored",
        "builtins",
        "collections",
        "copyreg",
        "datetime",
        "decimal",
        "enum",
        "fractions",
    ),
    *("functools", "io", "numpy", "operator", "os", "posix", "subprocess", "torch", "uuid"),
)
PRIME = 2**61 - 1  # hash(n) is n modulo this
MIB = 2**20
LONGEST = 700  # characters of an error
CLASSES = "tests.attacks.classes"
FORMS = "netq.utils.forms"


class Payload(NamedTuple):
    """A hostile message: the opcodes after PROTO 5, and the sizes of out-of-band buffers."""

    opcodes: bytes
    buffers: tuple[int, ...] = ()
    proto: bytes = b"\x80\x05"

    @property
    def message(self) -> bytearray:
        pickled = self.proto + self.opcodes
        sizes = struct.pack(f"<{2 + len(self.buffers)}Q", len(pickled), len(self.buffers), *self.buffers)
        whole = bytearray(sizes + pickled)
        for size in self.buffers:
            whole += bytes(-len(whole) % 64 + size)
        return whole


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value.encode())]) + value.encode()


def name(module: str, qualname: str) -> bytes:
    return text(module) + text(qualname) + b"\x93"


def whole(value: int) -> bytes:
    """LONG4: an integer of any size."""
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<I", len(content)) + content


def call(module: str, qualname: str, *args: object) -> bytes:
    """STACK_GLOBAL and REDUCE with these arguments."""
    opcodes = [dumps(arg, 5)[2:-1] for arg in args]
    unframed = [opcode[9:] if opcode.startswith(b"\x95") else opcode for opcode in opcodes]
    return name(module, qualname) + b"(" + b"".join(unframed) + b"tR"


def ours(qualname: str) -> bytes:
    return name(CLASSES, qualname)


def state(**attributes: bytes) -> bytes:
    """A dict of attributes, given as opcodes."""
    return b"}(" + b"".join([text(key) + value for key, value in attributes.items()]) + b"u"


def slots(**attributes: bytes) -> bytes:
    """A state of `__dict__` None, and these slots: pickle sets them by setattr."""
    return b"N" + state(**attributes) + b"\x86"


POISON = slots(poison=text("x"))
OWN_METHODS = slots(doubled=text("x"), __post_init__=text("x"), __eq__=text("x"))
DEEP = 40
MANY = 10**6
NEGATIVE = struct.pack("<i", -1)


def _copies(data: bytes) -> bytes:
    """Return the opcodes of many arrays of 64 KiB, whose state has the memory that these opcodes push."""
    args = name("numpy", "ndarray") + b"K\x00\x85C\x01b\x87"
    dtype = name("numpy", "dtype") + text("u1") + b"\x89\x88\x87R(K\x03" + text("|") + b"NNNJ" + NEGATIVE
    first = args + b"R(K\x01" + whole(2**16) + b"\x85\x94" + dtype + b"J" + NEGATIVE + b"K\x00tb\x94\x89" + data
    again = b"h\x00" + args + b"R(K\x01h\x01h\x02\x89h\x03tb"
    return b"](" + name("numpy._core.multiarray", "_reconstruct") + b"\x94" + first + b"\x94tb" + again * 1000 + b"e."


def _again(first: bytes, count: int) -> bytes:
    """Return the opcodes of many values, by a class and arguments that are in the message once, in these opcodes."""
    return b"](" + first + b"h\x00h\x01R" * count + b"e."


PAYLOADS: dict[str, Payload] = {
    "P1 os.system by STACK_GLOBAL": Payload(call("os", "system", "exit 1") + b"."),
    "P1 posix.system by STACK_GLOBAL": Payload(call("posix", "system", "exit 1") + b"."),
    "P1 os.system by GLOBAL": Payload(b"cos\nsystem\n" + text("exit 1") + b"\x85R."),
    "P1 os.system by INST": Payload(b"(" + text("exit 1") + b"ios\nsystem\n."),
    "P1 os.system by OBJ": Payload(b"(" + name("os", "system") + text("exit 1") + b"o."),
    "P1 subprocess.Popen": Payload(call("subprocess", "Popen", "true") + b"."),
    "P2 numpy, f2py.os.system": Payload(call("numpy", "f2py.os.system", "exit 1") + b"."),
    "P2 our module, enum.sys.exit": Payload(call(CLASSES, "enum.sys.exit", 1) + b"."),
    "P2 a method of a class": Payload(call(CLASSES, "Config.doubled", 1) + b"."),
    "P3 runstring": Payload(call("numpy.testing._private.utils", "runstring", "import this", {}) + b"."),
    "P4 collections, _sys.modules": Payload(name("collections", "_sys.modules") + b"."),
    "P4 a module as a value": Payload(name("collections", "abc") + b"."),
    "P5 getattr": Payload(call("builtins", "getattr", "x", "upper") + b"."),
    "P5 eval": Payload(call("builtins", "eval", "1") + b"."),
    "P5 __import__": Payload(call("builtins", "__import__", "this") + b"."),
    "P5 operator.attrgetter": Payload(call("operator", "attrgetter", "x") + b"."),
    "P5 functools.partial": Payload(call("functools", "partial", 1) + b"."),
    "P5 bytes(2**40)": Payload(call("builtins", "bytes", 2**40) + b"."),
    "P5 bytearray(2**40)": Payload(call("builtins", "bytearray", 2**40) + b"."),
    "P5 list(range(2**40))": Payload(call("builtins", "list", range(2**40)) + b"."),
    "P5 type": Payload(call("builtins", "type", "x", (), {}) + b"."),
    "P5 a function of ours": Payload(call(CLASSES, "function", "x") + b"."),
    "P5 a function as a value": Payload(ours("function") + b"."),
    "P5 io.FileIO": Payload(call("_io", "FileIO", "/dev/null") + b"."),
    "P6 torch.load": Payload(call("torch.serialization", "load", "/dev/null") + b"."),
    "P6 torch.storage._load_from_bytes": Payload(call("torch.storage", "_load_from_bytes", b"x") + b"."),
    "P6 numpy.load": Payload(call("numpy", "load", "/dev/null") + b"."),
    "P6 numpy.memmap": Payload(call("numpy", "memmap", "/dev/null") + b"."),
    "P7 EXT1": Payload(b"\x82\x01" + text("exit 1") + b"\x85R."),
    "P7 EXT2": Payload(b"\x83\x01\x00" + text("exit 1") + b"\x85R."),
    "P7 EXT4": Payload(b"\x84\x01\x00\x00\x00" + text("exit 1") + b"\x85R."),
    "P7 copyreg.add_extension": Payload(call("copyreg", "add_extension", "os", "system", 5) + b"."),
    **{f"P8 BUILD on the class {kind}": Payload(ours(kind) + POISON + b"b.") for kind in ("Config", "Key", "Point")},
    "P8 on its methods": Payload(ours("Config") + OWN_METHODS + b"b."),
    "P8 with a dict": Payload(ours("Config") + state(doubled=text("x")) + b"b."),
    "P8 from the memo": Payload(ours("Config") + b"\x94h\x00" + POISON + b"b\x86."),
    "P8 on a named tuple": Payload(ours("Named") + slots(_fields=b")", __new__=b"N") + b"b."),
    "P8 on an enum": Payload(ours("Colour") + slots(RED=b"N") + b"b."),
    "P8 on a member of an enum": Payload(ours("Colour") + text("red") + b"\x85R" + state(_value_=text("x")) + b"b."),
    "P8 on an exception's class": Payload(ours("Failed") + slots(__init__=b"N") + b"b."),
    "P8 on a plain class": Payload(ours("Plain") + POISON + b"b."),
    "P8 on a class in a tuple": Payload(ours("Config") + b"\x94\x85h\x00" + POISON + b"b\x86."),
    "P8 on a class in a state": Payload(ours("Config") + b")\x81" + ours("Key") + POISON + b"bb."),
    "P8 on numpy.ndarray": Payload(name("numpy", "ndarray") + POISON + b"b."),
    "P8 on list": Payload(name("builtins", "list") + POISON + b"b."),
    "P8 a class as a value": Payload(ours("Config") + b"."),
    "P8 a class as an argument": Payload(ours("Failed") + ours("Config") + b"\x85R."),
    "P8 a class made by NEWOBJ": Payload(name("builtins", "type") + text("x") + b")}\x87\x81."),
    "P8 an enum by its call": Payload(ours("Colour") + text("x") + text("A B") + b"\x86R."),
    "P8 a new flag": Payload(ours("Rights") + b"K\x40\x85R."),
    "P9 BUILD on a function": Payload(ours("function") + slots(__defaults__=text("rm") + b"\x85") + b"b."),
    "P9 on a method": Payload(ours("Config.doubled") + slots(__defaults__=b")") + b"b."),
    "P9 on a builder": Payload(name("numpy._core.multiarray", "scalar") + POISON + b"b."),
    "P10 attributes without __init__": Payload(ours("Plain") + b")\x81" + state(value=b"N") + b"b."),
    "P10 no BUILD": Payload(ours("Config") + b")\x81."),
    "P10 no BUILD, in a list": Payload(b"]" + ours("Config") + b")\x81a."),
    "P10 a value that __post_init__ refuses": Payload(ours("Config") + b")\x81" + state(rate=b"K\x07") + b"b."),
    "P10 the same, slots": Payload(ours("Point") + b")\x81](" + text("x") + text("y") + b"eb."),
    "P10 an unknown attribute": Payload(ours("Slotted") + b")\x81" + slots(x=b"K\x01", method=b"N") + b"b."),
    "P10 a field that __init__ sets": Payload(ours("Counted") + b")\x81" + state(items=b"]", count=b"K\x05") + b"b."),
    "P10 a state that __setstate__ refuses": Payload(ours("Restored") + b")\x81" + text("x") + b"b."),
    "P10 an instance without __setstate__": Payload(ours("Restored") + b")\x81."),
    "P10 BUILD twice": Payload(ours("Slotted") + b")\x81" + 2 * (slots(x=b"K\x01") + b"b") + b"."),
    "P10 BUILD from the memo": Payload(
        ours("Point") + b")\x81\x94](K\x01K\x02ebh\x00](" + text("x") + text("y") + b"eb\x86."
    ),
    "P10 a list changed after its check": Payload(
        ours("Config")
        + b")\x81"
        + b"}("
        + text("rate")
        + b"G\x3f\xe0\0\0\0\0\0\0"
        + text("names")
        + b"]\x94ubh\x00K\x07a\x86."
    ),
    "P10 an attribute of an exception": Payload(ours("Failed") + b"K\x01\x85R" + state(code=b"K\x02") + b"b."),
    "P10 args of an exception": Payload(ours("Failed") + b"K\x01\x85R" + state(args=b")") + b"b."),
    "P10 a method of an OrderedDict": Payload(name("collections", "OrderedDict") + b")R" + state(items=b"N") + b"b."),
    "P10 an invalid date": Payload(name("datetime", "date") + b"C\x04\x07\xd0\x01\xc8\x85R."),
    "P10 an invalid UUID": Payload(name("uuid", "UUID") + b")\x81" + state(int=text("x")) + b"b."),
    "P11 LONG_BINPUT of 2**27": Payload(b"Nr\x00\x00\x00\x08."),
    "P11 LONG_BINPUT of 2**32 - 1": Payload(b"Nr\xff\xff\xff\xff."),
    "P11 BINPUT": Payload(b"Nq\xff."),
    "P11 LONG_BINGET of what is not there": Payload(b"j\xff\xff\xff\x7f."),
    "P12 text PUT of 10**8": Payload(b"Np100000000\n."),
    "P12 text GET": Payload(b"N\x94g0\n."),
    "P12 text INT of 10**6 digits": Payload(b"I" + b"9" * MANY + b"\n."),
    "P12 LONG4 of 10 MB": Payload(whole(1 << 8 * 10**7) + b"."),
    "P13 DUP TUPLE2 as a key": Payload(b"})" + b"2\x86" * DEEP + b"Ns."),
    "P13 DUP of a text": Payload(text("x") + b"2\x86."),
    "P14 BINGET TUPLE2 as a key": Payload(
        b"})\x94" + b"".join([b"h%ch%c\x86\x94" % (i, i) for i in range(DEEP)]) + b"Ns."
    ),
    "P14 as a value": Payload(b")\x94" + b"".join([b"h%ch%c\x86\x94" % (i, i) for i in range(DEEP)]) + b"."),
    "P14 of lists": Payload(b"]\x94" + b"".join([b"](h%ch%ce\x94" % (i, i) for i in range(DEEP)]) + b"."),
    "P14 of dicts": Payload(b"}\x94" + b"".join([b"}(K\x01h%cK\x02h%cu\x94" % (i, i) for i in range(DEEP)]) + b"."),
    "P14 of frozensets": Payload(
        b"(K\x01\x91\x94" + b"".join([b"(h%cK%c\x91\x94" % (i, i) for i in range(DEEP)]) + b"(h\x20h\x21\x91."
    ),
    "P14 in sets": Payload(
        b"\x8f(K\x01\x85\x94" + b"".join([b"h%ch%c\x86\x94" % (i, i) for i in range(DEEP)]) + b"\x90."
    ),
    "P14 of dataclasses": Payload(
        ours("Key")
        + b"\x94)\x81"
        + state(number=b"K\x01")
        + b"b\x94"
        + b"".join([b"h\x00)\x81" + state(number=b"h%ch%c\x86" % (i, i)) + b"b\x94" for i in range(1, DEEP)])
        + b"."
    ),
    "P15 tuples 10**6 deep": Payload(b")" + b"\x85" * MANY + b"."),
    "P15 tuples 10**6 deep, by MARK": Payload(b"(" * MANY + b"t" * MANY + b"."),
    "P15 as a key": Payload(b"})" + b"\x85" * MANY + b"Ns."),
    "P15 with MEMOIZE": Payload(b")" + b"\x85\x94" * MANY + b"."),
    "P15 frozensets": Payload(b"(" * MANY + b"\x91" * MANY + b"."),
    "P16 20,000 keys of one hash": Payload(b"}(" + b"".join([whole(i * PRIME) + b"N" for i in range(20_000)]) + b"u."),
    "P16 one by one": Payload(b"}" + b"".join([whole(i * PRIME) + b"Ns" for i in range(20_000)]) + b"."),
    "P16 in a set": Payload(b"\x8f(" + b"".join([whole(i * PRIME) for i in range(20_000)]) + b"\x90."),
    "P16 in a frozenset": Payload(b"(" + b"".join([whole(i * PRIME) for i in range(20_000)]) + b"\x91."),
    "P16 tuples": Payload(b"}(" + b"".join([whole(i * PRIME) + b"\x85N" for i in range(20_000)]) + b"u."),
    "P16 floats and integers": Payload(
        b"}("
        + b"".join([whole(2 ** (i * 61)) + b"G" + struct.pack(">d", 2.0 ** (i * 61)) for i in range(16)] * 9)
        + b"u."
    ),
    "P16 dataclasses": Payload(
        b"\x8f("
        + b"".join([ours("Key") + b")\x81" + state(number=whole(i * PRIME)) + b"b" for i in range(2_000)])
        + b"\x90."
    ),
    "P16 two equal long texts, again and again": Payload(
        2 * (b"X" + struct.pack("<I", MIB) + b"a" * MIB + b"\x94") + b"\x86}(" + b"h\x00Nh\x01N" * 2000 + b"u\x86."
    ),
    "P16 the same, one by one": Payload(
        2 * (b"X" + struct.pack("<I", MIB) + b"a" * MIB + b"\x94") + b"\x86}" + b"h\x00Nsh\x01Ns" * 2000 + b"\x86."
    ),
    "P17 10 MB of EMPTY_DICT": Payload(b"}" * 10**7 + b"."),
    "P17 10 MB of EMPTY_LIST": Payload(b"]" * 10**7 + b"."),
    "P17 10 MB of EMPTY_SET": Payload(b"\x8f" * 10**7 + b"."),
    "P17 10 MB of EMPTY_TUPLE": Payload(b")" * 10**7 + b"."),
    "P17 10 MB of MARK": Payload(b"(" * 10**7 + b"."),
    "P17 10 MB of NONE": Payload(b"N" * 10**7 + b"."),
    "P17 10 MB of MEMOIZE": Payload(b"N" + b"\x94" * 10**7 + b"."),
    "P17 a list of 10 MB of empty dicts": Payload(b"](" + b"}" * 10**7 + b"e."),
    **{
        f"P18 {kind} of {size}": Payload(opcode + size.to_bytes(width, "little") + b"abc.")
        for kind, opcode, width in (
            *(
                ("BINBYTES8", b"\x8e", 8),
                ("BYTEARRAY8", b"\x96", 8),
                ("BINUNICODE8", b"\x8d", 8),
                ("FRAME", b"\x95", 8),
            ),
            *(("LONG4", b"\x8b", 4), ("BINBYTES", b"B", 4), ("BINUNICODE", b"X", 4)),
        )
        for size in (100, 2**31 - 1, 2**31, 2 ** (8 * width) - 1)
    },
    "P18 a long text that ends badly": Payload(
        b"\x8d" + (8 * MANY).to_bytes(8, "little") + "é".encode() * (4 * MANY - 1) + b"\xff\xff."
    ),
    "P18 BINSTRING": Payload(b"T\xff\xff\xff\x7fabc."),
    "P19 ndarray((2**31,))": Payload(call("numpy", "ndarray", (2**31,)) + b"."),
    "P19 zeros(2**31)": Payload(call("numpy", "zeros", 2**31) + b"."),
    "P19 _reconstruct of (2**31,)": Payload(
        name("numpy._core.multiarray", "_reconstruct")
        + name("numpy", "ndarray")
        + whole(2**31)
        + b"\x85C\x01b\x87R(K\x01K\x00\x85NN\x89C\x00tb."
    ),
    "P19 torch.storage.TypedStorage(2**40)": Payload(call("torch.storage", "TypedStorage", 2**40) + b"."),
    "P19 torch.Tensor(2**40)": Payload(call("torch", "Tensor", 2**40) + b"."),
    "P19 one bytearray as a thousand arrays": Payload(_copies(b"\x96" + (2**16).to_bytes(8, "little") + bytes(2**16))),
    "P19 one buffer as a thousand arrays": Payload(_copies(b"\x97"), (2**16,)),
    "P19 one dict as a thousand Counters": Payload(
        b"]("
        + name("collections", "Counter")
        + b"\x94}("
        + b"".join([b"M" + struct.pack("<H", key) + b"N" for key in range(1000)])
        + b"u\x85\x94R"
        + b"h\x00h\x01R" * 1000
        + b"e."
    ),
    "P19 many deques": Payload(b"](" + name("collections", "deque") + b"\x94)R" + b"h\x00)R" * 50_000 + b"e."),
    "P19 one text as many scalars": Payload(
        _again(
            name(FORMS, "scalar") + b"\x94" + text("|S4096") + b"B\x00\x10\x00\x00" + bytes(4096) + b"\x86\x94R",
            MANY // 10,
        )
    ),
    "P19 one shape as many arrays": Payload(
        _again(name(FORMS, "array") + b"\x94(\x97" + text("<f4") + b"(" + b"K\x00" * 64 + b"tNt\x94R", MANY // 10), (0,)
    ),
    "P20 a date in steps of 0": Payload(name(FORMS, "scalar") + text("<M8[0s]") + b"C\x08" + bytes(8) + b"\x86R."),
    "P20 a dtype of objects": Payload(
        name("numpy", "dtype")
        + text("O8")
        + b"\x89\x88\x87R"
        + b"(K\x03"
        + text("|")
        + b"NNNJ"
        + NEGATIVE
        + b"J"
        + NEGATIVE
        + b"K\x3ftb."
    ),
    "P20 a structured dtype": Payload(
        name("numpy", "dtype")
        + text("V8")
        + b"\x89\x88\x87R"
        + b"(K\x03"
        + text("|")
        + b"N"
        + text("a")
        + b"\x85}K\x08K\x01K\x10tb."
    ),
    "P20 a dtype by a text": Payload(call("numpy", "dtype", "f4,O", False, True) + b"."),
    "P21 no persistent identifier of ours": Payload(b"K\x01Q."),
    "P21 a text": Payload(text("numpy") + b"Q."),
    "P21 an unknown kind": Payload(b"(" + text("pandas") + b"NNNNNtQ."),
    "P21 without memory": Payload(b"(" + text("numpy") + b"N" + text("<f4") + b"K\x01\x85N\x89tQ."),
    "P21 by text PERSID": Payload(b"Pnumpy\n."),
    "P22 no buffer": Payload(b"\x97."),
    "P22 fewer buffers than the pickle uses": Payload(b"\x97\x97\x86.", (8,)),
    "P22 more buffers than the pickle uses": Payload(b"\x97.", (8, 8)),
    "P22 a buffer of no pickle": Payload(b"N.", (8,)),
    "P22 a million buffers of no pickle": Payload(b"N.", (0,) * MANY),
    "P22 READONLY_BUFFER of a text": Payload(text("x") + b"\x98."),
    "P22 an array of another shape than its buffer": Payload(
        name(FORMS, "array") + b"(\x97" + text("<f4") + b"K\x03\x85NtR.", (8,)
    ),
    "P23 lists 10**6 deep": Payload(b"]" * MANY + b"a" * (MANY - 1) + b"."),
    "P23 lists 10**6 deep, by MARK": Payload(b"](" * MANY + b"e" * MANY + b"."),
    "P23 dicts 10**6 deep": Payload(b"}(K\x01" * MANY + b"N" + b"u" * MANY + b"."),
    "P23 a list in itself": Payload(b"]\x94h\x00a."),
    "P23 a list in a tuple in itself": Payload(b"]\x94h\x00\x85a."),
    "P24 trailing bytes": Payload(b"N.x"),
    "P24 a second pickle": Payload(b"N.\x80\x05N."),
    "P24 PROTO in the middle": Payload(b"\x80\x05N."),
    "P24 protocol 0": Payload(b"I1\n.", proto=b""),
    "P24 protocol 1": Payload(b"K\x01.", proto=b""),
    "P24 protocol 2": Payload(b"N.", proto=b"\x80\x02"),
    "P24 protocol 4": Payload(b"N.", proto=b"\x80\x04"),
    "P24 protocol 6": Payload(b"N.", proto=b"\x80\x06"),
    "P24 nothing": Payload(b"", proto=b""),
    "P24 no STOP": Payload(b"N"),
    "P24 an empty stack": Payload(b"."),
    "P24 POP": Payload(b"NN0."),
    "P24 POP_MARK": Payload(b"N(N1."),
}


def readers() -> dict[str, Callable[[Stream], object]]:
    """Return what loads messages of a peer."""
    from fl.tensors.serialization import serialization

    return {
        "PickleSerializer": PickleSerializer(PickleSerializer.allow_by_name(*ALLOWED)).load,
        "fl.serialization": serialization(*ALLOWED).load,
    }


def measure(load: Callable[[Stream], object], payload: str) -> str:
    """Load a payload; return its error, milliseconds, and MiB of resident memory, as columns."""
    stream = Stream([PAYLOADS[payload].message])
    classes_before, modules_before = classes.state(), set(sys.modules)
    ctypes.CDLL(None).malloc_trim(0)  # free memory would be taken first
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident
    before, start = _peak(), time.perf_counter()
    try:
        load(stream)
        found = "LOADED"
    except Unreadable as error:
        found = f"{type(error).__name__}: {str(error)[:70]}" if len(str(error)) < LONGEST else "A LONG ERROR"
    seconds = time.perf_counter() - start
    assert classes.state() == classes_before
    assert set(sys.modules) == modules_before
    return f"{found} | {1000 * seconds:.1f} | {(_peak() - before) / 1024:.1f}"


def _peak() -> int:
    """Return the peak of resident memory, in KiB."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def in_child(load: Callable[[Stream], object], payload: str) -> str:
    """Measure in a forked process, which is killed after 60 s."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(measure(load, payload)))
    child.start()
    theirs.close()
    try:
        return str(ours.recv()) if ours.poll(60) else "STILL LOADING | 60000 |"
    except EOFError:
        return "KILLED | |"
    finally:
        child.kill()
        child.join()


def main() -> None:
    print(f"Python {sys.version.split()[0]}\n")
    print("| payload | bytes | read by | error | ms | MiB |\n|---|---|---|---|---|---|")
    bound = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for payload in [name for name, payload in PAYLOADS.items() if len(payload.opcodes) >= bound]:
        for reader, load in readers().items():
            print(
                f"| {payload} | {len(PAYLOADS[payload].message)} | {reader} | {in_child(load, payload)} |", flush=True
            )


if __name__ == "__main__":
    main()
