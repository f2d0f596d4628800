"""A toy framework on the simulated one: operators over real memory, recorded and recomputed.

It does what the bridge does for PyTorch (native/bridge/capture.cpp, repeat.h), in the same order
and with the same calls. An operator's result is a hash of its name, its parameters and what it
reads, so a recomputation on wrong inputs shows. What every storage should hold is kept beside it in
plain Python (``Store.expected``), computed from expected contents only, never read from the memory.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple

from native_pool import ERRORS, NativePool, check, ffi, lib, move_some

from dtr_alloc import _lab, heuristics
from dtr_alloc.simulation import presets

READ, MUTATE, WRITE_ONLY, SCRATCH = range(4)
CONSTANT = lib.DTR_USE_CONSTANT
RECOMPUTABLE = lib.DTR_OP_RECOMPUTABLE
EMPTY = 4  # a further use in a step's description
INT64 = 4  # c10::ScalarType::Long
WORD = 8
PAGE = 4096
WORDS = PAGE // WORD
"""Of a tensor of one page."""
DEALLOCS = ("eager", "banish", "ignore", "lazy", "auto")
MEASURED = -1

toys = _lab.lib
"""The framework (native/lab/dtr_lab.h)."""

NUMBERS = itertools.count(1)
OF_CLOSURES: dict[int, Toy] = {}
"""By the number of a closure that a record needs."""


def answer(number: int) -> int:
    """What a function of the core's table gives."""
    if number < 0:
        check(-number)
    return number


def as_closure(number: int) -> Any:
    return ffi.cast("void *", number)


def allocated(call: Callable[..., int], *arguments: Any) -> None:
    """A call that may allocate."""
    message = _lab.ffi.new("const char **")
    if status := call(*arguments, message):
        raise ERRORS[status](status, ffi.string(message[0]).decode())


def engine_options(heuristic: str | heuristics.Heuristic, **options: Any) -> Any:
    """A dtr_engine_options with everything off but what is given."""
    made = ffi.new("dtr_engine_options *")
    made.heuristic = ffi.new("dtr_heuristic *", presets.parse(heuristic).numbers())[0]
    made.history_ops = 1 << 30
    made.tiny_bytes = lib.DTR_TINY_BYTES
    for name, value in options.items():
        setattr(made, name, value)
    return made


class Store:
    """One storage: how many words it has, what they should be, and who holds it."""

    pins = 0
    escaped = False
    # How often the recorder had gone to rest when an operator used it as a parameter, or None.
    parameter_since_rest = None
    given_away = False

    def __init__(self, words: int, expected: bytes):
        self.words = words
        self.expected = bytearray(expected)


class Tensor:
    """A one-dimensional range of a storage's words. Its owner releases it, or the toy's end."""

    def __init__(self, toy: Toy, pointer: Any, store: Store | None, offset: int, words: int):
        self.toy = toy
        self.pointer = pointer
        self.store = store  # None: of a step, where nothing is expected
        self.offset = offset
        self.words = words
        toy.held[id(self)] = self

    def release(self) -> None:
        """The user lets go; once is enough."""
        if self.pointer is not None:
            toys.dtr_toy_release(self.pointer)
            self.pointer = None
            del self.toy.held[id(self)]

    @property
    def number(self) -> int:
        return int(ffi.cast("intptr_t", self.pointer))

    @property
    def handle(self) -> Any:
        return toys.dtr_toy_handle(self.pointer)

    @property
    def data(self) -> Any:
        return toys.dtr_toy_data(self.pointer)

    @property
    def address(self) -> int:
        return int(ffi.cast("uintptr_t", self.data))

    @property
    def evicted(self) -> bool:
        return self.data == ffi.NULL

    def bytes(self) -> bytes:
        """The touched words of the memory itself."""
        return self.toy.touched(ffi.buffer(self.data, self.words * WORD), self)

    def expected(self) -> bytes:
        start = self.offset // self.toy.grain * WORD
        return bytes(self.store.expected[start : start + self.toy.count(self) * WORD])

    def is_right(self) -> bool:
        return self.bytes() == self.expected()

    def comes_back(self) -> bool:
        """Whether it can be evicted, and is then what it was."""
        return self.toy.evict(self) and self.toy.content(self) == self.expected()


