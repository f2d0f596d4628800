"""Op logs: what a job computed, in the format of simrd, the simulator of the DTR paper.

The format is that of section 4.6 of the thesis on simrd (Marisa Kirisame and others' prototype,
uwsampl/dtr-prototype), so logs of either side serve the other. A log is text, one JSON object a
line, in the order in which things happened. Keys may come in any order; unknown keys are ignored.
Sizes (bytes), times (any unit, ours are nanoseconds) and alias indices are decimal strings; plain
integers are read as well. Names are any strings and stand for tensors as the program knows them.

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}``
    Lines before the first of these are dropped, so that a job can warm up. Other annotations
    are remarks; ours is below.
``{"INSTRUCTION": "CONSTANT", "NAME": "x1"}``
    A tensor that nothing can compute again (a parameter, data). The next line is its size:
    ``{"INSTRUCTION": "MEMORY", "NAME": "x1", "MEMORY": "8"}``.
``{"INSTRUCTION": "CALL", "NAME": "add", "ARGS": ["x1"], "RESULT": ["x2"], "TIME": "521"}``
    An operator. For each result, in order, follow ``MEMORY`` (as above) and
    ``{"INSTRUCTION": "ALIAS", "NAME": "x2", "ALIAS": "-1"}``: the index of the argument that the
    result is a view of, or -1 if it has memory of its own. A view's size counts as 0.
``{"INSTRUCTION": "MUTATE", "NAME": "add_", "ARGS": ["x1", "x2"], "MUTATE": [0], "TIME": "4"}``
    An operator in place. The names of the arguments with these indices stand for new tensors of
    the same size from here on; the tensors that they stood for are released. Ours may say
    ``"UNREAD": [0]``: the old content of these is not read. simrd reads it all the same.
``{"INSTRUCTION": "COPY", "DST": "x3", "SRC": "x2"}``
    A further name for the tensor of SRC (``x3 = x2``).
``{"INSTRUCTION": "COPY_FROM", "DST": "x3", "SRC": "x2"}``
    The same for a name that stands for a tensor already and lets go of it. (The texts of the
    project also write COPYFROM, which is read as well.)
``{"INSTRUCTION": "RELEASE", "NAME": "x3"}``
    The name is gone. A tensor without names is dead. Releasing a name that was never defined
    (what was made before START) means nothing.

What still has names at the end is what the program wants to have.

Two annotations are ours; simrd passes over them.

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "EFFECT", "NAME": "item", "ARGS": ["x1"], "RESULT": [],
"TIME": "7"}``
    An operator that is never repeated, since nothing can be got by that: it reads its arguments and
    takes its time. What it makes are constants; their lines follow it, in the order of RESULT.

The other stands right before a CALL, MUTATE or EFFECT and says what the operator allocated while
it ran, in order, for replays on a heap:

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "WORKSPACE", "TRACE": ["+4096", "=0", "-0"]}``
    ``+N``: a temporary of N bytes; ``-i``: the i-th temporary of this operator is freed (from 0);
    ``=k``: here the memory of result k is allocated. Without it an operator allocates its
    results in order and nothing else.

Two levels: ``read`` gives typed instructions, each line checked by itself, with bounded memory;
``compile_log`` checks the program and packs it into numbers (``Program``) for the simulator.
``Writer`` is the reverse of ``read``. Files are plain, .gz, .bz2, .xz, or .zst where a library for
it is installed. Needs neither torch nor the compiled core.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import IO, Annotated, Any, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from dtr_alloc import bounded
from dtr_alloc.bounded import shown

MOST = 2**62
"""The largest size or time of a line."""

MOST_SUM = 2**60
"""Of all sizes of a program, and of all its times: sums with what is repeated stay within 64
bits."""

MOST_LINE_BYTES = 1 << 24
MOST_LOG_BYTES = 1 << 31
"""As text, however small the file is that it is compressed in."""

MOST_NUMBERS = 1 << 28
MOST_NAMES = 1 << 24
MOST_EDGES = 1 << 28
"""The most numbers and names of a program; the most pairs of an operator's argument and result,
which a simulator may keep one by one."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
Names: TypeAlias = tuple[str, ...]


