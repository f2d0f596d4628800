"""Files that nobody should write: values, bytes and seeds for the tests of the readers.

All is made of a random.Random, so that a case is its seed.
"""

import bz2
import copy
import gzip
import json
import lzma
import pickle
import random
import struct
import zlib
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from made_up_trace import a_life

from dtr_alloc.fragment import torch_export
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import COLUMNS, Trace

DEEP, DIGITS = "@deep@", "@digits@"
"""Stand in JSON and TOML for what json.dumps() cannot write: brackets 100,000 deep and a number of
5,000 digits."""

NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 12, 13, 63, 64, 255, 256, 511, 512, 4096, 65535, 65536),
    *(2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53 + 1, 2**59, 2**60, 2**60 + 1),
    *(2**61, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 512, 2**64 - 1, 2**64, 2**70, -(2**63)),
    10**400,
)
TEXTS = (
    *("", "a", "-1", "0x10", "1e999", "nan", "\0", "ä\u2028\U0001f600", "(nil)", "23:59:59.9"),
    *("9e9%", "1..2..3", "chunk:9e9,verify:", "s=1e999,m=size", "allocate failure"),
    *("9" * 3000 + "GiB", "9" * 5000, "x" * 100_000, *map(str, NUMBERS), *map(hex, NUMBERS)),
)


def laughs(rng: random.Random) -> Any:
    """A list, tuple or dictionary whose parts are shared: small in memory, endless as a text."""
    value: Any = ["ha"]
    for _ in range(rng.choice((3, 40, 200))):
        value = {"a": value, "b": value} if rng.random() < 0.1 else [value, value]
    return value


def value(rng: random.Random, shared: bool) -> Any:
    """Something that a reader does not expect. shared: whether pickle writes it."""
    what = rng.randrange(9)
    if what < 4:
        return rng.choice(NUMBERS)
    if what == 4:
        return rng.choice(TEXTS)
    if what == 5:
        return rng.choice((None, True, False, 0.5, -0.0, 1e300, float("inf"), float("nan")))
    if what == 6:
        return rng.choice(([], {}, [[]], [{}], {"": 0}, [1, "a", None]))
    if shared:
        return laughs(rng) if what == 7 else rng.choice((b"", b"a" * 1000, (), (1, (2,)), 10**5000))
    return DEEP if what == 7 else DIGITS


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Each container of a tree, or of what has shared parts, with each key or index in it."""
    found: list[tuple[Any, Any]] = []
    seen = {id(tree)}
    waiting = [tree]
    while waiting:
        of = waiting.pop()
        for key in of if isinstance(of, dict) else range(len(of)):
            found.append((of, key))
            if isinstance(of[key], dict | list) and id(of[key]) not in seen:
                seen.add(id(of[key]))
                waiting.append(of[key])
    return found


def change(rng: random.Random, tree: Any, shared: bool = False) -> None:
    """Changes a JSON-like tree in place, in a few places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = places(tree)
        if not at:
            return
        of, key = rng.choice(at)
        what = rng.randrange(8)
        if what < 4:
            of[key] = value(rng, shared)
        elif what == 4:
            del of[key]
        elif what == 5 and isinstance(of, list):
            of.insert(rng.randrange(len(of) + 1), of[key])
        elif what == 6 and isinstance(of[key], int) and not isinstance(of[key], bool):
            of[key] = of[key] + rng.choice((-1, 1, 512, -512, 2**63))
        else:
            other, theirs = rng.choice(at)
            if shared or not isinstance(other[theirs], dict | list):
                of[key] = other[theirs]  # may make a circle, which pickles have


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """Changes bytes in a few places, and sometimes cuts the end off."""
    made = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(made) + 1)
        what = rng.randrange(6)
        if what == 0:
            made[at : at + 1] = bytes([rng.randrange(256)])
        elif what == 1:
            made[at : at + 1] = bytes([rng.choice((0, 0x0A, 0x22, 0x2E, 0x5B, 0x7F, 0x80, 0xFF))])
        elif what == 2:
            number = rng.choice(NUMBERS) % 2**64
            width = rng.choice((1, 2, 4, 8))
            made[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
        elif what == 3:
            del made[at : at + rng.choice((1, 2, 8, 100))]
        elif what == 4:
            begin = rng.randrange(len(made) + 1)
            made[at:at] = made[begin : begin + rng.choice((1, 8, 64, 1000))]
        else:
            made[at:at] = b"[" * rng.choice((1, 10, 20_000))
    if rng.random() < 0.1:
        del made[rng.randrange(len(made) + 1) :]
    return bytes(made)


def to_json(tree: Any) -> bytes:
    """As json.dumps(), with what stands for what it cannot write."""
    text = json.dumps(tree)
    text = text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000)
    return text.replace(f'"{DIGITS}"', "9" * 5000).encode()


