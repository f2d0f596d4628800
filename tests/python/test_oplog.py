"""Op logs are read, checked, packed and written. Needs nothing."""

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
from array import array
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtr_alloc import oplog
from dtr_alloc.oplog import (
    ALLOCATE,
    FREE,
    RESULT,
    Alias,
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    LogError,
    Memory,
    Mutate,
    Release,
    Writer,
    compile_log,
    read,
)
from dtr_alloc.oplog.steps import instructions

SYNTHETIC = sorted((Path(__file__).parent.parent / "data/simrd/synthetic_logs").glob("*.log.xz"))

A = '{"INSTRUCTION":"CONSTANT","NAME":"a"}\n{"INSTRUCTION":"MEMORY","NAME":"a","MEMORY":"8"}\n'
B = A.replace('"a"', '"b"')
BEGIN = '{"ANNOTATION":"START","INSTRUCTION":"ANNOTATE"}\n'
REMARK = '{"INSTRUCTION":"ANNOTATE","ANNOTATION":"BACKWARD"}\n'
RELEASE_A = '{"INSTRUCTION":"RELEASE","NAME":"a"}\n'


def call(args='["a"]', result='["r"]', time='"5"', name="f"):
    return (
        f'{{"INSTRUCTION":"CALL","NAME":"{name}","ARGS":{args},"RESULT":{result},"TIME":{time}}}\n'
    )


def memory(name="r", size='"16"'):
    return f'{{"INSTRUCTION":"MEMORY","NAME":"{name}","MEMORY":{size}}}\n'


def alias(name="r", index='"-1"'):
    return f'{{"INSTRUCTION":"ALIAS","NAME":"{name}","ALIAS":{index}}}\n'


def mutate(args='["a"]', indices="[0]"):
    return f'{{"INSTRUCTION":"MUTATE","NAME":"m_","ARGS":{args},"MUTATE":{indices},"TIME":"3"}}\n'


def copy(dst, src, kind="COPY"):
    return f'{{"INSTRUCTION":"{kind}","DST":"{dst}","SRC":"{src}"}}\n'


def workspace(trace):
    return f'{{"INSTRUCTION":"ANNOTATE","ANNOTATION":"WORKSPACE","TRACE":{trace}}}\n'


R = call() + memory() + alias()


@pytest.fixture
def log(tmp_path):
    """Writes a log of this text, after START, and gives its path."""

    def write(text, begin=BEGIN):
        path = tmp_path / "job.log"
        path.write_text(begin + text, encoding="utf-8")
        return path

    return write


class TestPacking:
    def test_every_instruction_has_its_numbers(self, log):
        program = compile_log(
            log(
                A
                + B
                + call('["a","b"]', '["c","d"]')
                + memory("c", 100)
                + alias("c", '"1"')
                + memory("d")
                + alias("d")
                + mutate('["d","a"]', "[1]")
                + copy("e", "c")
                + copy("e", "d", "COPYFROM")
                + RELEASE_A
            )
        )
        assert program.names == ["a", "b", "c", "d", "e"]
        a, b, c, d, e = range(5)
        assert program.code == array(
            "q",
            [
                *(0, a, 8, 0, b, 8),
                *(1, 5, 2, a, b, 2, c, 100, 1, d, 16, -1),
                *(2, 3, 2, d, a, 1, 1),
                *(3, e, c),
                *(4, e, d),
                *(5, a),
            ],
        )
        assert program.operator_names == ["f", "m_"]
        assert list(program.operators) == [0, 1]
        assert program.operator_count == 2
        assert list(program.workspace_at) == [0, 0, 0]

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            (RELEASE_A + RELEASE_A + A, 8),
            (REMARK + A + REMARK + BEGIN, 8),
            (
                '{"NAME":"z","INSTRUCTION":"CONSTANT"}\n\n'
                '{"MEMORY":7,"NAME":"z","INSTRUCTION":"MEMORY","MORE":[{}]}\r\n',
                7,
            ),
        ],
        ids=["a release of the undefined", "remarks", "plain numbers, keys in any order, blanks"],
    )
    def test_what_means_nothing_is_left_out(self, log, text, size):
        assert list(compile_log(log(text)).code) == [0, 0, size]

    def test_what_stands_before_start_is_dropped_whatever_it_is(self, log):
        begin = B + 'not json, "START"\n' + '{"INSTRUCTION":"RESTART"}\n' + BEGIN
        program = compile_log(log(A, begin))
        assert program.names == ["a"]

    def test_the_workspace_of_an_operator_is_kept_beside_it(self, log):
        program = compile_log(
            log(
                A
                + R
                + workspace('["+64","=0","+32","-0"]')
                + call(result='["s"]')
                + memory("s")
                + alias("s")
                + workspace('["+1","-0"]')
                + mutate()
            )
        )
        assert list(program.workspace_at) == [0, 0, 8, 12]
        first = [ALLOCATE, 64, RESULT, 0, ALLOCATE, 32, FREE, 0]
        assert list(program.workspace) == [*first, ALLOCATE, 1, FREE, 0]