class LogError(ValueError):
    """A log is wrong. Names the file, the line (None: the file as a whole) and what is wrong."""

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class _Line(Struct, frozen=True, gc=False, rename="upper", tag_field="INSTRUCTION"):
    """A line of a log. The fields are the keys, in lower case. (gc: they form no cycles.)"""


class Annotate(_Line, frozen=True, tag="ANNOTATE"):
    annotation: str
    trace: Names | None = None  # of WORKSPACE
    name: str | None = None  # from here on: of EFFECT_LINE
    args: Names | None = None
    result: Names | None = None
    time: Number | None = None


class Constant(_Line, frozen=True, tag="CONSTANT"):
    name: str


class Memory(_Line, frozen=True, tag="MEMORY"):
    name: str
    memory: Number


class Alias(_Line, frozen=True, tag="ALIAS"):
    name: str
    alias: Annotated[int, Meta(ge=-1, le=MOST)]


class Call(_Line, frozen=True, tag="CALL"):
    name: str
    args: Names
    result: Annotated[Names, Meta(min_length=1)]
    time: Number


class Mutate(_Line, frozen=True, tag="MUTATE"):
    name: str
    args: Names
    mutate: Annotated[tuple[Number, ...], Meta(min_length=1)]
    time: Number
    unread: tuple[Number, ...] = ()  # some of `mutate`


class Copy(_Line, frozen=True, tag="COPY"):
    dst: str
    src: str


class CopyFrom(_Line, frozen=True, tag="COPY_FROM"):
    dst: str
    src: str


class _Copyfrom(_Line, frozen=True, tag="COPYFROM"):
    dst: str
    src: str


class Release(_Line, frozen=True, tag="RELEASE"):
    name: str


Instruction: TypeAlias = (
    Annotate | Constant | Memory | Alias | Call | Mutate | Copy | CopyFrom | Release
)

START = Annotate("START")
WORKSPACE = "WORKSPACE"
EFFECT_LINE = "EFFECT"


def effect(name: str, args: Names, result: Names, time: int) -> Annotate:
    """An operator that is never repeated."""
    return Annotate(EFFECT_LINE, None, name, args, result, time)


# Not strict: a number may be written as a string.
_decode = msgspec.json.Decoder(Instruction, strict=False).decode
_decode_copyfrom = msgspec.json.Decoder(_Copyfrom).decode
_encode = msgspec.json.Encoder().encode


# ---- files ----

_BAD_LINE = (msgspec.MsgspecError, ValueError, RecursionError)
_CHUNK_BYTES = 1 << 20


def _zstd() -> Any:
    """A module whose open() reads and writes .zst files."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):  # the first: Python 3.14
        with suppress(ImportError):
            return import_module(name)
    raise ImportError


def open_file(path: str, mode: str) -> Any:
    """The unbuffered bytes behind a name, whose suffix says how they are compressed."""
    suffix = os.path.splitext(path)[1]
    if suffix == ".gz":
        return gzip.open(path, mode)
    if suffix == ".bz2":
        return bz2.open(path, mode)
    if suffix == ".xz":
        # Logs repeat themselves: the smallest preset does nearly as well in a tenth of the time.
        return lzma.open(path, mode, preset=1) if mode == "wb" else lzma.open(path, mode)
    if suffix == ".zst":
        try:
            return _zstd().open(path, mode)
        except ImportError:
            reason = "for .zst install backports.zstd or zstandard; .gz, .bz2, .xz need nothing"
            raise LogError(path, None, reason) from None
    return open(path, mode, buffering=0)


class Reader:
    """The instructions of a log after START, each checked by itself. Iterate once.

    Attributes:
        path: of the file; ``-`` is stdin.
        line: the number of the line that was read last, from 1.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.line = 0

    def error(self, reason: str) -> LogError:
        return LogError(self.path, self.line, reason)

    def __iter__(self) -> Iterator[Instruction]:
        if self.path == "-":
            yield from self._instructions(sys.stdin.buffer)
            return
        with open_file(self.path, "rb") as file:
            yield from self._instructions(io.BufferedReader(file, _CHUNK_BYTES))

    def _instructions(self, file: IO[bytes]) -> Iterator[Instruction]:
        lines = self._lines(file)
        if not any(_is_start(line) for line in lines):
            reason = "no line is ANNOTATE START" if self.line else "the file is empty"
            raise LogError(self.path, None, reason)
        empty = True
        for line in lines:
            try:
                instruction = _decode(line)
            except _BAD_LINE as error:
                if not line.strip():
                    continue
                instruction = self._other_spelling(line, error)
            empty = False
            yield instruction
        if empty:
            raise LogError(self.path, None, "nothing follows ANNOTATE START")

    def _lines(self, file: IO[bytes]) -> Iterator[bytes]:
        try:
            for line in bounded.lines(file, MOST_LINE_BYTES, MOST_LOG_BYTES):
                self.line += 1
                yield line
        except bounded.TooMuch as error:
            raise self.error(f"after this line {error}") from None
        except MemoryError:
            raise self.error(bounded.OUT_OF_MEMORY) from None
        except Exception as error:  # each way of compressing has its own kinds
            reason = f"the file is damaged or cut off after this line ({error})"
            raise self.error(reason) from None

    def _other_spelling(self, line: bytes, failure: Exception) -> Instruction:
        try:
            found = _decode_copyfrom(line)
        except _BAD_LINE:
            raise self.error(f"{failure!s:.{_SHOWN}}") from None
        return CopyFrom(found.dst, found.src)