# ---- allocation traces ----


def a_trace(rng: random.Random) -> Trace:
    trace = a_life(rng.randrange(2**32), steps=40)
    trace.meta["devices"] = [{"chunk_bytes": 4096, "fixed": False}]
    return trace


HEAD = trace_file.MAGIC + struct.pack("<HHI", trace_file.VERSION, 0, 0)


def block(kind: bytes, payload: bytes, count: int, **said: int) -> bytes:
    """Of a file of a trace, with the right checksum, whatever sizes it is said to have."""
    packed = zlib.compress(payload)
    sizes = {"packed_bytes": len(packed), "size_bytes": len(payload), **said}
    head = struct.pack("<4sIII", kind, sizes["packed_bytes"], sizes["size_bytes"], count)
    return head + struct.pack("<I", zlib.crc32(packed, zlib.crc32(head))) + packed


def trace_bytes(rng: random.Random) -> bytes:
    """A file of a trace, changed in its numbers, its meta, its blocks or its bytes."""
    trace = a_trace(rng)
    for _ in range(rng.choice((0, 1, 1, 3))):
        column = rng.choice(COLUMNS)
        at = rng.randrange(len(trace))
        most = 2 ** (8 * column.width - (column.typecode == "q"))
        number = rng.choice(NUMBERS)
        getattr(trace, column.name)[at] = rng.choice((number, number % 13, 512 * number)) % most
    for _ in range(rng.choice((0, 0, 1, 4))):
        rows = list(range(len(trace)))
        a, b = rng.randrange(len(rows)), rng.randrange(len(rows))
        rows[a:a] = rows[b : b + rng.choice((1, 1, 20))]
        times = sorted(trace.time_ns[row] for row in rows)
        trace = trace.select(rows)
        trace.time_ns = array("q", times)
    meta, names = dict(trace.meta), list(trace.names[1:])
    if rng.random() < 0.3:
        change(rng, meta)
    if rng.random() < 0.2:
        change(rng, names)
    data = b"".join(
        trace_file._shuffled(column, of.width)
        for column, of in zip(trace.columns(), COLUMNS, strict=True)
    )
    blocks = [
        *((b"META", to_json(meta), 1), (b"NAME", to_json(names), len(names))),
        *((b"EVNT", data, len(trace)), (b"DONE", b"{}", len(trace))),
    ]
    if rng.random() < 0.15:
        at = rng.randrange(4)
        what = rng.randrange(5)
        kind, payload, count = blocks[at]
        if what == 0:
            blocks[at:at] = [blocks[rng.randrange(4)]] * rng.choice((1, 3, 100))
        elif what == 1:
            del blocks[at]
        elif what == 2:
            blocks[at] = (kind, change_bytes(rng, payload), count)
        elif what == 3:
            blocks[at] = (kind, payload, rng.choice(NUMBERS) % 2**32)
        else:  # small in the file, large outside of it
            many = rng.choice((10**5, 2 * 10**6))
            blocks[at] = (kind, bytes(39 * many), many)
    made = HEAD
    for each in blocks:
        wrong = rng.choice(("packed_bytes", "size_bytes")) if rng.random() < 0.02 else None
        made += block(*each, **({wrong: rng.choice(NUMBERS) % 2**32} if wrong else {}))
    return change_bytes(rng, made) if rng.random() < 0.1 else made


def a_snapshot(rng: random.Random) -> dict[str, Any]:
    """A snapshot of two devices, with stacks, as PyTorch would write it."""
    snapshot = torch_export.to_snapshot(a_trace(rng))
    frames = [{"name": "train", "filename": "/home/x/job.py", "line": 15}]
    for event in snapshot["device_traces"][0]:
        if rng.random() < 0.5:
            event["frames"] = frames
    snapshot["external_annotations"] += [
        {"name": "Optimizer.step#SGD.step", "stage": stage, "device": 0, "time_us": 3}
        for stage in ("START", "END")
    ]
    if rng.random() < 0.3:
        snapshot["device_traces"].append([])
    return snapshot


