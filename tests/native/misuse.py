"""Calls every function of the C interface in ways that its headers forbid.

Run as a program, so that a crash ends a process of its own, and the last line that it wrote says
which call it was:

    python misuse.py LOG arguments             each function, each pointer, each way to be wrong
    python misuse.py LOG sequences FIRST LAST  random sequences of calls, one for each seed

The functions and their parameters are read from the headers, so a new one is covered at once; a
parameter of a type that is not known here fails with its name. Operators, which the engine takes
unchecked (dtr/framework.h), run as they should in between.
"""

import os
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from native_pool import NativePool, PoolError, ffi, lib
from toy import CONSTANT, READ, Tensor, Toy, engine_options, release, toys

from native import build_core

KIB = 1 << 10
LENGTH = 64  # of every array
WORDS = 64  # of every tensor
SMALL = 8192  # an event log's least capacity is 4096
WILD = (1, 8, 0x10, 0xDEADBEE8, 1 << 40, (1 << 47) + 8, (1 << 62) + 24, (1 << 64) - 8)


class Parameter(NamedTuple):
    type: str  # without const and struct
    name: str


class Function(NamedTuple):
    name: str
    result: str
    parameters: tuple[Parameter, ...]


def declarations() -> tuple[list[Function], set[str]]:
    """The functions of the headers, and their opaque types."""
    text = re.sub(r"/\*.*?\*/", "", build_core.declarations(), flags=re.DOTALL)
    opaque = set(re.findall(r"typedef struct (dtr_\w+) \1;", text))
    functions = []
    pattern = r"^(?!typedef)(\w[\w \*]*?)\b(dtr_\w+)\(([^()]*)\);"
    for result, name, rest in re.findall(pattern, text, re.MULTILINE):
        parameters = []
        for part in rest.split(","):
            if part.strip() in ("void", ""):
                continue
            found = re.fullmatch(r"(.*?)(\w+)", part.strip(), re.DOTALL)
            kind = re.sub(r"\b(const|struct)\b|\s", "", found[1])
            parameters.append(Parameter(kind, found[2]))
        functions.append(Function(name, re.sub(r"\bconst\b|\s", "", result), tuple(parameters)))
    assert {f.name for f in functions} == {n for n in dir(lib) if callable(getattr(lib, n))}
    return functions, opaque


FUNCTIONS, OPAQUE = declarations()

# Pointers that may be NULL, by function and parameter or field.
OPTIONAL = {
    *(("dtr_cuda_probe", "device_count"), ("dtr_cuda_probe", "library_path")),
    *(("dtr_cuda_set_library", "library_path"), ("dtr_engine_compact", "moved_bytes")),
    *(("dtr_engine_configure", "options.dealloc"), ("dtr_engine_configure", "options.score")),
    *(("dtr_engine_configure", "options.score_context"), ("dtr_engine_create", "options.dealloc")),
    *(("dtr_engine_create", "options.score"), ("dtr_engine_create", "options.score_context")),
    *(("dtr_engine_relocate", "avoid_begin")),
    *(("dtr_engine_relocate", "avoid_end"), ("dtr_event_log_destroy", "log")),
    *(("dtr_fragment_run_model", "options.segment_addresses"), ("dtr_pool_block_bytes", "address")),
    *(("dtr_pool_block_start", "address"), ("dtr_pool_contains", "address")),
    *(("dtr_pool_copy", "timer"), ("dtr_pool_free", "address")),
    *(("dtr_pool_free_beyond", "address"), ("dtr_pool_free_beside", "address")),
    *(("dtr_pool_host_free", "host"), ("dtr_pool_note", "address"), ("dtr_pool_note_move", "from")),
    *(("dtr_pool_note_move", "to"), ("dtr_pool_run", "address"), ("dtr_pool_set_log", "log")),
    *(("dtr_pool_set_room", "context"), ("dtr_pool_set_room", "room")),
    *(("dtr_pool_trim", "returned_bytes"), ("dtr_pool_try_at", "address")),
    *(("dtr_pool_try_outside", "begin"), ("dtr_pool_try_outside", "end")),
    *(("dtr_simulate_runtime", "decisions"), ("dtr_simulate_runtime", "options.score")),
    ("dtr_simulate_runtime", "options.score_context"),
}
# 0, x = f(); 1, y = g(x); x and y are released.
PROGRAM = [1, 5, 0, 1, 0, 4096, -1, 1, 5, 1, 0, 1, 1, 4096, -1, 5, 0, 5, 1]


