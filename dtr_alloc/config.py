"""The configuration: one frozen value, read in one place.

``given_settings`` is the only function that reads ``DTR_ALLOC_*`` variables for settings.
A setting is looked for in this order, and the first one that is there wins:

1. the arguments of the call (``enable(budget="8GiB")``; None means "not given"),
2. the variable ``DTR_ALLOC_<FIELD>`` (an empty one counts as not set),
3. the key ``<field>`` of the TOML file that ``DTR_ALLOC_CONFIG`` names,
4. the default.

Every setting that is present is parsed and checked once, also when another one wins.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict

from dtr_alloc import bounded, heuristics
from dtr_alloc.bounded import shown
from dtr_alloc.heuristics import Heuristic

UNLIMITED_BYTES = 2**64 - 1
"""The C header's "no limit"."""

DEVICES = ("auto", "cuda", "cpu")
RANKS = ("agree", "off")
TINY_BYTES = 64
"""DTR_TINY_BYTES of the C header."""
REST_OPS = 4096
"""Default of ``Debug.rest``."""
HISTORY_OPS = 262144
"""The largest number of operator records. Beyond it the oldest settle: their results become
resident constants."""

PREFIX = "DTR_ALLOC_"
_ARGUMENT = "the argument "

OTHER_VARIABLES = {
    "DTR_ALLOC_CONFIG": "a TOML file with settings, keys as the fields of Config",
    "DTR_ALLOC_CACHE": "the folder in which the compiled torch bridge is kept",
    "DTR_ALLOC_BUILD": "how the core is compiled, read by native/build_core.py",
}
"""Known variables that are not fields of Config, with their meanings."""

WITHOUT_VARIABLE = ("log_steps",)
"""Settings without a variable: for calls, the command line and files."""

_UNITS = {"b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}
_NUMBER = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][0-9]{1,2})?)\s*(?P<unit>[A-Za-z]*|%)", re.ASCII
)

_STEPS = re.compile(r"(?P<first>[0-9]*)(?P<dots>\.\.)?(?P<last>[0-9]*)", re.ASCII)

SIZE_FORMS = (
    "bytes (8589934592), or a number with B, KiB, MiB, GiB, TiB (or K, M, G, T), kB, MB, GB or TB "
    "(1.5GB)"
)
BUDGET_FORMS = f"{SIZE_FORMS}, or a share of the device (60%), or 'unlimited'"
SWITCH_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}

OPERATOR_FORMS = "a namespace, such as flash_attn, or an operator, such as mylib::gelu"
_OPERATOR = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)?", re.ASCII)

PAGE_FORM = "a page (*.html) needs matplotlib: pip install 'dtr-alloc[plots]'"
SWITCHES = "1, true, yes, on, 0, false, no, off"
POOL_FORMS = (
    "parts with commas between them: chunk:SIZE (2MiB; or auto), keep:SIZE (1GiB; or all), fixed, "
    "strict"
)
DEBUG_FORMS = (
    "off, or parts with commas between them: poison, verify:N (100), contents, no-moves, guard, "
    "tiny:SIZE (0), rest:N (0)"
)


class ConfigError(ValueError):
    """A setting is wrong. The message names its source, its value and the allowed values."""

    def __init__(self, source: str, value: object, allowed: str) -> None:
        super().__init__(f"{source} is {shown(value, text=5000)}; allowed: {allowed}")
        self.source = source
        self.value = value
        self.allowed = allowed

    def of_option(self) -> ConfigError:
        """The same where arguments were options of a command: their names as one writes them."""
        if not self.source.startswith(_ARGUMENT):
            return self
        option = self.source.removeprefix(_ARGUMENT).replace("_", "-")
        return ConfigError(f"--{option}", self.value, self.allowed)


