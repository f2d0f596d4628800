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


_SIGNATURE = re.compile(r"(?!0{16})[0-9a-f]{16}")
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
    """The cost of the calls of one signature, as in a file. Raises ValueError for values that no
    engine has."""

    signature: str
    operator: str
    cost_ns: int
    readings: int

    def __post_init__(self) -> None:
        if not _SIGNATURE.fullmatch(self.signature) or not self.operator.isprintable():
            raise ValueError("a wrong signature or operator")
        if not (0 < self.cost_ns <= MOST_COST_NS and 0 < self.readings <= MOST_COST_NS):
            raise ValueError("a number that is not within 1 and 2**40")


@dataclass(frozen=True)
class _Document:
    format: str
    version: int
    device: str
    entries: list[Entry]


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
            entries = _entries(bounded.read_bytes(path, MOST_BYTES), device)
        except FileNotFoundError:
            return cls(path, device)
        except OSError as error:
            raise CostFileError(path, f"it cannot be read: {error.strerror}") from None
        except MemoryError:
            raise CostFileError(path, bounded.OUT_OF_MEMORY) from None
        except (ValueError, RecursionError) as error:
            raise CostFileError(path, str(error)) from None
        return cls(path, device, entries)

    def install(self, engine: Any) -> None:
        """Gives the engine these costs and no others."""
        costs = ffi.new("dtr_cost[]", len(self.entries))
        for index, entry in enumerate(self.entries):
            key = operator_key(entry.operator)
            costs[index] = (int(entry.signature, 16), key, entry.cost_ns, entry.readings)
        check(lib.dtr_engine_set_costs(engine, costs, len(self.entries)))

    def write(self, engine: Any) -> None:
        """Writes the engine's costs: a reader sees the whole file or the one before. Raises
        OSError."""
        head = {"format": FORMAT, "version": VERSION, "device": self.device}
        rows = ",\n".join(f"  {json.dumps(vars(entry))}" for entry in known(engine))
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
            f"{cost.signature:016x}",
            operator_name(cost.op_key) or "unknown",
            cost.cost_ns,
            cost.readings,
        )
        for cost in ffi.unpack(costs, count)
    ]
    return sorted(entries, key=lambda entry: (entry.operator, entry.signature))


def _entries(text: bytes | bytearray, device: str) -> list[Entry]:
    """The entries of a file. Raises ValueError that names the fault."""
    import msgspec  # not in every job

    found = msgspec.json.decode(text, type=_Document)
    head, needed = (found.format, found.version, found.device), (FORMAT, VERSION, device)
    if head != needed:
        raise ValueError(f"its format, version and device are {shown([*head])}, not {[*needed]}")
    if len(found.entries) > MOST_ENTRIES:
        raise ValueError(f"it has more than {MOST_ENTRIES} entries")
    if len({entry.signature for entry in found.entries}) < len(found.entries):
        raise ValueError("a signature stands there twice")
    return found.entries
