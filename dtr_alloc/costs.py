"""A file of operators' costs, so that two runs make the same decisions.

The engine learns the costs of calls by signature (policy/costs.h). Signatures in a cost file keep
the listed cost, independent of the clock: a deterministic job then evicts the same contents each
time. Other signatures are measured, and are in the file the next time. The file is JSON:

    {"format": "dtr_alloc costs", "version": 1, "device": "cpu",
     "entries": [{"signature": "00ab...", "operator": "aten::mm.default",
                  "cost_ns": 1234, "readings": 17}, ...]}
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dtr_alloc import bounded, report
from dtr_alloc.bounded import shown
from dtr_alloc.config import ConfigError
from dtr_alloc.core import check, ffi, lib

FORMAT = "dtr_alloc costs"
VERSION = 1
MOST_ENTRIES = 65536
MOST_COST_NS = 2**40
"""The limits of the engine (native/policy/costs.h)."""

MOST_BYTES = 1 << 25
"""Of a file: 512 for each entry."""


_operator_names: dict[int, str] = {}


def operator_key(name: str) -> int:
    """The engine's number of an operator: 64 bits, the same in every process."""
    key = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    _operator_names[key] = name
    return key


def signed(key: int) -> int:
    """A key as PyTorch's integers hold 64 bits."""
    return key - 2**64 if key >= 2**63 else key


def operator_name(key: int) -> str:
    """The operator of a key in this process; "" if none."""
    return _operator_names.get(key, "")


class CostFileError(ConfigError):
    """The file of the setting ``costs`` cannot be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__("costs", str(path), f"a new file, or one that dtr_alloc wrote ({reason})")


@dataclass(frozen=True)
class Entry:
    """The cost of the calls of one signature."""

    signature: int
    operator: str
    cost_ns: int
    readings: int


@dataclass
class CostFile:
    """The cost file of one session.

    Attributes:
        path: with placeholders filled in.
        device: the type of device of the costs.
        entries: when the session began.
        pid: of the process that writes it: a forked child does not.
    """

    path: Path
    device: str
    entries: list[Entry] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def read(cls, path: Path, device: str) -> CostFile:
        """Reads the file if it exists; changes nothing.

        Takes a second and a gigabyte at most, for a file of MOST_BYTES. Raises CostFileError.
        """
        # It means what it means now, also if the job changes its folder.
        path = report.fill_in(path).absolute()
        if path.is_fifo():  # reading it would wait for a writer
            raise CostFileError(path, "it is a pipe")
        try:
            text = bounded.read_bytes(path, MOST_BYTES).decode()
        except FileNotFoundError:
            return cls(path, device)
        except OSError as error:
            raise CostFileError(path, f"it cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise CostFileError(path, "it is not text") from None
        except bounded.TooMuch as error:
            raise CostFileError(path, str(error)) from None
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CostFileError(path, f"it is not JSON: {error}") from None
        except MemoryError:
            raise CostFileError(path, bounded.OUT_OF_MEMORY) from None
        try:
            return cls(path, device, _entries(document, device))
        except ValueError as error:
            raise CostFileError(path, str(error)) from None

    def install(self, engine: Any) -> None:
        """Gives the engine these costs and no others."""
        costs = ffi.new("dtr_cost[]", len(self.entries))
        for index, entry in enumerate(self.entries):
            key = operator_key(entry.operator)
            costs[index] = (entry.signature, key, entry.cost_ns, entry.readings)
        check(lib.dtr_engine_set_costs(engine, costs, len(self.entries)))

    def write(self, engine: Any) -> None:
        """Writes the engine's costs: a reader sees the whole file or the one before. Raises
        OSError."""
        entries = [vars(entry) for entry in known(engine)]
        for entry in entries:
            entry["signature"] = f"{entry['signature']:016x}"
        head = {"format": FORMAT, "version": VERSION, "device": self.device}
        rows = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
        text = json.dumps(head)[:-1] + ', "entries": [\n' + rows + "\n]}\n"
        report.write_text(self.path, text)

    def try_to_write(self, engine: Any) -> None:
        """The same; an error does not change the job's own result."""
        if os.getpid() != self.pid:
            return
        try:
            self.write(engine)
        except OSError as error:
            print(f"dtr_alloc: cannot write DTR_ALLOC_COSTS: {error}", file=sys.stderr)


def forget(engine: Any) -> None:
    """Takes all costs from the engine."""
    check(lib.dtr_engine_set_costs(engine, ffi.NULL, 0))


def known(engine: Any) -> list[Entry]:
    """The engine's costs, in the order of names and signatures."""
    costs = ffi.new("dtr_cost[]", MOST_ENTRIES)
    count = min(lib.dtr_engine_get_costs(engine, costs, MOST_ENTRIES), MOST_ENTRIES)
    entries = [
        Entry(
            cost.signature, _operator_names.get(cost.op_key, "unknown"), cost.cost_ns, cost.readings
        )
        for cost in ffi.unpack(costs, count)
    ]
    return sorted(entries, key=lambda entry: (entry.operator, entry.signature))


_SIGNATURE = re.compile(r"[0-9a-f]{16}")


def _entries(document: object, device: str) -> list[Entry]:
    """The entries of a document. Raises ValueError that names the fault."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    if document.get("version") != VERSION:
        raise ValueError(f"its version is {shown(document.get('version'))}, not {VERSION}")
    if document.get("device") != device:
        raise ValueError(f"its costs are of device {shown(document.get('device'))}, not {device!r}")
    rows = document.get("entries")
    if not isinstance(rows, list) or len(rows) > MOST_ENTRIES:
        raise ValueError(f"its entries are not a list of at most {MOST_ENTRIES}")
    entries: dict[int, Entry] = {}
    for index, row in enumerate(rows):
        entry = _entry(row)
        if entry is None or entry.signature in entries:
            raise ValueError(f"entry {index} is damaged or stands there twice: {shown(row)}")
        entries[entry.signature] = entry
    return list(entries.values())


def _entry(row: object) -> Entry | None:
    """An entry, or None if it is damaged."""
    if not isinstance(row, dict):
        return None
    signature, operator = row.get("signature"), row.get("operator")
    if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature):
        return None
    if not isinstance(operator, str) or not operator.isprintable():
        return None
    number, cost_ns, readings = int(signature, 16), _count(row, "cost_ns"), _count(row, "readings")
    return Entry(number, operator, cost_ns, readings) if number and cost_ns and readings else None


def _count(row: dict[str, Any], name: str) -> int:
    """A positive whole number, or 0."""
    value = row.get(name)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_COST_NS
    return int(value or 0) if good else 0