def message() -> str:
    return ffi.string(lib.dtr_last_error()).decode(errors="replace")


def number_of(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


@ffi.callback("dtr_room_fn")
def no_room(context: Any, size_bytes: int, stream: int) -> int:
    return lib.DTR_ROOM_IS_NONE


class Misuse(Exception):
    """The interface did what it must not."""


class Job(Toy):
    """Operators of one engine, which fail where memory is short."""

    def __init__(self, log: int):
        super().__init__(NativePool("host", budget=256 * KIB, reserve=1 << 20))
        self.log = log
        self.tensors: list[Tensor] = []

    def attempt(self, what: str, action: Callable[[], list[Tensor] | None]) -> None:
        """Notes an action, and keeps the tensors that it makes."""
        os.write(self.log, f"{what} of {self.framework}\n".encode())
        with suppress(PoolError):
            self.tensors += action() or []

    def new_tensor(self) -> None:
        self.attempt("a tensor", lambda: [self.unseen(WORDS)])

    def op(self, arguments: list[tuple[Tensor, int]], results: int, **options: bool) -> None:
        call = partial(self.run, "op", *arguments, results=[WORDS] * results, **options)
        self.attempt(f"an op of {len(arguments)} tensors with {options}", call)

    def release_one(self) -> None:
        if self.tensors:
            self.attempt("a release", self.tensors.pop(0).release)


class World:
    """Objects of all kinds, and what became of them."""

    def __init__(self, log: int):
        self.log = log
        self.alive: dict[str, list[Any]] = defaultdict(list)
        self.walked: list[Any] = []
        self.jobs: dict[int, Job] = {}  # by engine
        self.destroyed: dict[str, list[Any]] = defaultdict(list)
        self.blocks: list[tuple[Any, Any]] = []  # pool and address
        self.hosts: list[tuple[Any, Any]] = []
        self.owners: list[tuple[str, Any]] = []  # and what ends what they own
        self.kept: list[Any] = []  # memory that objects look at
        self.foreign = ffi.new("char[]", 64 * KIB)

    def call(self, name: str, *arguments: Any) -> Any:
        """Notes the call, makes it, and looks at the answer's range."""
        shown = ", ".join(
            hex(number_of(a)) if isinstance(a, ffi.CData) and "*" in ffi.typeof(a).cname else str(a)
            for a in arguments
        )
        os.write(self.log, f"{name}({shown})\n".encode())
        answer = getattr(lib, name)(*arguments)
        if RESULTS[name] == "int32_t" and name not in VALUES and not -4 <= answer <= 255:
            raise Misuse(f"{name} gave {answer}")
        return answer

    def made(self, name: str, kind: str, *arguments: Any) -> Any:
        """Calls what writes a handle to its last argument, and keeps it."""
        out = ffi.new(f"{kind} **")
        status = self.call(name, *arguments, out)
        if (status == lib.DTR_OK) != (out[0] != ffi.NULL):
            raise Misuse(f"{name} gave status {status} and {out[0]}")
        if status != lib.DTR_OK:
            return None
        self.alive[kind].append(out[0])
        return out[0]

    def died(self, kind: str, handle: Any) -> None:
        self.alive[kind].remove(handle)
        self.destroyed[kind] = [*self.destroyed[kind], handle][-32:]

    # ---- objects ----

    def pool(self, driver: bytes = b"host", budget: int = 256 * KIB, **fields: Any) -> Any:
        options = ffi.new("dtr_pool_options *", {"budget_bytes": budget, **fields})
        if driver == b"host":
            options.reserve_bytes = 1 << 20  # checks look at all of it
        text = ffi.new("char[]", driver)
        options.driver = text
        return self.made("dtr_pool_create", "dtr_pool", options)

    def job(self) -> Job:
        job = Job(self.log)
        self.alive["dtr_engine"].append(job.engine)
        self.alive["dtr_pool"].append(job.pool.handle)
        self.jobs[number_of(job.engine)] = job
        return job

    def array(self, kind: str, values: Any = LENGTH) -> Any:
        array = ffi.new(f"{kind}[]", values)
        self.kept = [*self.kept[-64:], array]
        return array

    def struct(self, kind: str) -> Any:
        """A struct that its functions accept."""
        made = ffi.new(f"{kind} *")
        if kind == "dtr_pool_options":
            made.driver = self.array("char", b"host")
            made.budget_bytes = 64 * KIB
        elif kind == "dtr_engine_options":
            made = engine_options("dtr-eqclass")
        elif kind == "dtr_cost":
            made = self.array("dtr_cost", LENGTH)
            for i in range(LENGTH):
                made[i].signature = i + 1
                made[i].cost_ns = 1
        elif kind in (
            *("dtr_block", "dtr_run_block", "dtr_event_log", "dtr_evicted"),
            *("dtr_holder", "dtr_repeats", "dtr_pool_stats", "dtr_opening"),
        ):
            made = self.array(kind)
        elif kind == "dtr_event_columns":
            for name, field in ffi.typeof(kind).fields:
                setattr(made, name, self.array(field.type.item.cname, SMALL))
        elif kind == "dtr_fragment_options":
            made.budget_bytes = 1 << 30
        elif kind == "dtr_fragment_walk_options":
            made.kind = self.array("uint8_t", [0, 0, 1, 1])
            made.address = self.array("uint64_t", [4096, 8192, 4096, 8192])
            made.size_bytes = self.array("uint64_t", [64, 64, 0, 0])
            made.count = 4
            self.walked += self.kept[-3:]  # they outlive the walk
        elif kind == "dtr_simulation_options":
            self.fill_simulation(made)
        elif kind == "dtr_runtime_options":
            self.fill_simulation(made.common)
            made.history_ops = 100
            made.chunk_bytes = 4 * KIB
        elif kind == "dtr_search_options":
            made.budget_bytes = 8 * KIB
            made.steps = 1
        return made

    @staticmethod
    def fill_simulation(options: Any) -> None:
        options.heuristic = {"cost": lib.DTR_COST_COMPONENT, "size": 1, "recompute_factor": 1}
        options.budget_bytes = 8 * KIB
        options.max_recompute = -1

    def fill(self) -> None:
        """At least one object of each kind that is alive, and one that is not."""
        for _ in range(2):
            job = self.job()
            for _ in range(4):
                job.new_tensor()
            job.op([(job.tensors[0], READ)], 1)
            pool = self.pool()
            self.allocate(pool)
            for function in FUNCTIONS:
                if function.name in MAKERS:
                    self.call_with(function, self.good(function))
            for kind in sorted(OPAQUE):
                if not self.alive[kind]:
                    raise Misuse(f"nothing here makes a {kind}: say how, in World")
            self.call("dtr_evict", job.engine, job.tensors[-1].handle)
        self.destroy_some()

    def allocate(self, pool: Any) -> Any:
        out = ffi.new("void **")
        if self.call("dtr_pool_allocate", pool, 4 * KIB, 0, out) == lib.DTR_OK and out[0]:
            self.blocks.append((pool, out[0]))
        return out[0]

    def destroy_some(self) -> None:
        """One of each kind that can go."""
        for kind, name in DESTROYERS.items():
            for handle in list(self.alive[kind]):
                if self.call(name, handle) == lib.DTR_OK:
                    self.died(kind, handle)
                    break
        for kind in OPAQUE:  # those that others need: made for this
            if not self.destroyed[kind]:
                self.make_and_destroy(kind)

    def make_and_destroy(self, kind: str) -> None:
        if kind == "dtr_pool":
            handle = self.pool()
        elif kind == "dtr_engine":
            handle = self.made("dtr_engine_create", kind, engine_options("dtr-eqclass"))
        else:
            raise Misuse(f"nothing here destroys a {kind}: say how, in World")
        if self.call(DESTROYERS[kind], handle) != lib.DTR_OK:
            raise Misuse(f"{DESTROYERS[kind]} failed: {message()}")
        self.died(kind, handle)

    # ---- good arguments ----

    def good(self, function: Function, pick: Callable[[list], Any] = lambda some: some[-1]) -> list:
        """Arguments of which none is wrong by itself."""
        made = []
        for kind, name in function.parameters:
            base = kind.rstrip("*")
            stars = len(kind) - len(base)
            if stars == 1 and base in OPAQUE:
                made.append(pick(self.alive[base]) if self.alive[base] else ffi.NULL)
            elif kind == "dtr_room_fn":
                made.append(no_room)
            elif name == "in_the_way":
                made.append(self.array("void *"))
            elif stars == 2:
                made.append(ffi.new(f"{base} **"))
            elif kind == "void*":
                made.append(self.good_address(name, made[0], pick))
            elif kind == "char*":
                made.append(self.array("char", b"/nowhere/libcuda.so"))
            elif stars == 1 and base.startswith("dtr_"):
                made.append(self.struct(base))
            elif stars == 1:
                made.append(self.good_array(base, name))
            elif stars == 0 and base in RANGES:
                made.append(NUMBERS.get((function.name, name), NUMBERS.get(name, 1)))
            else:
                raise Misuse(f"{function.name}: no {kind} {name} is known: say how, in World")
        return made

    def good_array(self, base: str, name: str) -> Any:
        if name in ("program", "evictions"):
            return self.array(base, PROGRAM if name == "program" else [1, 0])
        if name in ("workspace", "workspace_at"):
            return self.array(base, [0] * LENGTH)
        if name == "end":  # behind the start, which is 0
            return self.array(base, [1])
        if base == "uint8_t":
            return self.array(base, [0])
        return self.array(base, LENGTH)

    def good_address(self, name: str, of: Any, pick: Callable[[list], Any]) -> Any:
        if name in ("tensor", "handle"):
            job = self.jobs.get(number_of(of))
            tensor = pick(job.tensors) if job and job.tensors else None
            return getattr(tensor, "pointer" if name == "tensor" else name, ffi.NULL)
        if name == "framework":
            return ffi.cast("void *", self.foreign)
        if name == "host" and self.hosts:
            return pick(self.hosts)[1]
        return pick(self.blocks)[1] if self.blocks else ffi.NULL

    def call_with(self, function: Function, arguments: list) -> Any:
        """Calls, and keeps what is made or given back."""
        answer = self.call(function.name, *arguments)
        for (kind, _), argument in zip(function.parameters, arguments, strict=True):
            base = kind.rstrip("*")
            if kind == base + "**" and base in OPAQUE and argument and argument[0]:
                self.alive[base].append(argument[0])
        if function.name in DESTROYS and answer == lib.DTR_OK and arguments[0]:
            kind = function.parameters[0].type.rstrip("*")
            if arguments[0] not in self.alive[kind]:
                raise Misuse(f"{function.name} took what was not alive")
            self.died(kind, arguments[0])
        return answer

    # ---- checks ----

    def check(self) -> None:
        for kind, name in CHECKS.items():
            for handle in self.alive[kind]:
                if getattr(lib, name)(handle) != lib.DTR_OK:
                    raise Misuse(f"{name}: {message()}")

    def finish(self) -> None:
        """All that is left can be taken apart: nothing was lost, nothing locked for ever."""
        for job in self.jobs.values():
            release(*job.held.values())
            job.core.frame_destroy(job.frame)
        for end, owner in self.owners:
            if owner.engine in self.alive["dtr_engine"]:
                self.done(end, owner)
        for engine in self.alive["dtr_engine"]:
            self.done("dtr_engine_reset", engine, ffi.NULL, 0)
        for job in self.jobs.values():
            if left := toys.dtr_toy_destroy(job.framework):
                raise Misuse(f"at the end {left} tensors and storages are left")
        for pool, address in self.blocks:
            self.done("dtr_pool_free", pool, address)
        for pool, address in self.hosts:
            self.done("dtr_pool_host_free", pool, address)
        last = ("dtr_engine", "dtr_pool", "dtr_event_log")
        for kind in (*last, *OPAQUE.difference(last)):
            for handle in self.alive[kind]:
                self.done(DESTROYERS[kind], handle)

    def done(self, name: str, *arguments: Any) -> None:
        if self.call(name, *arguments) != lib.DTR_OK:
            raise Misuse(f"at the end {name} failed: {message()}")


RESULTS = {function.name: function.result for function in FUNCTIONS}
# Functions whose int32_t is no status.
VALUES = {"dtr_abi_version", "dtr_pool_uses_hints", "dtr_pool_contains"}
DESTROYERS = {
    "dtr_fragment_events": "dtr_fragment_unload",
    "dtr_fragment_run": "dtr_fragment_destroy",
    "dtr_fragment_walk": "dtr_fragment_walk_destroy",
    "dtr_event_log": "dtr_event_log_destroy",
    "dtr_engine": "dtr_engine_destroy",
    "dtr_pool": "dtr_pool_destroy",
}
DESTROYS = set(DESTROYERS.values())
ENDS = {
    "dtr_pin_for": "dtr_end_pin",
    "dtr_pin_made": "dtr_end_pin",
    "dtr_begin_capture": "dtr_end_capture",
}
MAKERS = {
    *("dtr_event_log_create", "dtr_fragment_load"),
    *("dtr_fragment_run_model", "dtr_fragment_walk_run"),
}
CHECKS = {"dtr_pool": "dtr_pool_check_invariants", "dtr_engine": "dtr_engine_check_invariants"}
RANGES = {
    "int32_t": (-(1 << 31), (1 << 31) - 1),
    "uint32_t": (0, (1 << 32) - 1),
    "int64_t": (-(1 << 63), (1 << 63) - 1),
    "uint64_t": (0, (1 << 64) - 1),
    "uint16_t": (0, (1 << 16) - 1),
}
NUMBERS: dict[Any, int] = {  # others: 1
    "capacity": LENGTH,
    "numbers": len(PROGRAM),
    "operators": 2,
    "device_index": -1,
    ("dtr_event_log_drain", "capacity"): SMALL,
    ("dtr_engine_add_pool", "device_type"): 3,
    "device_type": 0,
    "budget_bytes": 256 * KIB,
    "size_bytes": 4 * KIB,
    "kind": 0,
    "dealloc": 0,
}


# ---- (a) each function, each pointer, each way to be wrong ----


def wrong_handles(world: World, kind: str) -> Iterator[tuple[str, Any]]:
    yield "NULL", ffi.NULL
    for handle in world.destroyed[kind][-1:]:
        yield "destroyed", handle
    for other in sorted(OPAQUE - {kind}):
        for handle in world.alive[other][:1]:
            yield f"a {other}", ffi.cast(f"{kind} *", handle)
    alive = {number_of(handle) for handle in world.alive[kind]}
    near = {number + 16 for number in alive} - alive  # the next slot's
    for number in (*WILD, *sorted(near)[:1], number_of(world.foreign)):
        yield "wild", ffi.cast(f"{kind} *", number)


def is_checked(name: str) -> bool:
    """Whether an address that is wild can be told from one that is not."""
    return name not in ("framework", "context")


def wrong_arguments(world: World, function: Function) -> Iterator[tuple[str, list, bool]]:
    """What is wrong, the arguments, and whether the call must be refused."""
    for at, (kind, name) in enumerate(function.parameters):
        base = kind.rstrip("*")
        stars = len(kind) - len(base)
        optional = (function.name, name) in OPTIONAL
        if stars == 0 and kind != "dtr_room_fn":
            continue

        def put(value: Any, at: int = at) -> list:
            arguments = world.good(function)
            arguments[at] = value
            return arguments

        if stars == 1 and base in OPAQUE:
            for what, handle in wrong_handles(world, base):
                yield f"{name}: {what}", put(handle), not (optional and what == "NULL")
            continue
        yield f"{name}: NULL", put(ffi.NULL), not optional
        if name == "tensor":  # of others a wrong address is found, no more
            yield f"{name}: no multiple of 8", put(ffi.cast("void *", 0xDEADBEEF)), True
        elif kind == "void*" and is_checked(name):
            for number in WILD:
                yield f"{name}: wild", put(ffi.cast("void *", number)), False
        if stars == 1 and base.startswith("dtr_"):
            for field, its in ffi.typeof(base).fields:
                if its.type.kind in ("pointer", "function") and name in ("options", "columns"):
                    wrong = world.struct(base)
                    setattr(wrong, field, ffi.NULL)
                    must = (function.name, f"{name}.{field}") not in OPTIONAL
                    yield f"{name}.{field}: NULL", put(wrong), must


def leave_mark() -> str:
    """A message that no other call leaves."""
    options, result = ffi.new("dtr_runtime_options *"), ffi.new("dtr_simulation_result *")
    lib.dtr_simulate_runtime(options, [99], 1, ffi.NULL, ffi.NULL, 0, result, ffi.NULL)
    return message()


def was_refused(function: Function, answer: Any, mark: str) -> bool:
    if function.result in ("int32_t", "int64_t") and function.name not in VALUES:
        return answer != 0 and message() != mark
    return message() != mark


def arguments_of_all(log: int) -> int:
    world = World(log)
    world.fill()
    calls = 0
    for function in FUNCTIONS:
        for what, arguments, must in wrong_arguments(world, function):
            mark = leave_mark()
            os.write(log, f"{what}: ".encode())
            answer = world.call_with(function, arguments)
            calls += 1
            if must and not was_refused(function, answer, mark):
                raise Misuse(f"{function.name} took {what}: {answer}")
            world.check()
    world.finish()
    return calls


# ---- (b) random sequences ----


class Sequence:
    """Random calls, wrong ones among them, and after each the rules hold."""

    def __init__(self, log: int, seed: int):
        os.write(log, f"seed {seed}\n".encode())
        self.random = random.Random(seed)
        self.world = World(log)

    def run(self, steps: int) -> None:
        world = self.world
        world.fill()
        uniform = [f for f in FUNCTIONS if f.name != "dtr_cuda_probe"]
        own = [*[self.op] * 4, *[self.evict] * 5, *[self.all_back] * 2]
        own += [lambda: self.job().new_tensor(), self.allocate]
        for _ in range(steps):
            if self.random.random() < 0.6:
                self.random.choice(own)()
            else:
                self.any_call(self.random.choice(uniform))
            world.check()
            for job in world.jobs.values():
                if len(job.tensors) > 20:
                    job.release_one()
        world.finish()

    # ---- calls that follow one another as they should ----

    def one(self, kind: str) -> Any:
        alive = self.world.alive[kind]
        return self.random.choice(alive) if alive else ffi.cast(f"{kind} *", 0)

    def job(self) -> Job:
        return self.random.choice(list(self.world.jobs.values()))

    def allocate(self) -> None:
        self.world.allocate(self.one("dtr_pool"))

    def op(self) -> None:
        job, rng = self.job(), self.random
        tensors = rng.sample(job.tensors, min(len(job.tensors), rng.randrange(4)))
        uses = [*[READ] * 3, *range(CONSTANT + 1)]
        job.op(
            [(tensor, rng.choice(uses)) for tensor in tensors],
            rng.choice([0, 1, 1, 1, 2]),
            recomputable=rng.random() < 0.7,
            keeps_old=rng.random() < 0.3,
        )

    def all_back(self) -> None:
        job = self.job()
        job.attempt("all that is evicted", job.materialize_all)

    def evict(self) -> None:
        engine = self.one("dtr_engine")
        job = self.world.jobs.get(number_of(engine))
        if job and job.tensors:
            self.world.call("dtr_evict", engine, self.random.choice(job.tensors).handle)

    # ---- any call ----

    def any_call(self, function: Function) -> None:
        world, rng = self.world, self.random
        if function.name in DESTROYS and rng.random() < 0.5:
            return
        arguments = world.good(function, rng.choice)
        if function.name == "dtr_engine_destroy" and number_of(arguments[0]) in world.jobs:
            return  # its framework needs it
        for at, (kind, name) in enumerate(function.parameters):
            base = kind.rstrip("*")
            if kind == base and base in RANGES:
                arguments[at] = self.any_number(function, base, name)
            elif rng.random() < 0.15:
                arguments[at] = self.wrong(function, kind, name, arguments[at])
        if function.name == "dtr_pool_create" and arguments[0]:
            self.any_pool(arguments[0])
        answer = world.call_with(function, arguments)
        if function.name in ENDS and answer == lib.DTR_OK:
            world.owners.append((ENDS[function.name], arguments[-1]))
        self.note_memory(function.name, arguments, answer)

    def note_memory(self, name: str, arguments: list, answer: Any) -> None:
        """Blocks, and what became of them."""
        world = self.world
        if answer == lib.DTR_OK and name.startswith("dtr_pool_"):
            if name == "dtr_pool_host_allocate" and arguments[-1][0]:
                world.hosts.append((arguments[0], arguments[-1][0]))
            elif name == "dtr_pool_arena_allocate_at":
                world.blocks.append((arguments[0], arguments[2]))
            elif re.search("allocate|try_outside|try_at", name) and arguments[-1][0]:
                world.blocks.append((arguments[0], arguments[-1][0]))
            elif name in ("dtr_pool_free", "dtr_pool_host_free") and arguments[1]:
                some = world.hosts if "host" in name else world.blocks
                entry = (arguments[0], arguments[1])
                if entry in some:
                    some.remove(entry)

    def any_pool(self, options: Any) -> None:
        rng = self.random
        driver = rng.choice([b"host", b"simulated", b"counted", b"", b"cuda"])
        options.driver = self.world.array("char", driver)
        for field, values in POOL_FIELDS.items():
            if rng.random() < 0.3:
                setattr(options, field, rng.choice(values))
        if driver in (b"host", b"cuda"):
            options.budget_bytes = min(options.budget_bytes, 1 << 20)

    def any_number(self, function: Function, base: str, name: str) -> int:
        rng = self.random
        least, most = RANGES[base]
        good = NUMBERS.get((function.name, name), NUMBERS.get(name, 1))
        if name in LENGTHS:
            return rng.choice([0, good]) if function.name in FIXED else rng.randrange(good + 1)
        if rng.random() < 0.6:
            return good
        value = rng.choice([0, 1, 2, 3, 4, 5, 8, 64, 100, 4096, 65536, most, most - 1, least, -1])
        return min(max(value, least), most)

    def wrong(self, function: Function, kind: str, name: str, good: Any) -> Any:
        """A pointer that may be none; what cannot be told apart stays as it is."""
        rng, world = self.random, self.world
        base = kind.rstrip("*")
        if kind == base + "*" and base in OPAQUE:
            return rng.choice(list(wrong_handles(world, base)))[1]
        if kind == "void*" and name != "tensor" and is_checked(name):
            return ffi.cast("void *", rng.choice([*WILD, number_of(good) + 64]))
        return ffi.NULL


# How long arrays are: what is above cannot be told apart.
LENGTHS = {"capacity", "count", "numbers", "operators", "rounds"}
FIXED = {"dtr_simulate_runtime", "dtr_fragment_load", "dtr_event_log_drain"}
POOL_FIELDS = {
    "budget_bytes": (0, 1, 4096, 65536, 1 << 20, (1 << 63) - 1, (1 << 64) - 1),
    "reserve_bytes": (0, 1, 1 << 20, 1 << 62, (1 << 64) - 1),
    "chunk_bytes": (0, 1, 4096, 65536, 1 << 62, (1 << 64) - 1),
    "small_bytes": (0, 1, 1024, 1 << 62, (1 << 64) - 1),
    "keep_bytes": (0, 1, 4096, (1 << 64) - 1),
    "poison": (0, 1, -1),
    "fixed": (0, 1, -1),
    "placement": (0, 1, 2, 3, 4, -1),
    "device": (0, 1, -1, (1 << 31) - 1),
}


def main(arguments: list[str]) -> None:
    log = os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if arguments[1] == "arguments":
        print(arguments_of_all(log), "calls")
        return
    for seed in range(int(arguments[2]), int(arguments[3])):
        try:
            Sequence(log, seed).run(300)
        except Misuse as error:
            raise Misuse(f"seed {seed}: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