def snapshot_bytes(rng: random.Random) -> bytes:
    """A snapshot as a pickle or JSON, changed in its values or bytes; sometimes compressed."""
    snapshot = a_snapshot(rng)
    form = rng.choice(("json", 2, 4, 4, 5))
    change_values = rng.random() < 0.6
    if change_values:
        change(rng, snapshot, shared=form != "json")  # which JSON cannot write
    data = to_json(snapshot) if form == "json" else pickle.dumps(snapshot, form)
    return data if change_values else change_bytes(rng, data)


def rmm_bytes(rng: random.Random) -> bytes:
    """A log of RMM with changed fields, rows and bytes."""
    rows: list[Any] = [["Thread", "Time", "Action", "Pointer", "Size", "Stream"]]
    for number in range(1, rng.choice((2, 6, 41))):
        when = rng.choice((f"00:00:{number:02}:000001", f"{number}.5"))
        rows.append(["1", when, "allocate", hex(4096 * number), "512", "0"])
    rows += [[*row[:2], "free", *row[3:]] for row in rows[1:] if rng.random() < 0.5]
    if rng.random() < 0.2:
        del rows[0]  # Spark RAPIDS writes no columns
    if rng.random() < 0.8:
        change(rng, rows)
    lines = (",".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows)
    data = "\n".join(lines).encode(errors="replace")
    return change_bytes(rng, data) if rng.random() < 0.3 else data


# ---- logs and schedules ----


LOG = Path(__file__).parents[1] / "data/simrd/synthetic_logs/fuzz_a.log.xz"


@cache
def whole_log() -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.open(LOG)]


def log_lines(rng: random.Random) -> list[Any]:
    """The beginning of a random program's op log, line by line."""
    lines: list[Any] = []
    for line in copy.deepcopy(whole_log()[: rng.choice((44, 80, 140))]):
        if line["INSTRUCTION"] == "CALL" and rng.random() < 0.2:
            trace = ["+4096", "-0", "=0"]
            lines.append({"INSTRUCTION": "ANNOTATE", "ANNOTATION": "WORKSPACE", "TRACE": trace})
        elif line["INSTRUCTION"] == "MUTATE":
            line["UNREAD"] = line["MUTATE"][: rng.randrange(2)]
        lines.append(line)
    while lines[-1]["INSTRUCTION"] not in ("MUTATE", "RELEASE"):  # what a CALL makes belongs to it
        lines.pop()
    return lines


def text_bytes(rng: random.Random, lines: list[Any]) -> bytes:
    """Lines of JSON, changed."""
    for _ in range(rng.choice((0, 1, 1, 2))):
        change(rng, lines)
    if rng.random() < 0.2 and lines:
        at = rng.randrange(len(lines))
        lines[at:at] = [lines[rng.randrange(len(lines))]] * rng.choice((1, 2, 500))
    data = b"\n".join(map(to_json, lines)) + b"\n"
    return change_bytes(rng, data) if rng.random() < 0.2 else data


def packed(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """The same, sometimes compressed and then sometimes damaged; and the file's ending."""
    ways: dict[str, Callable[[bytes], bytes]] = {
        ".gz": lambda text: gzip.compress(text, 1, mtime=0),
        ".bz2": bz2.compress,
        ".xz": lambda text: lzma.compress(text, preset=0),
    }
    ending = rng.choice(("", "", "", "", *ways))
    if not ending:
        return data, ending
    made = ways[ending](data)
    if rng.random() < 0.3:
        made = change_bytes(rng, made)
    return made * rng.choice((1, 1, 2)), ending


# ---- settings, costs ----


def config_bytes(rng: random.Random) -> bytes:
    settings: dict[str, Any] = {
        "budget": "1GiB",
        "heuristic": "c=ancestors,m=size,s=0.5",
        "swap": "off",
        "pool": "chunk:2MiB,keep:all,fixed",
        "debug": "poison,verify:100",
        "report": True,
        "log_steps": "3..5",
        "costs": "a.json",
    }
    if rng.random() < 0.1:
        settings[rng.choice(("bugdet", "a.b", '""', ".".join("a" * 2000)))] = 1
    change(rng, settings)
    data = b"\n".join(key.encode() + b" = " + to_json(of) for key, of in settings.items())
    return change_bytes(rng, data) if rng.random() < 0.3 else data


def costs_bytes(rng: random.Random) -> bytes:
    document = {
        "format": "dtr_alloc costs",
        "version": 1,
        "device": "cpu",
        "entries": [
            {"signature": f"{number:016x}", "operator": "aten::mm", "cost_ns": 5, "readings": 2}
            for number in range(1, 4)
        ],
    }
    change(rng, document)
    data = to_json(document)
    return change_bytes(rng, data) if rng.random() < 0.3 else data