def parse_size(value: object) -> int:
    """A size in bytes, from an int, or text such as ``8GiB``, ``8G`` (the same), ``1.5GB``
    (decimal) or ``8e9``.

    Fractions of a byte are cut off. Raises ValueError for anything else, for a fraction without a
    unit, and for sizes beyond 64 bits.
    """
    if isinstance(value, float) and value.is_integer() and value > 1:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"not a size: {shown(value)}")
    if isinstance(value, int):
        size_bytes = value
    else:
        match = _NUMBER.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"not a size: {shown(value)}")
        number, unit = match["number"], match["unit"].lower()
        if unit:
            if unit not in _UNITS:
                raise ValueError(f"unknown unit in {shown(value)}")
            size_bytes = int(Fraction(number) * _UNITS[unit])
        elif Fraction(number).denominator != 1:
            raise ValueError(f"part of a byte: {shown(value)}")
        else:
            size_bytes = int(Fraction(number))
    if not 0 <= size_bytes < UNLIMITED_BYTES:
        raise ValueError(f"not within 64 bits: {shown(value)}")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """A size for people: the largest binary unit that is not above it, two decimals."""
    if size_bytes >= UNLIMITED_BYTES:
        return "unlimited"
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes} B"


def error_size(size_bytes: int) -> str:
    """A size for error messages, with the number of bytes."""
    return f"{format_size(size_bytes)} ({size_bytes} bytes)"


@dataclass(frozen=True)
class Budget:
    """The memory that a job may have: a number of bytes, a share of the device, or no limit.

    Attributes:
        size_bytes: the bytes, or None.
        share: the part of the device, above 0 and at most 1, or None. Exact, so that 60 % of a
            device is the same number of bytes everywhere.

    At most one is given; neither means unlimited.
    """

    size_bytes: int | None = None
    share: Fraction | None = None

    def __post_init__(self) -> None:
        if self.size_bytes is not None and self.share is not None:
            raise ValueError("a budget is bytes or a share, not both")
        if self.size_bytes is not None and not 0 < self.size_bytes < UNLIMITED_BYTES:
            raise ValueError(f"not a budget in bytes: {self.size_bytes}")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"not a share of a device: {self.share}")

    @classmethod
    def parse(cls, value: object) -> Budget:
        """A budget from bytes, text or another budget. Raises ValueError, as parse_size does.

        A float such as 8e9 is bytes; 0.6, which could mean a share, is refused.
        """
        if isinstance(value, Budget):
            return value
        if isinstance(value, str):
            text = value.strip()
            if text.lower() == "unlimited":
                return cls()
            match = _NUMBER.fullmatch(text)
            if match is not None and match["unit"] == "%":
                return cls(share=Fraction(match["number"]) / 100)
        return cls(size_bytes=parse_size(value))

    def resolve(self, total_bytes: int) -> int:
        """The budget in bytes on a device of total_bytes; 2**64 - 1 if unlimited.

        Raises ConfigError for a share of a device whose size is unknown (0).
        """
        if self.size_bytes is not None:
            return self.size_bytes
        if self.share is None:
            return UNLIMITED_BYTES
        if total_bytes <= 0:
            raise ConfigError("budget", str(self), f"{SIZE_FORMS}: the device's size is unknown")
        return max(1, int(self.share * total_bytes))

    def __str__(self) -> str:
        """Text that parse() reads back as the same budget (a share to 18 decimals)."""
        if self.share is not None:
            return f"{_decimal(self.share * 100)}%"
        return "unlimited" if self.size_bytes is None else str(self.size_bytes)


def _decimal(number: Fraction) -> str:
    """A decimal fraction written out exactly; rounded to 18 places if it is not one."""
    if number.denominator == 1:
        return str(number.numerator)
    places = next((n for n in range(1, 18) if 10**n % number.denominator == 0), 18)
    digits = f"{round(number * 10**places):0{places + 1}d}"
    return f"{digits[:-places]}.{digits[-places:]}"


@dataclass(frozen=True)
class Steps:
    """A range of steps, counted from 1, both ends included; last None: to the end.

    ``step in steps`` asks.
    """

    first: int = 1
    last: int | None = None

    @classmethod
    def parse(cls, value: object) -> Steps:
        """A range from ``3``, ``3..5``, ``3..`` or ``..5``. Raises ValueError."""
        if isinstance(value, Steps):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        match = _STEPS.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or not (match["first"] or match["last"]):
            raise ValueError(f"not a range of steps: {shown(value)}")
        first = int(match["first"] or 1)
        last = int(match["last"]) if match["last"] else None if match["dots"] else first
        if first < 1 or (last is not None and last < first):
            raise ValueError(f"not a range of steps: {shown(value)}")
        return cls(first, last)

    def __str__(self) -> str:
        return f"{self.first}..{'' if self.last is None else self.last}"

    def __contains__(self, step: int) -> bool:
        return self.first <= step and (self.last is None or step <= self.last)