def _is_start(line: bytes) -> bool:
    # What stands before START may be anything, so it is not decoded.
    if b"START" not in line:
        return False
    try:
        return bool(_decode(line) == START)
    except _BAD_LINE:
        return False


def read(path: str | os.PathLike[str]) -> Iterator[Instruction]:
    """The instructions after START, one at a time.

    Takes memory for one line (MOST_LINE_BYTES), and at most some ten microseconds for each 50
    bytes of text (MOST_LOG_BYTES).

    Raises OSError if the file cannot be opened, and LogError where a line is not an instruction,
    for a file that is empty, damaged, cut off or too large, and if nothing follows START.
    """
    return iter(Reader(path))


def to_line(instruction: Instruction) -> bytes:
    """An instruction as a line of a log, newline included; numbers as simrd's logger wrote them."""
    parts: dict[str, Any] = {"INSTRUCTION": instruction.__struct_config__.tag}
    match instruction:
        case Call(name, args, result, time):
            parts |= {"NAME": name, "ARGS": args, "RESULT": result, "TIME": str(time)}
        case Mutate(name, args, mutate, time, unread):
            parts |= {"NAME": name, "ARGS": args, "MUTATE": mutate, "TIME": str(time)}
            if unread:
                parts["UNREAD"] = unread
        case Memory(name, memory):
            parts |= {"NAME": name, "MEMORY": str(memory)}
        case Alias(name, alias):
            parts |= {"NAME": name, "ALIAS": str(alias)}
        case Constant(name) | Release(name):
            parts["NAME"] = name
        case Copy(dst, src) | CopyFrom(dst, src):
            parts |= {"DST": dst, "SRC": src}
        case Annotate(annotation, trace, name, args, result, time):
            given = {"TRACE": trace, "NAME": name, "ARGS": args, "RESULT": result}
            given["TIME"] = None if time is None else str(time)
            parts["ANNOTATION"] = annotation
            parts |= {key: value for key, value in given.items() if value is not None}
    return _encode(parts) + b"\n"


class Writer:
    """Writes a log: START, then what it is given. Whole lines only, compressed as the suffix says.

    A context manager. Raises OSError where the disk does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._file = open_file(self.path, "wb")
        self.write(START)

    def write(self, instruction: Instruction) -> None:
        line = to_line(instruction)
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hands what was written to the file, or to what compresses it."""
        lines = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        is_plain = isinstance(self._file, io.FileIO)
        begin = self._file.tell() if is_plain else 0
        done = 0
        try:
            while done < len(lines):
                done += self._file.write(memoryview(lines)[done:])
        except OSError:
            if is_plain:  # half a line may have got through
                whole = begin + lines.rfind(b"\n", 0, done) + 1
                self._file.truncate(whole)
                self._file.seek(whole)
            raise

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def abandon(self) -> None:
        """In a forked child: the file is the parent's, whatever is still done with this writer."""
        self._waiting.clear()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._file.fileno())
        os.close(nothing)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- programs ----