class Operator(NamedTuple):
    """What a closure keeps: everything about an operator but its tensors."""

    name: str
    parameter: Any
    uses: tuple[int, ...]
    results: tuple[int, ...]  # sizes in words of the new tensors
    fails: Callable[[Operator], None]

    def written(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Those of its arguments that it overwrites."""
        pairs = zip(tensors, self.uses, strict=True)
        return [tensor for tensor, use in pairs if use & 3 in (MUTATE, WRITE_ONLY)]


class Evicted(NamedTuple):
    id: int
    handle: Any
    op_key: int
    size_bytes: int


def op_key(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def never(operator: Operator) -> None:
    """An operator's hook that lets it succeed."""


def measured(operator: Operator) -> int:
    return MEASURED


def by_parameter(operator: Operator) -> int:
    return operator.parameter


def by_name(operator: Operator) -> int:
    return 10**12 if operator.name == "dear" else 10**3


def hashes(operator: Operator, contents: Sequence[bytes], count: int) -> list[bytes]:
    """The words that an operator writes, one seed per tensor written."""
    key = blake2b(repr((operator.name, operator.parameter)).encode(), digest_size=WORD)
    for use, content in zip(operator.uses, contents, strict=True):
        if use & 3 in (READ, MUTATE):
            key.update(content)
    return [blake2b(b"%d" % i, key=key.digest(), digest_size=WORD).digest() for i in range(count)]


class Toy:
    """One engine on one pool, with operators.

    Args:
        pool: the memory.
        device: its device type and index.
        grain: operators touch one word in so many, so that large storages stay cheap.
        price: what an operator costs; by default its size says.
    """

    verifies = False
    """Whether the rules are checked before whatever a test asks for or does by hand."""

    def __init__(
        self,
        pool: NativePool,
        device: tuple[int, int] = (0, -1),
        grain: int = 1,
        history: int = 1 << 30,
        dealloc: str = "eager",
        heuristic: str = "dtr-eqclass",
        price: Callable[[Operator], int] | None = None,
        **options: Any,
    ):
        self.pool = pool
        self.price = price
        self.device = device
        self.stream = 0
        self.grain = grain
        self._dealloc = ffi.new("char[]", dealloc.encode())
        self.closures: dict[int, Operator] = {}
        self.held: dict[int, Tensor] = {}
        self.recomputed: list[str] = []
        self._recompute_lock = threading.RLock()
        self._local = threading.local()
        self._frames: list[Any] = []
        out = ffi.new("dtr_engine **")
        self._options = engine_options(
            heuristic, history_ops=history, dealloc=self._dealloc, **options
        )
        check(lib.dtr_engine_create(self._options, out))
        self.engine = out[0]
        check(lib.dtr_engine_connect(self.engine, toys.dtr_toy_table()))
        self.core = _lab.ffi.cast("const dtr_core *", lib.dtr_engine_core(self.engine))
        self.framework = toys.dtr_toy_create(self.core)
        check(lib.dtr_engine_add_pool(self.engine, *device, pool.handle))

    def keep_history(self, ops: int) -> None:
        self.configure(history_ops=ops)

    def configure(
        self, heuristic: str | heuristics.Heuristic | None = None, **options: Any
    ) -> None:
        """Changes some of the engine's options."""
        if heuristic is not None:
            given = engine_options(heuristic)  # it owns the struct
            self._options.heuristic = given.heuristic
        for name, value in options.items():
            setattr(self._options, name, value)
        check(lib.dtr_engine_configure(self.engine, self._options))

    # ---- memory ----

    def count(self, tensor: Tensor) -> int:
        """How many words of the tensor operators touch."""
        return tensor.words // self.grain

    def touched(self, memory: Any, tensor: Tensor) -> bytes:
        view = memoryview(memory)
        if self.grain == 1:
            return view.tobytes()
        return view.cast("Q")[: self.count(tensor) * self.grain : self.grain].tobytes()

    def write(self, tensor: Tensor, seed: bytes) -> None:
        words = memoryview(ffi.buffer(tensor.data, tensor.words * WORD))
        content = seed * self.count(tensor)
        if self.grain == 1:
            words[:] = content
        else:
            words.cast("Q")[: self.count(tensor) * self.grain : self.grain] = memoryview(
                content
            ).cast("Q")

    def _new(self, words: int, store: Store | None) -> Tensor:
        out = _lab.ffi.new("dtr_toy_tensor **")
        allocated(toys.dtr_toy_make, self.framework, *self.device, self.stream, INT64, words, out)
        return Tensor(self, out[0], store, 0, words)

    def _over(self, handle: Any, offset: int, words: int, store: Store | None = None) -> Tensor:
        return Tensor(self, toys.dtr_toy_over(handle, INT64, offset, words), store, offset, words)

    def view(self, base: Tensor, offset: int, words: int) -> Tensor:
        """A range of base's storage."""
        return self._over(base.handle, offset, words, base.store)

    def foreign(self, memory: Any, words: int) -> Any:
        """The pointer of a tensor over memory of the caller."""
        return toys.dtr_toy_from(self.framework, *self.device, memory, INT64, words)

    def replace_memory(self, tensor: Tensor) -> None:
        """Past the recorder."""
        allocated(toys.dtr_toy_replace_memory, tensor.pointer, self.stream)

    def unseen(self, words: int, seed: int = 0) -> Tensor:
        """A tensor made where the recorder does not look: a constant."""
        content = blake2b(b"%d" % seed, digest_size=WORD).digest()
        tensor = self._new(words, None)
        tensor.store = Store(words, content * self.count(tensor))
        self.write(tensor, content)
        return tensor

    # ---- recording (native/bridge/capture.cpp) ----

    @property
    def frame(self) -> Any:
        """The frame of this thread."""
        if not hasattr(self._local, "frame"):
            out = _lab.ffi.new("dtr_frame **")
            check(self.core.frame_create(self.core.engine, out))
            self._local.frame = out[0]
            self._frames.append(out[0])
        return self._local.frame

    @frame.setter
    def frame(self, frame: Any) -> None:
        """One that another thread used."""
        self._local.frame = frame

    def run(
        self,
        name: str,
        *arguments: Tensor | tuple[Tensor, int],
        results: Sequence[int] = (),
        parameter: Any = None,
        recomputable: bool = True,
        keeps_old: bool = False,
        copies: bool = False,
        fails: Callable[[Operator], None] = never,
    ) -> list[Tensor]:
        """Runs one operator; an argument is a tensor that is read, or a tensor and its use.

        Returns the new tensors. (The operator also returns those it overwrote, as add_ does.)
        """
        pairs = [a if isinstance(a, tuple) else (a, READ) for a in arguments]
        tensors = [tensor for tensor, _ in pairs]
        uses = tuple(use for _, use in pairs)
        operator = Operator(name, parameter, uses, tuple(results), fails)
        if recomputable and self.begins_at_rest():
            return self._run_at_rest(operator, tensors)
        frame = self.frame
        buffer = self.buffer(len(pairs))
        for i, (tensor, use) in enumerate(pairs):
            buffer[i] = tensor.number | use
        flags = RECOMPUTABLE if recomputable else 0
        flags |= lib.DTR_OP_KEEPS_OLD if keeps_old else 0
        flags |= lib.DTR_OP_COPIES if copies else 0
        self.drain()
        need = answer(self.core.op_begin(frame, len(pairs), flags, op_key(name)))
        started = False
        try:
            if need & lib.DTR_NEED_WORK:
                self._prepare(frame)
            started = True
            everything = self._execute(operator, tensors)
        except BaseException:
            self.core.op_abort(frame, started)
            raise
        new = everything[len(everything) - len(operator.results) :]
        buffer = self.buffer(len(everything))
        for i, result in enumerate(everything):
            buffer[i] = result.number
        closure = next(NUMBERS)
        self.closures[closure], OF_CLOSURES[closure] = operator, self
        op_id = self.core.op_end(
            frame, len(everything), flags, self.cost(operator, tensors), as_closure(closure)
        )
        if op_id <= 0:
            del self.closures[closure], OF_CLOSURES[closure]
        if op_id < 0:
            self.core.op_abort(frame, started)
            release(*new)
            answer(op_id)
        self._expect(operator, tensors, new)
        return new

    def _run_at_rest(self, operator: Operator, tensors: list[Tensor]) -> list[Tensor]:
        try:
            everything = self._execute(operator, tensors)
        finally:
            self.ends_at_rest()
        new = everything[len(everything) - len(operator.results) :]
        self._expect(operator, tensors, new)
        return new

    def begins_at_rest(self) -> bool:
        return self.core.op_begins_at_rest(self.core.engine) == 1

    def ends_at_rest(self) -> None:
        self.core.op_ended_at_rest(self.core.engine)

    def buffer(self, numbers: int) -> Any:
        return self.core.frame_buffer(self.frame, numbers)

    def cost(self, operator: Operator, tensors: list[Tensor]) -> int:
        """The cost of an operator in ns, the same in every run; MEASURED leaves it to the clock.

        Some operators cost less than those whose dead results "lazy" keeps, others more."""
        if self.price:
            return self.price(operator)
        return 40 * (100 + sum(tensor.words for tensor in tensors) + sum(operator.results))

    def one(self, name: str, *arguments: Any, words: int = 512, **others: Any) -> Tensor:
        """Runs an operator with one result."""
        return self.run(name, *arguments, results=[words], **others)[0]

    def _execute(self, operator: Operator, tensors: list[Tensor]) -> list[Tensor]:
        """The kernel. Returns the overwritten tensors, then the new ones."""
        written = operator.written(tensors)
        new: list[Tensor] = []
        try:
            # One at a time: those made before one that does not fit are released.
            for words in operator.results:
                new += [self._new(words, None)]
            contents = [
                tensor.bytes() if use & 3 in (READ, MUTATE) else b""
                for tensor, use in zip(tensors, operator.uses, strict=True)
            ]
            seeds = hashes(operator, contents, len(written) + len(new) + 1)
            for i, tensor in enumerate([*written, *new]):
                self.write(tensor, seeds[i])
                if i == 0:
                    operator.fails(operator)
            if not written and not new:
                operator.fails(operator)
            for tensor, use in zip(tensors, operator.uses, strict=True):
                if use & 3 == SCRATCH:
                    self.write(tensor, seeds[-1])
        except BaseException:
            for tensor in new:
                tensor.release()
            raise
        return [*written, *new]

    def _expect(self, operator: Operator, tensors: list[Tensor], new: list[Tensor]) -> None:
        """The same on what is expected."""
        contents = [tensor.expected() for tensor in tensors]
        for tensor in new:
            tensor.store = Store(tensor.words, bytes(self.count(tensor) * WORD))
        written = operator.written(tensors)
        seeds = hashes(operator, contents, len(written) + len(new) + 1)
        for tensor, seed in zip([*written, *new], seeds, strict=False):
            self._expect_words(tensor, seed)
        for tensor, use in zip(tensors, operator.uses, strict=True):
            if use & 3 == SCRATCH:
                self._expect_words(tensor, seeds[-1])

    def _expect_words(self, tensor: Tensor, seed: bytes) -> None:
        start, count = tensor.offset // self.grain, self.count(tensor)
        tensor.store.expected[start * WORD : (start + count) * WORD] = seed * count

    def drain(self) -> None:
        """Forgets the closures, of all toys, that nothing needs any more."""
        dropped = ffi.new("void *[64]")
        while count := toys.dtr_toy_dropped(dropped, 64):
            for i in range(count):
                number = int(ffi.cast("intptr_t", dropped[i]))
                del OF_CLOSURES.pop(number).closures[number]

    # ---- recomputing (native/bridge/repeat.h) ----

    def _prepare(self, frame: Any) -> None:
        with self._recompute_lock:
            while answer(self.core.op_prepare(frame)):
                self._rematerialize(frame)

    def materialize(self, tensor: Tensor) -> None:
        self._look()
        with self._recompute_lock:
            if answer(self.core.remat_want(self.frame, tensor.handle)):
                self._rematerialize(self.frame)

    def materialize_all(self) -> None:
        self._look()
        with self._recompute_lock:
            try:
                while answer(self.core.remat_want_any(self.frame)):
                    self._rematerialize(self.frame)
            except BaseException:
                self.core.remat_abort(self.frame)
                raise

    def _rematerialize(self, frame: Any) -> None:
        try:
            while answer(self.core.remat_next(frame)):
                number = int(ffi.cast("intptr_t", self.core.step_closure(frame)))
                self._step(frame, self.closures[number])
        except BaseException:
            self.core.remat_abort(frame)
            raise

    def _step(self, frame: Any, operator: Operator) -> None:
        self.recomputed.append(operator.name)
        mine: list[Tensor] = []
        try:
            tensors = self._rebuild(self.core.frame_step(frame, 0), mine)
            everything = self._execute(operator, tensors)
            mine += everything[len(everything) - len(operator.results) :]
            step = self.core.frame_step(frame, len(tensors) + len(everything))
            for i, tensor in enumerate([*tensors, *everything]):
                step[i] = tensor.number
            answer(self.core.remat_commit(frame, len(tensors), len(everything)))
        finally:
            for tensor in mine:
                tensor.release()

    def _rebuild(self, numbers: Any, mine: list[Tensor]) -> list[Tensor]:
        """The argument tensors of a step; all that it makes is also put into `mine`."""
        # The step's numbers may be moved by a call that asks for more: read them first.
        at = 1
        edges = []
        for _ in range(numbers[0]):
            edges.append((ffi.cast("void *", numbers[at]), numbers[at + 1]))
            at += 2
        count, at = numbers[at], at + 1
        descriptions = []
        for _ in range(count):
            head = ffi.unpack(numbers + at, 6)
            shape = ffi.unpack(numbers + at + 6, 2 * head[5]) if head[5] else []
            descriptions.append((*head, shape))
            at += 6 + 2 * head[5]
        storages = [self._storage(handle, copy, mine) for handle, copy in edges]
        tensors = []
        for use, edge, scalar_type, _, offset, ndim, shape in descriptions:
            assert use in (READ, MUTATE, WRITE_ONLY, SCRATCH, EMPTY)
            assert (scalar_type, ndim) == (INT64, 1)
            if edge < -1:
                mine.append(self._new(-edge // WORD, None))
                tensor = self._over(mine[-1].handle, offset, shape[0])
            elif edge < 0:
                tensor = self._new(shape[0], None)
            else:
                tensor = self._over(storages[edge].handle, offset, shape[0])
            mine.append(tensor)
            tensors.append(tensor)
        return tensors

    def _storage(self, handle: Any, copy: int, mine: list[Tensor]) -> Tensor:
        words = toys.dtr_toy_storage_bytes(handle) // WORD
        whole = self._over(handle, 0, words)
        mine.append(whole)
        if copy:
            source, whole = whole, self._new(words, None)
            mine.append(whole)
            ffi.memmove(whole.data, source.data, words * WORD)
        return whole

    # ---- by hand ----

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """While a graph is captured."""
        owner = ffi.new("dtr_capture_owner *")
        check(lib.dtr_begin_capture(self.engine, owner))
        try:
            yield
        finally:
            check(lib.dtr_end_capture(owner))

    def evict(self, tensor: Tensor) -> bool:
        self._look()
        return lib.dtr_evict(self.engine, tensor.handle) == 1

    def move(self, tensor: Tensor, begin: int = 0, end: int = 0) -> bool:
        """To a place outside of [begin, end)."""
        bounds = [ffi.cast("void *", address) for address in (begin, end)]
        done = lib.dtr_engine_relocate(self.engine, tensor.handle, *bounds)
        if done < 0:
            check(-done)
        return done == 1

    def move_some(self, seed: int, count: int) -> int:
        return move_some(self.engine, self.pool.handle, seed, count)

    def compact(self) -> int:
        moved_bytes = ffi.new("uint64_t *")
        check(lib.dtr_engine_compact(self.engine, self.pool.handle, moved_bytes))
        return moved_bytes[0]

    def resident(self, tensor: Tensor) -> bool:
        return lib.dtr_is_resident(self.engine, tensor.handle) == 1

    def pin(self, tensor: Tensor, escaped: bool = False) -> None:
        check(lib.dtr_pin(self.engine, tensor.pointer, int(escaped), 0))

    def unpin(self, tensor: Tensor) -> bool:
        return lib.dtr_unpin(self.engine, tensor.handle) == 1

    def content(self, tensor: Tensor) -> bytes:
        self.materialize(tensor)
        return tensor.bytes()

    # ---- checks ----

    def stats(self) -> Any:
        self._look()
        stats = ffi.new("dtr_engine_stats *")
        lib.dtr_engine_get_stats(self.engine, stats, ffi.NULL, 0)
        return stats

    def verify(self) -> None:
        check(lib.dtr_engine_check_invariants(self.engine))
        self.pool.verify()

    def _look(self) -> None:
        if self.verifies:
            self.verify()

    @contextmanager
    def no_failed_call(self):
        """Calls whose failures the engine swallows, as a deleter must, leave a message behind."""
        none = ffi.new("dtr_engine_options *")
        lib.dtr_engine_configure(self.engine, none)  # a message that no other call leaves
        text = ffi.string(lib.dtr_last_error())
        yield
        message = ffi.string(lib.dtr_last_error())
        assert message == text

    def evicted(self) -> list[Evicted]:
        """Those that live and can come back."""
        found = ffi.new("dtr_evicted[]", 64)
        count = lib.dtr_engine_get_evicted(self.engine, found, len(found))
        return [Evicted(*(getattr(of, name) for name in Evicted._fields)) for of in found[0:count]]

    def reset(self, lost: Sequence[int] = ()) -> None:
        self._look()
        check(lib.dtr_engine_reset(self.engine, list(lost), len(lost)))

    def finish(self) -> None:
        """Releases every tensor: the rules hold, and no record, closure or block is left; destroys
        all."""
        self._look()
        release(*self.held.values())
        self.verify()
        stats = self.stats()
        assert (stats.live_storages, stats.live_ops, stats.evicted_storages) == (0, 0, 0)
        assert (stats.kept_constant_bytes, stats.host_bytes) == (0, 0)
        self.drain()
        assert self.closures == {}
        assert self.pool.stats().live_blocks == 0
        self.close()
        self.pool.destroy()

    def close(self) -> None:
        """Destroys all but the pool; every tensor was released."""
        for frame in self._frames:
            self.core.frame_destroy(frame)
        self._frames.clear()
        assert self.stats().live_storages == 0
        self.reset()  # pins of what it never met
        assert toys.dtr_toy_destroy(self.framework) == 0
        check(lib.dtr_engine_destroy(self.engine))


def all_right(toy: Toy, *tensors: Tensor) -> bool:
    return all(toy.content(tensor) == tensor.expected() for tensor in tensors)


def release(*tensors: Tensor) -> None:
    """The framework lets go of them."""
    for tensor in tensors:
        tensor.release()


# ---- what tests do with it ----


class Failure(Exception):
    """An operator's own error."""


def fail(operator: Operator) -> None:
    raise Failure(operator.name)


def line(toy: Toy, *names: str, words: int = WORDS) -> list[Tensor]:
    """A constant, and what each operator makes of what stands before."""
    made = [toy.unseen(words)]
    for name in names:
        made.append(toy.one(name, made[-1], words=words))
    return made


def fan(toy: Toy, count: int, name: str = "f", words: int = WORDS) -> list[Tensor]:
    """A constant, and so many results of it."""
    made = [toy.unseen(words)]
    made += [toy.one(name, made[0], words=words, parameter=i) for i in range(count)]
    return made


def chain(toy: Toy, first: Tensor, length: int, words: int = WORDS) -> Tensor:
    """Operators one after another, of which only the last result is kept."""
    last = first
    for i in range(length):
        following = toy.one("link", last, words=words, parameter=i)
        if last is not first:
            last.release()
        last = following
    return last