def _parts(value: object, parsers: Mapping[str, Callable[[str], Any] | None]) -> dict[str, Any]:
    """The fields that ``name:text,word,...`` sets; a name without a parser is a word."""
    if not isinstance(value, str):
        raise ValueError(f"not text: {shown(value)}")
    found: dict[str, Any] = {}
    for part in value.split(","):
        name, colon, text = (piece.strip() for piece in part.partition(":"))
        field = name.replace("-", "_")
        parse = parsers.get(name)
        if name not in parsers or field in found or bool(colon) != (parse is not None):
            raise ValueError(f"wrong part {shown(part)}")
        found[field] = True if parse is None else parse(text)
    return found


@dataclass(frozen=True)
class PoolOptions:
    """The heap of a process. Its options are fixed once it exists; later sessions may leave them at
    their defaults."""

    chunk: int = 0
    """The unit of memory from the driver, in bytes: a multiple of the driver's own (2 MiB on CUDA);
    0 (written ``auto``): on CUDA about a 1024th of the first budget, from 2 to 32 MiB, elsewhere
    the driver's default."""

    keep: int = UNLIMITED_BYTES
    """The free memory that stays with the process, in bytes; more goes back to the driver.
    2**64 - 1 (written ``all``): all of it."""

    fixed: bool = False
    """Whether the heap has only as many addresses as the budget has bytes, like one allocation of
    that size. A tensor then needs a hole of its size. Otherwise free memory is mapped to where it
    is needed. Use it to measure the cost of fragmentation."""

    strict: bool = False
    """Whether workspaces of operators (cuDNN's, cuBLAS's) stay within the budget, too. Otherwise,
    on CUDA, one that finds no room is served beyond it, so that an operator takes the algorithm
    that it takes without a budget."""

    @classmethod
    def parse(cls, value: object) -> PoolOptions:
        """From ``chunk:2MiB,keep:1GiB,fixed,strict``. Raises ValueError."""
        if isinstance(value, PoolOptions):
            return value
        sizes = {"chunk": _size_or("auto", 0, least=1), "keep": _size_or("all", UNLIMITED_BYTES)}
        return cls(**_parts(value, {**sizes, "fixed": None, "strict": None}))

    def __str__(self) -> str:
        chunk = self.chunk or "auto"
        keep = "all" if self.keep == UNLIMITED_BYTES else self.keep
        return f"chunk:{chunk},keep:{keep}{',fixed' * self.fixed}{',strict' * self.strict}"


@dataclass(frozen=True)
class Debug:
    """Checks that take time, to find faults of a job's operators or of dtr_alloc."""

    poison: bool = False
    """Freed memory is filled with 0xFF bytes, which floats read as NaN. This finds reads of freed
    memory. Fixed when the heap is made."""

    verify: int = 0
    """One in so many evictions of live tensors keeps a copy, which is compared with the recomputed
    content. This finds nondeterministic operators. 0: none."""

    contents: bool = False
    """Each tensor on the CPU is compared, in every byte, with its content after the last operator
    that wrote it, before it is used, evicted or computed from. This finds writes without an
    operator. Otherwise a few words are compared."""

    no_moves: bool = False
    """No tensor is moved within the heap to make room."""

    guard: bool = False
    """Each tensor on the CPU has its own memory pages, which are inaccessible once it is evicted or
    freed: code that kept a pointer ends with a message and SIGSEGV. There is no heap, so the pool
    has no settings. Fixed when the heap would be made."""

    tiny: int = TINY_BYTES
    """Storages up to this size, in bytes, are never evicted. With ``tiny:0`` even the smallest are,
    for tests."""

    rest: int = REST_OPS
    """The recorder rests after twice so many operators in a row that show that nothing has to be
    evicted. With ``rest:0`` it never rests."""

    @classmethod
    def parse(cls, value: object) -> Debug:
        """From ``poison,verify:100,contents,no-moves,guard,tiny:0,rest:0`` or ``off``. Raises
        ValueError."""
        if isinstance(value, Debug):
            return value
        if isinstance(value, str) and value.strip() == "off":
            return cls()
        names = ("poison", "contents", "no-moves", "guard")
        readers = {"verify": _count, "tiny": parse_size, "rest": _count}
        return cls(**_parts(value, {**dict.fromkeys(names), **readers}))

    def __str__(self) -> str:
        parts = []
        for each in fields(self):
            value, name = getattr(self, each.name), each.name.replace("_", "-")
            if value != each.default:
                parts.append(name if value is True else f"{name}:{value}")
        return ",".join(parts) or "off"