CONSTANT, CALL, MUTATE, COPY, COPY_FROM, RELEASE, EFFECT = range(7)
"""What begins an instruction in Program.code."""

FRESH = -1
"""The alias index of a result with memory of its own."""

ALLOCATE, FREE, RESULT = range(3)
"""The kinds of entries in Program.workspace: +N, -i, =k."""


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Program:
    """A log as numbers: what the simulator runs. Made by compile_log, which checked it.

    ``code`` is a sequence of instructions without gaps. A *name* is its index in ``names``; MUTATE
    and COPY_FROM make a name stand for another tensor.

    =========  ==================================================================================
    CONSTANT   0, name, size_bytes
    CALL       1, time, nargs, args..., nresults, then per result: name, size_bytes, alias
    MUTATE     2, time, nargs, args..., nmutated, indices i of arguments: -1 - i for one UNREAD
    COPY       3, dst, src
    COPY_FROM  4, dst, src
    RELEASE    5, name
    EFFECT     6, time, nargs, args..., nresults, then per result: name, size_bytes, FRESH
    =========  ==================================================================================

    alias is FRESH or an index into args. The size of an alias is what the log says, and counts as
    0. The k-th *operator* below is the k-th CALL, MUTATE or EFFECT of ``code``.
    """

    path: str
    """Where it came from: a label for messages."""

    code: array[int] = field(default_factory=_numbers)
    names: list[str] = field(default_factory=list)
    """In the order in which they were defined."""

    operator_names: list[str] = field(default_factory=list)
    """Each once."""

    operators: array[int] = field(default_factory=lambda: array("i"))
    """For each operator, the index of its name in operator_names."""

    workspace: array[int] = field(default_factory=_numbers)
    """What operators allocated inside, as pairs: ALLOCATE, bytes; FREE, index of the temporary;
    RESULT, index of the result."""

    workspace_at: array[int] = field(default_factory=lambda: array("q", [0]))
    """Operator k's entries are workspace[workspace_at[k]:workspace_at[k + 1]]; empty where the log
    does not say."""

    counts: dict[str, int] = field(default_factory=dict)
    """How many lines of each instruction followed START, dropped ones included."""

    unknown_releases: int = 0
    """RELEASE lines of names that were never defined."""

    @property
    def operator_count(self) -> int:
        return len(self.operators)


def compile_log(path: str | os.PathLike[str]) -> Program:
    """Reads, checks and packs a log.

    Takes time as read(), and memory for MOST_NUMBERS numbers and MOST_NAMES names at most: some
    four gigabytes, and the names' texts.

    Raises as read() does, and LogError where the program makes no sense: CALL or CONSTANT without
    its lines, a name that is used before it is defined, or defined twice, or released twice without
    standing for something new in between, an index that is out of range or repeated, sizes or times
    of more than MOST_SUM together.
    """
    compiler = _Compiler(Reader(path))
    try:
        return compiler.run()
    except MemoryError:
        raise compiler.error(bounded.OUT_OF_MEMORY) from None


def compile_instructions(label: str, instructions: Iterable[Instruction]) -> Program:
    """Checks and packs what a log would hold, without a file. Raises as compile_log does; a
    "line" is then an instruction, counted from 1."""
    return _Compiler(_Listed(label, instructions)).run()


class _Listed:
    """Instructions from elsewhere, as a Reader gives those of a file."""

    def __init__(self, path: str, instructions: Iterable[Instruction]) -> None:
        self.path = path
        self.line = 0
        self._instructions = instructions

    def error(self, reason: str) -> LogError:
        return LogError(self.path, self.line, reason)

    def __iter__(self) -> Iterator[Instruction]:
        for self.line, instruction in enumerate(self._instructions, 1):  # noqa: B020
            yield instruction


