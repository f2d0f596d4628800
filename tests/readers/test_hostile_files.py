"""Files that were made to do harm: each is refused by name, within bounds. Needs the native build.

The faults that this began with are here by name; test_fuzz_readers.py looks for the next ones.
"""

import gzip
import json
import lzma
import os
import pickle
import re
import resource
import struct
import subprocess
import sys
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import invoke
from hostile import HEAD, block
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.studies import best as best_schedules
from bench.studies import schedules
from bench.studies.__main__ import command as study_command
from dtr_alloc import bounded, cli, config, costs, oplog
from dtr_alloc.fragment import formats, plain_pickle, torch_snapshot
from dtr_alloc.fragment.models import MODELS, Prepared
from dtr_alloc.fragment.walk import walk
from dtr_alloc.simulation import simulate
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind, Trace, TraceError

ROOT = Path(__file__).resolve().parents[2]
DIGITS = "9" * 5000
DEEP = "[" * 100_000
START = '{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}\n'


dtr_alloc = partial(invoke, cli.commands)
best = partial(invoke, best_schedules.commands)
studies = partial(invoke, study_command)


def limited(*arguments, address_space, environ=None):
    """The command in a process of its own, with so many bytes of address space."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    # A thread of a numerical library takes address space for its stack, whether it runs or not.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(environ or {})}
    return subprocess.run(
        [sys.executable, "-m", "dtr_alloc.cli", *map(str, arguments)],
        cwd=ROOT,
        env=environ,
        preexec_fn=limit,
        text=True,
        capture_output=True,
    )


def refused(done, *parts):
    """Exit status 2, one line, and in it all these parts."""
    text = done.output if hasattr(done, "output") else done.stderr
    status = done.exit_code if hasattr(done, "exit_code") else done.returncode
    assert status == 2, text
    assert "Traceback" not in text
    for part in parts:
        assert str(part) in text


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hostile"


# ---- what each reader refuses: one table ----


RMM = b"Thread,Time,Action,Pointer,Size,Stream\n1,1.5,allocate,0x20,1,0\n"
OPCODES = [
    (b"]r\xff\xff\xff\xff.", "opcode 0x72"),
    (b"]p%d\n." % 2**61, "opcode 0x70"),
    (b"]j\xff\xff\xff\xff.", "takes what is not there"),
    (b"h\x05.", "takes what is not there"),
    (b"\x8d" + struct.pack("<Q", 2**62) + b"a.", "cut off"),
    (b"\x8e" + struct.pack("<Q", 2**64 - 1) + b"a.", "cut off"),
    (b"\x96" + struct.pack("<Q", 2**40) + b"a.", "opcode 0x96"),
    (b"\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6 + b".", "a number of 1000000 by"),
    (b"L" + DIGITS.encode() + b"L\n.", "opcode 0x4c"),
    (b"\x8c\x01\xff.", "'utf-8' codec"),
    (b"}K\x01\x85K\x02s.", "neither a text nor a number"),
    (b"}\x8a\x09" + bytes(8) + b"\x01K\x02s.", "neither a text nor a number"),
    (b"](K\x01u.", "items of no dictionary"),
    (b"]K\x00K\x01s.", "items of no dictionary"),
    (b"(" * 1000 + b"u.", "items of no dictionary"),
    (b"K\x01" * 1000, "cut off"),
    (b"cos\nsystem\n(X\x01\x00\x00\x00atR.", "it asks for os.system"),
    (b"\x8c\x02os\x8c\x06system\x93.", "it asks for os.system"),
    (b"(ios\nsystem\n.", "opcode 0x69"),
    (b"P1\n.", "opcode 0x50"),
    (b"]]].", "does not end with one value"),
]
REFUSED: list[tuple[str, Any, str]] = [
    *(("pickle", b"\x80\x04" + data, reason) for data, reason in OPCODES),
    *(("pickle", pickle.dumps({}, old), "its protocol is before 4") for old in (2, 3)),
    ("older", pickle.dumps({}, 0), "begins with b'(dp0\\n.'"),
    ("json", DEEP.encode(), "recursion"),
    ("json", b'{"segments": [', "truncated"),
    ("json", b'{"segments": [{"device": ' + DIGITS.encode() + b"}]}", "Integer value out"),
    ("json", b"[\xff]", "invalid"),
    ("gzip", gzip.compress(RMM)[:-9], "it cannot be unpacked"),
    ("gzip", gzip.compress(b"\x80\x04" + bytes(1 << 20))[:600], "it cannot be unpacked"),
    ("gzip", b"\x1f\x8bnothing", "it cannot be unpacked"),
    ("gzip", gzip.compress(b"nothing"), "begins with b'nothing'"),
    ("gzip", gzip.compress(RMM + bytes(1 << 20)), "a line has more than 4096 bytes"),
    ("rmm", RMM + f"1,{DIGITS}.5,allocate,0x10,1,0\n".encode(), "line has more than 4096 bytes"),
    ("rmm", RMM + f"1,{'9' * 30}.5,allocate,0x10,1,0\n".encode(), "line 3: the time is '999"),
    ("rmm", RMM + b"1,999999999999.5,allocate,0x10,1,0\n", "line 3: the time is '999"),
    ("rmm", RMM + f"1,1.5,allocate,{'9' * 4000},1,0\n".encode(), "line 3: the pointer is '999"),
    ("rmm", RMM + b"1,1.5,allocate,,1,0\n", "line 3: the pointer is ''"),
    ("rmm", RMM + f"1,1.5,allocate,0x10,{2**64},0\n".encode(), "line 3: the size is '184"),
    ("rmm", RMM + b"\0\n", "line 3: "),
    ("rmm", RMM + b"1,00:00:01.0,allocate,0x8,8\n", "line 3: 5 fields; allowed: 6"),
    ("rmm", RMM + b"1,00:00:01.0,destroy,0x8,8,0\n", "line 3: the action is 'destroy'"),
    ("rmm", RMM + b"1,yesterday,allocate,0x8,8,0\n", "line 3: the time is 'yesterday'"),
    ("rmm", RMM + b"1,00:00:01.0,allocate,xyz,8,0\n", "line 3: the pointer is 'xyz'"),
    ("rmm", RMM + b"1,00:00:01.0,allocate,0x8,-8,0\n", "line 3: the size is '-8'"),
    ("rmm", RMM + b"1,00:00:01.0,free,0x8,8,0\n", "0x8 is freed and was not allocated"),
    ("rmm", RMM + b"1,00:00:01.0,allocate,0x20,8,0\n", "0x20 is allocated and was not freed"),
    ("rmm", RMM + b"1,1.5,allocate,0x3", "line 3: 4 fields; allowed: 6 (was the file cut off?"),
    ("rmm", b"[7][16:47:00:093520][info  ] ----- RMM LOG BEGIN -----\n", "no JSON of a snapshot"),
    ("rmm", RMM + f"1,1.5,allocate,0x10,{2**64 - 1},0\n".encode(), "add up to more than"),
]  # fmt: skip


def laughs(depth=60):
    """Lists that share their parts: small in memory, and without end as a text."""
    value = ["ha"]
    for _ in range(depth):
        value = [value, value]
    return value


def snapshot(**parts):
    segment = {"device": 0, "address": 1 << 20, "total_size": 1024, "stream": 0, "blocks": []}
    event = {"action": "alloc", "addr": 1 << 20, "size": 512, "stream": 0, "time_us": 5}
    return {"segments": [segment], "device_traces": [[event]], **parts}


def with_event(**parts):
    found = snapshot()
    found["device_traces"][0][0].update(parts)
    found["device_traces"][0].insert(0, {"action": "snapshot", "time_us": 1})
    return found


def pieces(count):
    """Expandable segments of one device."""
    return [
        {"device": 0, "address": 8 * at, "total_size": 1, "is_expandable": True, "stream": 0}
        | {"blocks": []}
        for at in range(count)
    ]


SNAPSHOTS = [
    (snapshot(allocator_settings={"x": laughs()}), "at `$.allocator_settings[...]"),
    (laughs(), "got `array` - at `$.segments[0]`"),
    (snapshot(segments=[{"device": 65535}] * 2000), "`int` <= 255 - at `$.segments[0].device`"),
    (snapshot(device_traces=[[]] * 300), "length <= 256 - at `$.device_traces`"),
    (with_event(time_us=2**64 - 1), ""),
    (with_event(size=10**5000), "a number of 2077 bytes"),
    (with_event(action="segment_map", addr=2**63, size=2**63), "at `$.device_traces[0][1].addr`"),
    (snapshot(segments=pieces(70_000)), "in more than 65536 pieces"),
]
REFUSED += [("shared", pickle.dumps(found), reason) for found, reason in SNAPSHOTS]


def blocks(*parts):
    """A file of a trace with these blocks: kind, payload, count."""
    return HEAD + b"".join(block(*part) for part in parts)


META = (b"META", b'{"source": "rmm"}', 1)


def of_events(*events, meta=None):
    trace = Trace({"source": "rmm"} if meta is None else meta)
    for kind, address, size in events:
        trace.add(kind, address=address, size_bytes=size)
    return trace


METAS = [
    *({"source": ["torch"]}, {"devices": {"a": 1}}, {"devices": [5]}),
    *({"devices": [{"chunk_bytes": wrong}]} for wrong in ("x", -1, 10**30)),
]
EVENTS = [
    ([(Kind.ALLOCATE, 512, 2**64 - 1)], "add up to more than"),
    ([(Kind.ALLOCATE, 512 * at, 2**59) for at in range(5)], "add up to more than"),
    ([(Kind.SEGMENT_ALLOCATE, 512, 2**62)], "add up to more than"),
    ([(Kind.ALLOCATE, 2**64 - 512, 512)], "event 0 is of 512 bytes at 0xfffffffffffffe00"),
    ([(Kind.SEGMENT_FREE, 2**64 - 1, 1)], "event 0 is of 1 bytes"),
]
BEGIN, END = block(b"META", b"{}", 1), block(b"DONE", b"{}", 0)
REFUSED += [
    *(("trace", data, reason) for data, reason in (
        (b"\x89DTR", "cut off in its first bytes"),
        (trace_file.MAGIC + struct.pack("<HHI", 2, 0, 0), "version 2; this dtr_alloc reads ver"),
        (HEAD, "cut off"),
        (HEAD + struct.pack("<4sIIII", b"EVNT", 2**31, 9, 9, 9),
         "at byte 16: damaged: a block of 2147483648 bytes"),
    )),
    *(("trace", HEAD + b"".join(blocks), reason) for reason, *blocks in (
        ("first block is b'DONE'", END),
        ("second META", BEGIN, BEGIN, END),
        ("bytes follow the end", BEGIN, END, END),
        ("a list where a dict", block(b"META", b"[]", 1), END),
        ("damaged", block(b"META", b"{", 1), END),
        ("does not have its 1 bytes", block(b"META", b"{}", 1, size_bytes=1), END),
        ("2 names that are none", BEGIN, block(b"NAME", b'["a"]', 2), END),
        ("1 events in 30 bytes", BEGIN, block(b"EVNT", bytes(30), 1), END),
        ("name 1 of 1", BEGIN, block(b"EVNT", bytes(35) + b"\1\0\0\0", 1), END),
        ("0 events, and the end counts 5", BEGIN, block(b"DONE", b"{}", 5)),
        ("does not have its 10 bytes", block(b"META", bytes(1 << 24), 1, size_bytes=10)),
    )),
]  # fmt: skip
NAMES = (b"NAME", b"[" + b'"a",' * 200_000 + b'"a"]', 200_001)
REFUSED += [
    *(("trace", of_events(*events), reason) for events, reason in EVENTS),
    *(("trace", of_events((Kind.ALLOCATE, 512, 5), meta=meta), "the meta") for meta in METAS),
    *(
        ("trace", blocks((b"META", b'{"a": ' + text.encode(), 1)), "at byte 16: damaged")
        for text in (DEEP, DIGITS)
    ),
    ("trace", blocks(META, *[NAMES] * 6), "too many names"),
    ("trace", blocks(META, (b"NAME", b" " * (1 << 27), 1)), "a NAME block of 134217728 bytes"),
]
IS_NONE = {"pickle": "no pickle of plain values", "json": "no JSON of a snapshot"}


@pytest.mark.parametrize(
    ("reader", "data", "reason"), REFUSED, ids=[f"{row[0]}{at}" for at, row in enumerate(REFUSED)]
)
def test_what_cannot_be_read_is_refused_by_name_in_a_few_lines(path, reader, data, reason):
    trace_file.write(data, path) if isinstance(data, Trace) else path.write_bytes(data)
    done = dtr_alloc("fragment", "report", path)
    refused(done, path, reason, IS_NONE.get(reader, ""))
    assert len(done.output) < 500


@pytest.mark.parametrize("data", [b"\x80\x04" + b"]" * (1 << 20), b"[" * (1 << 20)])
def test_a_file_that_unpacks_to_gigabytes_ends_after_so_many_bytes(path, monkeypatch, data):
    monkeypatch.setattr(plain_pickle, "MOST_BYTES", 1 << 18)
    monkeypatch.setattr(torch_snapshot, "MOST_JSON_BYTES", 1 << 18)
    path.write_bytes(gzip.compress(data))
    refused(dtr_alloc("fragment", "report", path), path, "more than 262144 bytes")


class TestPickles:
    def test_names_that_are_shared_lists_are_no_names(self, path):
        frames = [{"name": laughs(), "filename": laughs(), "line": laughs()}]
        marked = {"frames": frames, "user_metadata": laughs()}
        annotation = {"name": laughs(), "stage": laughs(), "device": 0, "time_us": 9}
        found = with_event(**marked) | {"external_annotations": [annotation]}
        path.write_bytes(pickle.dumps(found))
        trace = formats.read(path)
        assert set(trace.names) == {"", " (:0)", " ", "snapshot"}

    def test_a_text_that_many_frames_share_is_not_copied_for_each(self, path):
        name = "x" * 10_000_000
        events = [
            {"action": "snapshot", "time_us": 1, "frames": [{"name": name, "filename": name}]}
            for _ in range(1000)
        ]
        oom = [{**event, "action": "oom", "size": 1, "stream": 0} for event in events]
        path.write_bytes(pickle.dumps(snapshot(device_traces=[oom])))
        trace = formats.read(path)
        assert max(map(len, trace.names)) < 10_000

    def test_a_tuple_of_tuples_is_not_hashed(self, path):
        key = ("a",)
        for _ in range(60):
            key = (key, key)
        data = pickle.dumps([key])  # as a key it would take years to pickle, too
        path.write_bytes(b"\x80\x04}" + data[2:].rstrip(b".").replace(b"a.", b".") + b"K\x01s.")
        with pytest.raises(TraceError, match="no pickle of plain values"):
            plain_pickle.load(path)

    plain = st.recursive(
        st.one_of(
            *(st.none(), st.booleans(), st.floats(allow_nan=False), st.text(), st.binary()),
            st.integers(-(2**500), 2**500),
        ),
        lambda inner: st.one_of(
            st.lists(inner),
            st.dictionaries(st.text() | st.integers(-(2**60) + 1, 2**60 - 1), inner),
            st.lists(inner, max_size=5).map(tuple),
        ),
    )

    @settings(max_examples=40)
    @given(plain, st.integers(4, 5))
    def test_plain_values_are_what_python_reads(self, tmp_path_factory, value, protocol):
        path = tmp_path_factory.getbasetemp() / "plain.pickle"
        path.write_bytes(pickle.dumps([value, value], protocol))
        assert plain_pickle.load(path) == pickle.loads(path.read_bytes())

    def test_what_a_pickle_shares_stays_shared(self, path):
        value = []
        value.append(value)
        path.write_bytes(pickle.dumps(value))
        found = plain_pickle.load(path)
        assert found[0] is found


class TestTraces:
    def test_blocks_that_unpack_to_gigabytes_end_where_there_are_too_many_events(
        self, path, monkeypatch
    ):
        monkeypatch.setattr(trace_file, "MOST_EVENTS", 5000)
        many = (b"EVNT", bytes(39 * 1000), 1000)
        path.write_bytes(blocks(META, *[many] * 100))
        refused(dtr_alloc("fragment", "report", path), path, "at byte", "more than 5000 events")

    def test_requests_for_room_among_many_holes_end(self, path):
        holes = [(Kind.ALLOCATE, 8192 * at, 512) for at in range(1, 200)]
        events = [*holes, *[(Kind.FREE, address, 0) for _, address, _ in holes]]
        trace = of_events(*events, *[(Kind.ROOM, 0, 5)] * 5000)
        with pytest.raises(TraceError, match="too many requests for room"):
            walk(trace)

    def test_a_pipe_and_a_device_are_no_traces(self, path):
        os.mkfifo(path)
        refused(dtr_alloc("fragment", "report", path), path, "no regular file")
        refused(dtr_alloc("fragment", "report", "/dev/zero"), "/dev/zero is no regular file")

    def test_a_name_that_nothing_can_print_is_replaced(self, path):
        path.write_bytes(blocks(META, (b"NAME", b'["\\ud800"]', 1), (b"DONE", b"{}", 0)))
        assert trace_file.read(path).names == ["", "?"]

    @pytest.mark.parametrize("model", MODELS)
    def test_no_model_takes_a_block_that_no_device_has(self, model):
        prepared = Prepared(
            of_events((Kind.ALLOCATE, 512, 2**64 - 1), (Kind.ALLOCATE, 1024, 2**62))
        )
        for budget in (512, 1 << 20, 2**64 - 1):
            done = prepared.run(model, budget)
            assert not done.completed
            assert done.failed_bytes == 2**64 - 1


def test_a_budget_into_which_not_even_the_first_request_fits_is_reported(path):
    trace_file.write(of_events((Kind.ALLOCATE, 512, 4096)), path)
    options = ("--model", "first_fit", "--budget", "512B", "--json", "-")
    done = dtr_alloc("fragment", "report", path, *options)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["traces"][0]["rows"][1]["series"]["event"] == []


# ---- op logs and schedules ----


def log(*lines):
    return START + "".join(json.dumps(line) + "\n" for line in lines)


def constant(name, size):
    return [
        {"INSTRUCTION": "CONSTANT", "NAME": name},
        {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)},
    ]


def call(args, result, time=1, size=8):
    return [
        {"INSTRUCTION": "CALL", "NAME": "f", "ARGS": args, "RESULT": [result], "TIME": str(time)},
        {"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": str(size)},
        {"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": "-1"},
    ]


WORKSPACE = {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "WORKSPACE", "TRACE": [f"+{DIGITS}"]}


def mutate(count, **more):
    """Of an argument that it has so many times."""
    line = {"INSTRUCTION": "MUTATE", "NAME": "m", "ARGS": ["a"] * count, "TIME": "1"}
    return {**line, "MUTATE": list(range(count)), **more}


SMALL = log(*constant("a", 64), *call(["a"], "b", size=4096), *call(["b"], "c"))


def no_memory(*_, **__):
    raise MemoryError("no room for records")


class TestLogs:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (log(*constant("a", DIGITS)), "line 3: Integer value out of range"),
            (f'{START}{{"INSTRUCTION":"MEMORY","NAME":"a","MEMORY":{DIGITS}}}', "line 2: Integer"),
            (f'{START}{{"INSTRUCTION":"CONSTANT","X":{DEEP}', "line 2: "),
            (f'{START}{{"INSTRUCTION":"{"x" * 100_000}"}}', "line 2: "),
            (log(*constant("a", 2**62)), "line 3: sizes of more than"),
            (log(*constant("a", 2**59), *constant("b", 2**60)), "line 5: sizes of more than"),
            (log(*constant("a", 1), *call(["a"], "b", 2**61)), "line 4: times of more than"),
            (log(*constant("a" * 10**5, 1), *constant("a" * 10**5, 1)), "line 4: 'aaa"),
            (log(WORKSPACE, *call([], "a")), "an entry of WORKSPACE is '+999"),
        ],
    )
    def test_numbers_names_and_depths_without_end_are_named_with_their_line(
        self, path, text, reason
    ):
        path.write_text(text)
        done = dtr_alloc("simulate", path)
        refused(done, f"{path}, ", reason)
        assert len(done.output) < 1000

    def test_a_log_that_unpacks_to_gigabytes_ends_after_so_many_bytes(self, path, monkeypatch):
        monkeypatch.setattr(oplog.format, "MOST_LOG_BYTES", 1 << 16)
        path = path.with_suffix(".xz")
        path.write_bytes(lzma.compress(START.encode() + b"\n" * (1 << 18), preset=0))
        refused(dtr_alloc("simulate", path), f"{path}, line 6", "more than 65536 bytes")

    def test_a_line_that_unpacks_to_gigabytes_is_not_held(self, path):
        path = path.with_suffix(".gz")
        path.write_bytes(gzip.compress(bytes(1 << 20)) * 1000)
        done = limited("simulate", path, address_space=500 << 20)
        refused(done, path, "a line has more than 16777216 bytes")

    def test_arguments_that_are_not_read_are_found_at_once(self, path):
        path.write_text(log(*constant("a", 1), mutate(16_000, UNREAD=[*range(16_000)][::-1])))
        assert oplog.compile_log(path).code[-1] == ~15_999

    def test_an_operator_has_not_more_pairs_of_arguments_and_results_than_can_be_held(self, path):
        path.write_text(log(*constant("a", 1), mutate(20_000)))
        refused(dtr_alloc("simulate", path), path, "line 4: more than 268435456 pairs")

    def test_nothing_to_compute_and_nothing_to_hold_is_no_division_by_zero(self, tmp_path, path):
        path.write_text(log(*constant("a", 0), *call(["a"], "b", time=0, size=0)))
        found = tmp_path / "a.schedule"
        assert best("find", path, "--out", found, "--iterations", 1).exit_code == 0
        assert best("run", path, "--schedule", found).exit_code == 0

    def test_a_name_that_comes_back_after_its_storage_died_is_an_error_that_names_the_log(
        self, tmp_path, path
    ):
        gone = {"INSTRUCTION": "RELEASE", "NAME": "b"}
        again = {"INSTRUCTION": "COPY", "DST": "c", "SRC": "b"}
        path.write_text(log(*constant("a", 8), *call(["a"], "b"), gone, again))
        refused(best("find", path, "--out", tmp_path / "out"), path, "its storage died")

    def test_memory_that_there_is_not_is_named(self, path, monkeypatch):
        path.write_text(SMALL)
        monkeypatch.setattr(oplog.format, "_decode", no_memory)
        refused(dtr_alloc("simulate", path), path, bounded.OUT_OF_MEMORY)

    def test_a_command_that_needs_more_memory_than_there_is_says_so(
        self, path, monkeypatch, capsys
    ):
        path.write_text(SMALL)
        monkeypatch.setattr(simulate, "run_log", no_memory)
        with pytest.raises(SystemExit) as ended:
            cli.main(["simulate", str(path), "--jobs", "1"])
        assert ended.value.code == 2
        assert "not enough memory for this: no room for records" in capsys.readouterr().err


@pytest.mark.parametrize("space", ["heap", "fixed", None])
def test_our_pool_is_simulated_in_a_process_with_little_address_space(path, space):
    """Under an op log, and as a model of a trace."""
    if space:
        path.write_text(SMALL)
        options = ("simulate", path, "--semantics", "runtime", "--space", space, "--jobs", 1)
        options = (*options, "--budget", "1MiB", "--json", "-")
    else:
        trace_file.write(of_events(*[(Kind.ALLOCATE, 4096 * at, 4096) for at in range(1, 9)]), path)
        options = ("fragment", "report", path, "--model", "ours,ours-fixed", "--json", "-")
    done = limited(*options, address_space=1 << 30)
    assert done.returncode == 0, done.stderr
    here, there = (
        re.sub(r'"(seconds|search_ns|ns_per_operation)": [^,}]*', "", text)
        for text in (dtr_alloc(*options).stdout, done.stdout)
    )
    assert here == there


class TestSchedules:
    @pytest.mark.parametrize(
        ("lines", "reason"),
        [
            ([DEEP], "line 1: "),
            (['{"SCHEDULE": 1, "BUDGET": ' + "9" * 4000 + "}"], "line 1: LOG is None"),
            *(([DIGITS], "line 1: "), (["{}"], "no schedule begins")),
            *((["[1, 2]"], "no schedule begins"), (["{"], "line 1")),
            *((['{"SCHEDULE": 2}'], "SCHEDULE 1"), (['{"SCHEDULE": 1, "LOG": 3}'], "LOG is 3")),
            ([], "is empty"),
            *(
                ([None, entry], "is no list of evictions")
                for entry in ("[3]", "[1, -2]", '[1, "a"]', "{}")
            ),
            ([None, "[9223372036854775807, 9223372036854775807]"], "eviction 0 comes after"),
            ([None, "[0, 0, -1]"], "line 2: [0, 0, -1] is no list of evictions"),
            ([None, "[" + "0," * 10**5 + "-1]"], "line 2: a list is no list of evictions"),
            ([None], "None is no list of evictions"),
        ],
    )
    def test_what_is_no_schedule_is_named_with_its_line(self, tmp_path, path, lines, reason):
        (tmp_path / "a.log").write_text(SMALL)
        program = oplog.compile_log(tmp_path / "a.log")
        head = {
            "SCHEDULE": 1,
            "LOG": "a",
            "SHA256": schedules.identity(program),
            "BY": "hand",
            "SEMANTICS": "simrd",
            "DEALLOC": "eager",
            "BUDGET": 2**62,
            "COST": 2,
            "LISTS": 1,
        }
        path.write_text("".join(f"{line or json.dumps(head)}\n" for line in lines))
        done = best("run", tmp_path / "a.log", "--schedule", path)
        refused(done, "--schedule", reason)
        assert len(done.output) < 1000

    def test_there_are_not_more_evictions_than_can_be_held(self, path, monkeypatch):
        monkeypatch.setattr(schedules, "MOST_EVICTIONS", 5)
        made = schedules.Schedule("a", "", "eager", 1, 1, "hand", array("q", [1, 2] * 6))
        schedules.write(path, [made])
        with pytest.raises(schedules.ScheduleError, match="line 2: more than 5 evictions"):
            schedules.read(path)


# ---- settings, costs, graphs, results ----


class TestSettings:
    @pytest.mark.parametrize(
        "text",
        [
            *(f"budget = {'[' * 2000}", f"budget = {'{a=' * 1300}1", f"history = {'9' * 4000}"),
            *(f"history = {DIGITS}", f"history = 0x{'f' * 4000}", "budget = inf", "history = nan"),
            *("budget = 1979-05-27", 'budget = "1e999999999GiB"', f'budget = "{"9" * 4000}%"'),
            "budget = [[1]]",
            *(f"{'a.' * 2000}b = 1", "a = 1\n" * 20_000, f"budget = {'[' * 900}{']' * 900}"),
        ],
        ids=lambda text: text[:20],
    )
    def test_what_is_no_setting_is_named(self, path, text):
        path.write_text(text)
        with pytest.raises(config.ConfigError) as caught:
            config.given_settings({"DTR_ALLOC_CONFIG": str(path)})
        assert str(path) in str(caught.value)

    def test_a_file_without_end_is_not_read_to_its_end(self):
        with pytest.raises(config.ConfigError, match=r"/dev/zero.*more than 65536 bytes"):
            config.given_settings({"DTR_ALLOC_CONFIG": "/dev/zero"})
        with pytest.raises(costs.CostFileError, match=r"/dev/zero.*more than 33554432 bytes"):
            costs.CostFile.read(Path("/dev/zero"), "cpu")

    @pytest.mark.parametrize(
        ("text", "reason"),
        [*((text, "") for text in (DEEP, "{", "[1]", DIGITS)), ("{}", "no result of the study")],
    )
    def test_what_is_no_result_of_a_study_is_named(self, tmp_path, text, reason):
        pytest.importorskip("matplotlib")
        (tmp_path / "linear.json").write_text(text)
        done = studies("linear", "--redraw", "--out", tmp_path)
        refused(done, tmp_path / "linear.json", reason)

    def test_a_published_log_that_is_damaged_is_named(self, tmp_path):
        for name in ("resnet32", "unet"):
            (tmp_path / f"{name}.log").write_text("{}\n")
        options = ("--smoke", "--logs", tmp_path, "--out", tmp_path)
        refused(studies("ablation", *options), "resnet32.log: no line is ANNOTATE")


class TestWhatIsShown:
    @settings(max_examples=40)
    @given(TestPickles.plain)
    def test_any_value_in_a_few_lines(self, value):
        assert len(bounded.shown([value])) < 200_000

    def test_values_without_end(self):
        circle = []
        circle += [circle, circle]
        assert bounded.shown(circle) == "[[a list, a list], [a list, a list]]"
        assert bounded.shown(10**5000) == "a number of 16610 bits"