@dataclass(frozen=True)
class TraceFile:
    """A file for a trace: of the whole job, or of the last events before it runs out of memory."""

    path: Path
    only_at_oom: bool = False

    @classmethod
    def parse(cls, value: object) -> TraceFile:
        """From a path, or ``oom:`` and a path. Raises ValueError."""
        if isinstance(value, TraceFile):
            return value
        if isinstance(value, str) and value.strip().startswith("oom:"):
            return cls(_path(value.strip().removeprefix("oom:")), True)
        return cls(_path(value))

    def __str__(self) -> str:
        text = str(self.path)
        return f"oom:{text}" if self.only_at_oom else "./" * text.startswith("oom:") + text


@dataclass(frozen=True)
class Config:
    """The settings of a run, checked by given_settings()."""

    budget: Budget = Budget()
    """The most memory of the job's tensors. With an unlimited budget, allocator and recorder are on
    and nothing is evicted, to measure a job."""

    device: str = "auto"
    """The device with the budget: ``cuda``, ``cpu``, or ``auto`` (CUDA if there is a device)."""

    heuristic: Heuristic = heuristics.PRESETS[heuristics.DEFAULT]
    """The choice of evictions; see dtr_alloc.heuristics."""

    costs: Path | None = None
    """A file of operators' costs, read when the session begins and written when it ends. Listed
    signatures keep their costs, so that two runs make the same decisions; others are measured and
    added. Placeholders as in ``stats``; processes must not share a file."""

    stats: Path | None = None
    """A file for stats() as JSON, written when the process ends, also after an error. ``{pid}`` and
    ``{rank}`` (the variable RANK, or 0) in the path are replaced."""

    report: bool | str | Path = False
    """The report when the process ends: figures on stderr (True), all counters with them (``all``),
    or a file, with the placeholders of ``stats``. A file whose name ends with ``.html`` is a page
    with pictures."""

    progress: bool = False
    """Whether lines on stderr show progress: every ten seconds on a terminal, elsewhere once a
    minute."""

    thrash: float = 4
    """The most compute of a step, as a multiple of its own operators' compute. A job beyond it
    prints one line on stderr, with a larger budget, and ends with torch.OutOfMemoryError if this
    continues. 0 (written ``off``): no limit."""

    ranks: str = "agree"
    """The behavior of other ranks of ``torch.distributed`` when one ends with
    torch.OutOfMemoryError. ``agree``: they raise it as well, and name the rank. ``off``: they wait
    until the timeout of their process group."""

    trust: tuple[str, ...] = ()
    """Custom operators that repeat bit for bit, or namespaces of such operators:
    ``flash_attn,mylib::gelu``. Others are tried (dtr_alloc/torch/custom_operators.py)."""

    swap: int | None = None
    """The most host memory, in bytes, for tensors that are swapped instead of recomputed; 0
    (written ``off``): none. None (written ``last-resort``): up to the size of the budget, only for
    tensors whose inputs are overwritten, and only if the job would be out of memory otherwise."""

    pool: PoolOptions = PoolOptions()
    """Options of the heap: ``chunk:2MiB,keep:1GiB``."""

    debug: Debug = Debug()
    """Checks that take time: ``poison,verify:100,contents``."""

    log: Path | None = None
    """A file for the op log of the job (dtr_alloc/oplog), compressed by its suffix (.gz, .bz2,
    .xz); placeholders as in ``stats``. Without a budget it is unlimited."""

    log_steps: Steps = Steps()
    """The steps that are logged. A step ends when an optimizer's step() returns."""

    trace: TraceFile | None = None
    """A file for a trace of the allocator (docs/reference/trace-format.md); placeholders as in
    ``stats``. ``oom:FILE``: it is written at the first out-of-memory error, with the last events
    and the call sites of operators. Without a budget and a log, only the allocator is on, and
    nothing is recorded or evicted."""


StrPath = str | os.PathLike[str]