class _Compiler:
    def __init__(self, reader: Reader | _Listed) -> None:
        self.reader = reader
        self.instructions = iter(reader)
        self.program = Program(reader.path)
        self.ids: dict[str, int] = {}
        self.released = bytearray()  # by name: 1 once it was, until it stands for something new
        self.operator_ids: dict[str, int] = {}
        self.counts: Counter[type] = Counter()
        self.bytes = self.time = self.edges = 0

    def error(self, reason: str) -> LogError:
        return self.reader.error(reason)

    def next(self, after: str) -> Instruction:
        for instruction in self.instructions:
            self.counts[type(instruction)] += 1
            return instruction
        raise self.error(f"the log ends after {after}")

    def define(self, name: str) -> int:
        index = self.ids.setdefault(name, len(self.ids))
        if index != len(self.released):
            raise self.error(f"{shown(name)} is defined twice")
        if index == MOST_NAMES:
            raise self.error(f"more than {MOST_NAMES} names, the most that are read")
        self.program.names.append(name)
        self.released.append(0)
        return index

    def known(self, name: str, role: str) -> int:
        index = self.ids.get(name)
        if index is None:
            raise self.error(f"{role} {shown(name)} is used before it is defined")
        return index

    def size_of(self, name: str, of: str) -> int:
        """The MEMORY line of a name that was just announced."""
        line = self.next(of)
        if not isinstance(line, Memory) or line.name != name:
            raise self.error(f"MEMORY of {shown(name)} must follow {of}, not {_show(line)}")
        self.bytes += line.memory
        if self.bytes > MOST_SUM:
            raise self.error(
                f"sizes of more than {MOST_SUM} bytes together, the most that are read"
            )
        return line.memory

    def spend(self, time: int, edges: int) -> None:
        """An operator's time and edges; and a look at how much there is by now."""
        self.time += time
        self.edges += edges
        if self.edges > MOST_EDGES:
            raise self.error(
                f"more than {MOST_EDGES} pairs of an argument and a result, the most that are read"
            )
        if self.time > MOST_SUM:
            raise self.error(f"times of more than {MOST_SUM} together, the most that are read")
        numbers = len(self.program.code) + len(self.program.workspace)
        if numbers > MOST_NUMBERS:
            raise self.error(f"more than {MOST_NUMBERS} numbers, the most that are read")

    def run(self) -> Program:
        code = self.program.code
        ids, released, counts = self.ids, self.released, self.counts
        for line in self.instructions:
            counts[type(line)] += 1
            # In the order of how often they occur.
            if isinstance(line, Release):
                name = ids.get(line.name)
                if name is None:
                    self.program.unknown_releases += 1
                    continue
                if released[name]:
                    raise self.error(f"{shown(line.name)} is released twice")
                released[name] = 1
                code.append(RELEASE)
                code.append(name)
            elif isinstance(line, Copy):
                source = self.known(line.src, "SRC")
                code.extend((COPY, self.define(line.dst), source))
            elif isinstance(line, Call):
                self.call(line, ())
            elif isinstance(line, Constant):
                name = self.define(line.name)
                size = self.size_of(line.name, f"CONSTANT {line.name!r:.{_SHOWN}}")
                code.extend((CONSTANT, name, size))
            elif isinstance(line, Mutate):
                self.mutate(line, ())
            elif isinstance(line, CopyFrom):
                name = self.known(line.dst, "DST")
                code.extend((COPY_FROM, name, self.known(line.src, "SRC")))
                released[name] = 0
            elif isinstance(line, Annotate):
                if line.annotation == WORKSPACE:
                    self.with_workspace(line.trace)
                elif line.annotation == EFFECT_LINE:
                    self.effect(line, ())
            else:
                raise self.error(f"{_show(line)} follows no CALL or CONSTANT that it belongs to")
        self.program.counts = {_tag(kind): counts[kind] for kind in get_args(Instruction)}
        return self.program

    def call(self, line: Call, trace: Names) -> None:
        code = self.program.code
        args = [self.known(name, "argument") for name in line.args]
        self.spend(line.time, len(args) * len(line.result))
        code.extend((CALL, line.time, len(args), *args, len(line.result)))
        of = f"CALL {line.name!r:.{_SHOWN}}"
        for name in line.result:
            size = self.size_of(name, of)
            alias = self.next(of)
            if not isinstance(alias, Alias) or alias.name != name:
                raise self.error(
                    f"ALIAS of {shown(name)} must follow its MEMORY, not {_show(alias)}"
                )
            if alias.alias >= len(args):
                raise self.error(
                    f"ALIAS of {shown(name)} is {alias.alias}; "
                    f"{of} has {len(args)} arguments, from 0"
                )
            code.extend((self.define(name), size, alias.alias))
        self.operator(line.name, trace, len(line.result))

    def mutate(self, line: Mutate, trace: Names) -> None:
        args = [self.known(name, "argument") for name in line.args]
        if len(set(line.mutate)) < len(line.mutate) or max(line.mutate) >= len(args):
            raise self.error(
                f"MUTATE {shown(line.name)} has indices {shown(list(line.mutate))}; allowed: "
                f"different ones below {len(args)}, the number of its arguments"
            )
        code = self.program.code
        unread = frozenset(line.unread)
        indices = [~index if index in unread else index for index in line.mutate]
        self.spend(line.time, len(args) * len(line.mutate))
        code.extend((MUTATE, line.time, len(args), *args, len(indices), *indices))
        for index in line.mutate:
            self.released[args[index]] = 0
        self.operator(line.name, trace, 0)

    def effect(self, line: Annotate, trace: Names) -> None:
        code = self.program.code
        args = [self.known(name, "argument") for name in line.args or ()]
        results = line.result or ()
        self.spend(line.time or 0, 0)
        code.extend((EFFECT, line.time or 0, len(args), *args, len(results)))
        for name in results:
            constant = self.next(EFFECT_LINE)
            if not isinstance(constant, Constant) or constant.name != name:
                raise self.error(
                    f"CONSTANT {shown(name)} must follow {EFFECT_LINE}, not {_show(constant)}"
                )
            index = self.define(name)
            size = self.size_of(name, f"CONSTANT {name!r:.{_SHOWN}}")
            code.extend((index, size, FRESH))
        self.operator(line.name or EFFECT_LINE, trace, len(results))

    def operator(self, name: str, trace: Names, results: int) -> None:
        program = self.program
        index = self.operator_ids.setdefault(name, len(self.operator_ids))
        if index == len(program.operator_names):
            program.operator_names.append(name)
        program.operators.append(index)
        if trace:
            program.workspace.extend(self.workspace(trace, results))
        program.workspace_at.append(len(program.workspace))

    def with_workspace(self, trace: Names | None) -> None:
        line = self.next(WORKSPACE)
        if isinstance(line, Call):
            self.call(line, trace or ())
        elif isinstance(line, Mutate):
            self.mutate(line, trace or ())
        elif isinstance(line, Annotate) and line.annotation == EFFECT_LINE:
            self.effect(line, trace or ())
        else:
            raise self.error(
                f"CALL, MUTATE or {EFFECT_LINE} must follow {WORKSPACE}, not {_show(line)}"
            )

    def workspace(self, trace: Names, results: int) -> Iterator[int]:
        alive: list[bool] = []
        due = [True] * results
        for entry in trace:
            kind, number = entry[:1], entry[1:]
            is_number = number.isascii() and number.isdigit() and len(number) <= 19
            value = int(number) if is_number else -1
            if kind == "+" and 0 <= value <= MOST:
                alive.append(True)
                yield from (ALLOCATE, value)
            elif kind == "-" and 0 <= value < len(alive) and alive[value]:
                alive[value] = False
                yield from (FREE, value)
            elif kind == "=" and 0 <= value < len(due) and due[value]:
                due[value] = False
                yield from (RESULT, value)
            else:
                raise self.error(
                    f"an entry of {WORKSPACE} is {shown(entry)}; allowed: +N, bytes up to 2**62; "
                    "-i, a temporary that is there; =k, a result not named before"
                )


_SHOWN = 200


def _tag(kind: type) -> str:
    return str(kind.__struct_config__.tag)  # type: ignore[attr-defined]


def _show(instruction: Instruction) -> str:
    line = to_line(instruction).decode().rstrip()
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