WRONG = {
    "damaged JSON": (A + '{"INSTRUCTION":"REL', 4, "truncated"),
    "no object": ("[]\n", 2, "object"),
    "an unknown instruction": ('{"INSTRUCTION":"CAL"}\n', 2, "CAL"),
    "a mistyped name": ('{"INSTRUCTION":"RELEASE","NAME":5}\n', 2, "NAME"),
    "a name that is not text": ('{"INSTRUCTION":"RELEASE","NAME":"\\ud800"}\n', 2, ""),
    "a negative time": (A + call(time='"-1"'), 4, "TIME"),
    "a size that is no number": (A + call() + memory(size='"16 B"'), 5, "MEMORY"),
    "a size that is true": (A + call() + memory(size="true"), 5, "MEMORY"),
    "a size beyond 2**62": (A + call() + memory(size=f'"{2**62 + 1}"'), 5, "4611686018427387904"),
    "a time beyond 2**64": (A + call(time=f'"{2**80}"'), 4, "TIME"),
    "CALL without results": (A + call(result="[]"), 4, "RESULT"),
    "CALL without MEMORY": (A + call() + alias(), 5, "MEMORY of 'r' must follow CALL 'f'"),
    "CALL with another's MEMORY": (A + call() + memory("s"), 5, "MEMORY of 'r'"),
    "CALL without ALIAS": (A + call() + memory() + RELEASE_A, 6, "ALIAS of 'r' must follow"),
    "CALL with another's ALIAS": (A + call() + memory() + alias("a"), 6, "ALIAS of 'r'"),
    "CALL at the end": (A + call() + memory(), 5, "ends after CALL 'f'"),
    "MEMORY alone": (A + memory(), 4, "follows no CALL or CONSTANT"),
    "ALIAS alone": (A + R + alias(), 7, "follows no CALL or CONSTANT"),
    "CONSTANT without MEMORY": (A.splitlines(True)[0] + R, 3, "CONSTANT 'a'"),
    "CONSTANT at the end": (A.splitlines(True)[0], 2, "ends after CONSTANT 'a'"),
    "an argument not defined": (A + call('["a","q"]'), 4, "argument 'q' is used before"),
    "a result as argument": (A + call('["r"]') + memory() + alias(), 4, "argument 'r'"),
    "COPY of nothing": (copy("b", "a"), 2, "SRC 'a'"),
    "COPY_FROM to nothing": (A + copy("b", "a", "COPY_FROM"), 4, "DST 'b'"),
    "MUTATE of nothing": (mutate(), 2, "argument 'a'"),
    "a constant twice": (A + A, 4, "'a' is defined twice"),
    "a result twice in one call": (
        A + call(result='["r","r"]') + (memory() + alias()) * 2,
        8,
        "'r' is defined twice",
    ),
    "COPY to a known name": (A + B + copy("a", "b"), 6, "'a' is defined twice"),
    "a released name again": (A + RELEASE_A + A, 5, "'a' is defined twice"),
    "an alias out of range": (A + call() + memory() + alias(index='"1"'), 6, "1 arguments, from 0"),
    "a mutated index out of range": (A + mutate(indices="[1]"), 4, "[1]"),
    "a mutated index twice": (A + mutate(indices="[0,0]"), 4, "[0, 0]"),
    "no mutated index": (A + mutate(indices="[]"), 4, "MUTATE"),
    "a name released twice": (A + RELEASE_A * 2, 5, "'a' is released twice"),
    "WORKSPACE before something else": (A + workspace("[]") + RELEASE_A, 5, "WORKSPACE"),
    "WORKSPACE at the end": (A + workspace("[]"), 4, "ends after WORKSPACE"),
    "a temporary freed twice": (A + workspace('["+1","-0","-0"]') + mutate(), 5, "'-0'"),
    "a temporary of no size": (A + workspace('["+"]') + mutate(), 5, "'+'"),
    "an unknown entry": (A + workspace('["*5"]') + mutate(), 5, "'*5'"),
    "a result that is not there": (A + workspace('["=1"]') + R, 7, "'=1'"),
    "a result twice in WORKSPACE": (A + workspace('["=0","=0"]') + R, 7, "'=0'"),
    "a result of MUTATE": (A + workspace('["=0"]') + mutate(), 5, "'=0'"),
}