class Settings(TypedDict, total=False):
    """The settings that a call may give beside the budget: the fields of Config, as they may be
    written. None means not given."""

    device: str | None
    heuristic: str | Heuristic | None
    costs: StrPath | None
    stats: StrPath | None
    report: bool | StrPath | None
    progress: bool | str | None
    thrash: float | str | None
    ranks: str | None
    trust: str | Iterable[str] | None
    swap: int | str | None
    pool: str | PoolOptions | None
    debug: str | Debug | None
    log: StrPath | None
    log_steps: int | str | Steps | None
    trace: StrPath | TraceFile | None


def _choice(allowed: tuple[str, ...]) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value.strip() not in allowed:
            raise ValueError(f"not one of {allowed}")
        return value.strip()

    return parse


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        raise ValueError(f"not a count: {shown(text)}")
    return int(text)


def _times(value: object) -> float:
    """A factor above 1; 0 for ``off``."""
    if isinstance(value, str) and value.strip().lower() == "off":
        return 0
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError("not a number")
    times = float(value)
    if not (1 < times < math.inf) and times != 0:
        raise ValueError("not above 1")
    return times


def _operators(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Iterable):
        raise ValueError("no names")
    return tuple(operator_or_namespace(name) for name in names)


def operator_or_namespace(value: object) -> str:
    """The name of a custom operator, or of a namespace. Raises ValueError."""
    if not isinstance(value, str) or not _OPERATOR.fullmatch(value.strip()):
        raise ValueError("not a name")
    return value.strip()


def _size_or(word: str, means: int, least: int = 0) -> Callable[[object], int]:
    """Parses a size, or a word with the meaning of a size."""

    def parse(value: object) -> int:
        if isinstance(value, str) and value.strip().lower() == word:
            return means
        size_bytes = parse_size(value)
        if size_bytes < least:
            raise ValueError(f"less than {error_size(least)}")
        return size_bytes

    return parse


def _swap(value: object) -> int | None:
    is_last_resort = isinstance(value, str) and value.strip().lower() == "last-resort"
    return None if is_last_resort else _size_or("off", 0)(value)


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in SWITCH_WORDS:
        return SWITCH_WORDS[value.strip().lower()]
    raise ValueError("not a switch")


def _path(value: object) -> Path:
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str) and text.strip() and "\0" not in text:
            return Path(text).expanduser()
    raise ValueError("not a path")


def _report(value: object) -> bool | str | Path:
    try:
        return _switch(value)
    except ValueError:
        path = _path(value)
    if is_page(path) and find_spec("matplotlib") is None:
        raise ValueError("no matplotlib")
    return "all" if path == Path("all") else path


def is_page(report: object) -> bool:
    """Whether a report is a page (dtr_alloc/advise/page.py)."""
    return isinstance(report, Path) and report.suffix.lower() == ".html"


_PARSERS: dict[str, tuple[Callable[[object], Any], Callable[[], str]]] = {
    # The second part is a function because the allowed values may grow.
    "budget": (Budget.parse, lambda: BUDGET_FORMS),
    "device": (_choice(DEVICES), lambda: ", ".join(DEVICES)),
    "heuristic": (heuristics.parse, heuristics.allowed),
    "costs": (_path, lambda: "a path"),
    "stats": (_path, lambda: "a path"),
    "report": (_report, lambda: f"{SWITCHES}, 'all', or a path; {PAGE_FORM}"),
    "progress": (_switch, lambda: SWITCHES),
    "thrash": (_times, lambda: "a number above 1, or 'off'"),
    "ranks": (_choice(RANKS), lambda: ", ".join(RANKS)),
    "trust": (_operators, lambda: f"{OPERATOR_FORMS}; several with commas between"),
    "swap": (_swap, lambda: f"{SIZE_FORMS}, 'off', or 'last-resort'"),
    "pool": (PoolOptions.parse, lambda: POOL_FORMS),
    "debug": (Debug.parse, lambda: DEBUG_FORMS),
    "log": (_path, lambda: "a path"),
    "log_steps": (
        Steps.parse,
        lambda: "steps counted from 1, both ends included: 3, 3..5, 3.. or ..5",
    ),
    "trace": (TraceFile.parse, lambda: "a path, or oom:PATH"),
}

FIELDS = tuple(field.name for field in fields(Config))


def variable(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.upper()


def known_variables() -> tuple[str, ...]:
    """Every DTR_ALLOC_* variable that means something, sorted."""
    fields = [variable(field) for field in FIELDS if field not in WITHOUT_VARIABLE]
    return tuple(sorted([*fields, *OTHER_VARIABLES]))


def check_names(environ: Mapping[str, str]) -> None:
    """Raises ConfigError for an unknown DTR_ALLOC_* variable; it names the nearest known one."""
    known = known_variables()
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            raise ConfigError("the name of a variable", name, _known(known, name))


def _known(names: Sequence[str], wrong: str) -> str:
    nearest = difflib.get_close_matches(wrong, names, n=1)
    return ", ".join(names) + "".join(f". Did you mean {name}?" for name in nearest)


@dataclass(frozen=True)
class Setting:
    """A given value: its source, its text, and its parsed value."""

    source: str
    written: object
    value: Any


def _setting(field: str, source: str, written: object) -> Setting:
    parse, allowed = _PARSERS[field]
    try:
        return Setting(source, written, parse(written))
    except ValueError:
        raise ConfigError(source, written, allowed()) from None


_MOST_CONFIG_BYTES = 1 << 16
_MOST_CONFIG_LINE = 1 << 12


def _from_file(path: str) -> dict[str, Setting]:
    """The settings of a TOML file. It may have 64 KiB, in lines of 4 KiB, so that it is read within
    two seconds and 300 MB: the parser's time and memory grow with the square of a key's parts."""
    source = f"DTR_ALLOC_CONFIG ({path})"
    try:
        text = bounded.read_bytes(Path(path).expanduser(), _MOST_CONFIG_BYTES)
        longest = max(map(len, text.split(b"\n")))
        if longest > _MOST_CONFIG_LINE:
            raise bounded.TooMuch(f"it has a line of {longest} bytes; allowed: {_MOST_CONFIG_LINE}")
        table = tomllib.loads(text.decode())
    except bounded.TooMuch as error:
        raise ConfigError("DTR_ALLOC_CONFIG", path, f"a TOML file of settings ({error})") from None
    except OSError as error:
        raise ConfigError(
            "DTR_ALLOC_CONFIG", path, f"a TOML file that can be read ({error.strerror})"
        ) from None
    except (ValueError, RecursionError) as error:  # no TOML, no text, a number of 5,000 digits
        raise ConfigError("DTR_ALLOC_CONFIG", path, f"a TOML file ({error})") from None
    for key in table:
        if key not in FIELDS:
            raise ConfigError(f"a key of {source}", key, _known(FIELDS, key))
    return {key: _setting(key, f"{key} in {source}", value) for key, value in table.items()}


class GivenSettings(dict[str, Setting]):
    """The given settings by field: for each, the one that wins."""

    @property
    def config(self) -> Config:
        return Config(**{field: setting.value for field, setting in self.items()})

    @property
    def is_session(self) -> bool:
        """Whether they begin a session: a log or a trace needs no budget."""
        return not {"budget", "log", "trace"}.isdisjoint(self)

    @property
    def is_light(self) -> bool:
        """Whether they only ask for a trace, which needs no recorder."""
        return "trace" in self and {"budget", "log"}.isdisjoint(self)


def given_settings(
    environ: Mapping[str, str] | None = None, /, **arguments: object
) -> GivenSettings:
    """The settings of the arguments (fields of Config; None means not given), of environ
    (os.environ if None) and of the file that it names.

    Raises ConfigError for a wrong value or an unknown DTR_ALLOC_* variable, and
    TypeError for an argument that is not a field of Config.
    """
    environ = os.environ if environ is None else environ
    for name in arguments:
        if name not in FIELDS:
            raise TypeError(f"unknown setting {name!r}; known: {_known(FIELDS, name)}")
    check_names(environ)
    path = environ.get("DTR_ALLOC_CONFIG")
    found = GivenSettings(_from_file(path) if path else {})
    for field in FIELDS:
        if field not in WITHOUT_VARIABLE and (text := environ.get(variable(field))):
            found[field] = _setting(field, variable(field), text)
    for field, value in arguments.items():
        if value is not None:
            found[field] = _setting(field, _ARGUMENT + field, value)
    return found