class TestErrors:
    @pytest.mark.parametrize(("text", "line", "reason"), WRONG.values(), ids=WRONG.keys())
    def test_say_where_and_what(self, log, text, line, reason):
        path = log(text)
        with pytest.raises(LogError) as caught:
            compile_log(path)
        error = caught.value
        assert (error.path, error.line) == (str(path), line)
        assert reason in error.reason
        assert str(error) == f"{path}, line {line}: {error.reason}"

    @pytest.mark.parametrize(
        ("text", "begin", "reason"),
        [
            (A, "", "no line is ANNOTATE START"),
            ("", "", "the file is empty"),
            *((rest, BEGIN, "nothing follows ANNOTATE START") for rest in ("", "\n\n")),
        ],
    )
    def test_a_file_without_a_beginning_or_without_more(self, log, text, begin, reason):
        with pytest.raises(LogError, match=reason):
            compile_log(log(text, begin))

    def test_bytes_that_are_not_utf8(self, tmp_path):
        path = tmp_path / "job.log"
        path.write_bytes(BEGIN.encode() + RELEASE_A.encode().replace(b'"a"', b'"\xff"'))
        with pytest.raises(LogError, match="line 2"):
            compile_log(path)

    @pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
    def test_a_file_that_is_cut_off_or_not_compressed_as_it_says(self, tmp_path, suffix):
        path = tmp_path / f"job.log{suffix}"
        with Writer(path) as writer:
            for number in range(20000):
                writer.write(Constant(f"x{number}"), Memory(f"x{number}", number * number))
        assert len(compile_log(path).names) == 20000
        whole = path.read_bytes()
        for part in (whole[: len(whole) // 2], whole[:-2], whole[:5], (BEGIN + A).encode()):
            path.write_bytes(part)
            with pytest.raises(LogError, match="damaged or cut off"):
                compile_log(path)

    def test_zst_without_a_library_names_one(self, tmp_path, monkeypatch):
        def no_library(name):
            raise ImportError

        monkeypatch.setattr(oplog.format, "import_module", no_library)
        with pytest.raises(LogError, match=r"backports\.zstd"):
            compile_log(tmp_path / "job.log.zst")


class TestFiles:
    @pytest.mark.parametrize(
        ("suffix", "compress"),
        [*(("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress))],
    )
    def test_a_suffix_says_how_it_is_compressed(self, tmp_path, suffix, compress):
        path = tmp_path / f"job.log{suffix}"
        path.write_bytes(compress((BEGIN + A + R).encode()))
        assert compile_log(path).names == ["a", "r"]
        found = list(read(path))
        with Writer(path) as writer:
            writer.write(*found)
        assert list(read(path)) == found

    def test_zst_where_a_library_is_installed(self, tmp_path):
        try:
            oplog.packer("x.zst")
        except LogError:
            pytest.skip("no library for .zst is installed")
        path = tmp_path / "job.log.zst"
        with Writer(path) as writer:
            writer.write(Release("a"))
        assert list(read(path)) == [Release("a")]

    def test_a_dash_is_stdin(self, monkeypatch):
        class Stdin:
            buffer = io.BytesIO((BEGIN + A).encode())

        monkeypatch.setattr(sys, "stdin", Stdin)
        program = compile_log("-")
        assert (program.path, program.names) == ("-", ["a"])

    def test_a_written_log_is_what_simrd_wrote(self, tmp_path):
        path = tmp_path / "job.log"
        with Writer(path) as writer:
            writer.write(Call("f", ("a",), ("r",), 5), Memory("r", 16), Alias("r", -1))
            writer.write(Mutate("m_", ("a",), (0,), 3))
        assert path.read_text().splitlines() == [
            '{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}',
            '{"INSTRUCTION":"CALL","NAME":"f","ARGS":["a"],"RESULT":["r"],"TIME":"5"}',
            '{"INSTRUCTION":"MEMORY","NAME":"r","MEMORY":"16"}',
            '{"INSTRUCTION":"ALIAS","NAME":"r","ALIAS":"-1"}',
            '{"INSTRUCTION":"MUTATE","NAME":"m_","ARGS":["a"],"MUTATE":[0],"TIME":"3"}',
        ]

    def test_memory_for_a_line_is_bounded(self, tmp_path):
        # read() keeps nothing; a program keeps its numbers and names: about 50 bytes a line.
        path = tmp_path / "job.log.gz"
        steps = 25_000
        with Writer(path) as writer:
            writer.write(Constant("x0"), Memory("x0", 4096))
            for step in range(steps):
                old, new = f"x{step}", f"x{step + 1}"
                call = Call("matmul", (old,), (new,), 1000)
                writer.write(call, Memory(new, 4096), Alias(new, -1), Release(old))

        def peak(action):
            tracemalloc.start()
            try:
                action()
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        assert peak(lambda: sum(1 for _ in read(path))) < 3 * 2**20
        assert peak(lambda: compile_log(path)) < 100 * 4 * steps


def test_the_generated_logs_compile():
    assert len(SYNTHETIC) == 8
    for path in SYNTHETIC:
        program = compile_log(path)
        there = compare(program, path)
        assert program.operator_count == there[Call] + there[Mutate]
        assert sum(one[0] == oplog.RELEASE for one in instructions(program)) == there[Release]
        assert sum(there.values()) == lzma.decompress(path.read_bytes()).count(b"\n") - 1


def compare(program, path):
    """Checks that a program has the instructions and results of its log; returns the number of
    lines of each type. Releases may be fewer: those of undefined names are dropped."""
    there = Counter(map(type, read(path)))
    found = [one for one in instructions(program) if one[0] != oplog.RELEASE]
    assert len(found) == sum(there[kind] for kind in (Constant, Call, Mutate, Copy, CopyFrom))
    results = sum(one[3 + one[2]] for one in found if one[0] == oplog.CALL)
    assert results == there[Memory] - there[Constant]
    return there


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
numbers = st.integers(0, oplog.MOST_SUM // 64)


@st.composite
def programs(draw):
    """Valid programs with every instruction, as instructions."""
    lines, known, released = [], [], set()

    def fresh():
        name = draw(names.filter(lambda name: name not in known))
        known.append(name)
        return name

    def constant():
        name = fresh()
        lines.extend([Constant(name), Memory(name, draw(numbers))])

    def operands(least):
        return draw(st.lists(st.sampled_from(known), min_size=least, max_size=4))

    def annotated(results):
        if draw(st.booleans()):
            trace = [f"+{draw(numbers)}", *[f"={k}" for k in range(results)], "-0"]
            lines.append(Annotate("WORKSPACE", tuple(trace)))

    constant()
    kinds = st.sampled_from(["constant", "call", "mutate", "copy", "from", "release", "remark"])
    for kind in draw(st.lists(kinds)):
        if kind == "constant":
            constant()
        elif kind == "call":
            args = operands(0)
            results = [fresh() for _ in range(draw(st.integers(1, 3)))]
            annotated(len(results))
            lines.append(Call(draw(names), tuple(args), tuple(results), draw(numbers)))
            for name in results:
                lines.append(Memory(name, draw(numbers)))
                lines.append(Alias(name, draw(st.integers(-1, len(args) - 1))))
        elif kind == "mutate":
            args = operands(1)
            some = st.lists(st.sampled_from(range(len(args))), min_size=1, unique=True)
            indices = draw(some)
            annotated(0)
            lines.append(Mutate(draw(names), tuple(args), tuple(indices), draw(numbers)))
            released -= {args[index] for index in indices}
        elif kind == "copy":
            source = draw(st.sampled_from(known))
            lines.append(Copy(fresh(), source))
        elif kind == "from":
            dst = draw(st.sampled_from(known))
            lines.append(CopyFrom(dst, draw(st.sampled_from(known))))
            released.discard(dst)
        elif kind == "release":
            if alive := [name for name in known if name not in released]:
                name = draw(st.sampled_from(alive))
                released.add(name)
                lines.append(Release(name))
        else:
            lines.append(Annotate(draw(names)))
    return lines


@settings(max_examples=200)
@given(programs())
def test_what_is_written_is_what_is_read(tmp_path_factory, instructions):
    path = tmp_path_factory.getbasetemp() / "property.log"
    with Writer(path) as writer:
        writer.write(*instructions)
    assert list(read(path)) == instructions
    compare(compile_log(path), path)


def test_an_effect_and_what_is_not_read_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "job.log"
    instructions = [
        *(oplog.effect("file", (), ("a",), 3), oplog.Constant("a"), oplog.Memory("a", 8)),
        oplog.effect("item", ("a",), (), 4),
        oplog.Mutate("fill_", ("a",), (0,), 5, (0,)),
    ]
    with Writer(path) as writer:
        writer.write(*instructions)
    assert list(oplog.read(path)) == instructions
    program = compile_log(path)
    assert list(program.code) == [6, 3, 0, 1, 0, 8, -1, 6, 4, 1, 0, 0, 2, 5, 1, 0, 1, -1]
    assert program.operator_names == ["file", "item", "fill_"]
