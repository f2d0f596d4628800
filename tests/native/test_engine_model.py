"""Random jobs on engine and pool against a plain model. Needs the native build and g++.

The model is what a framework without eviction would hold: the tensors that live and their
contents. Hypothesis prints a failing run as a list of rule calls; keep it as a named test below.
"""

import itertools
import sys
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run
from native_fixtures import OUT_OF_MEMORY, UNKNOWN, few_or_many
from native_pool import NO_LIMIT, DriverFailed, NativePool, OutOfMemory, lib
from toy import CONSTANT, DEALLOCS, MUTATE, SCRATCH, WRITE_ONLY, Failure, Toy, fail

from dtr_alloc.simulation.presets import PRESETS

INDEX = st.integers(0, 99)
SIZE = st.sampled_from([2, 3, 4, 2, 3, 1, 0])  # tiny ones are constants, and seldom
SOME = st.lists(INDEX, max_size=2)
MOSTLY = st.integers(0, 7).map(lambda n: n < 7)


def rule_of_tensors(**strategies):
    """A rule that needs a tensor."""
    return lambda action: precondition(lambda self: self.tensors)(rule(**strategies)(action))


class FailingToy(Toy):
    """The toy whose recomputations can be made to fail, half way through their writes."""

    failing_step = 0  # the next step but so many fails; 0: none

    def _step(self, frame, operator):
        if self.failing_step:
            self.failing_step -= 1
            if self.failing_step == 0:
                operator = operator._replace(fails=fail)
        super()._step(frame, operator)


class EngineAgainstModel(RuleBasedStateMachine):
    """Every live tensor has the content that it would have without eviction."""

    driver = "host"
    device = (0, -1)
    chunk = 4096
    grain = 1
    sizes = (8, 128, 512, 700, 1536)  # words; the first are tiny, the second lie in slabs
    dealloc = "eager"
    rests = 0  # its recorder may, after so many operators
    fixed = 0  # as many addresses as the budget has bytes
    fake = None

    def __init__(self):
        super().__init__()
        if self.fake:
            self.fake.reset()
        self.budget = 16
        self.pool = NativePool(
            self.driver,
            budget=self.budget * self.chunk,
            reserve=1024 * self.chunk,
            fixed=self.fixed,
        )
        self.toy = FailingToy(
            self.pool,
            device=self.device,
            grain=self.grain,
            dealloc=self.dealloc,
            moving=1,
            contents=lib.DTR_CONTENTS_WHOLE,
            rest_after_ops=self.rests,
        )
        self.swaps = False  # contents may go to host memory
        self.tensors = []
        self.next_parameter = 0
        self.armed = False  # a driver call is going to fail
        for size in (2, 3):
            self.make_a_constant(size)
            self.compute_a_chain(size - 2, 3, size, False)

    # ---- help ----

    def pick(self, index):
        return self.tensors[index % len(self.tensors)]

    def parameter(self):
        self.next_parameter += 1
        return self.next_parameter

    @contextmanager
    def may_fail(self, limited=False):
        """An operation that may run into one of the prepared failures, which it survives."""
        failing = self.toy.failing_step
        try:
            yield
        except OutOfMemory:
            assert limited or self.budget is not None or self.armed
        except DriverFailed:
            assert self.armed
        except Failure:
            assert failing
        else:
            return
        self.disarm()

    def disarm(self):
        if self.fake:
            self.fake.fail_call(0, 0)
        self.armed = False
        self.toy.failing_step = 0

    # ---- operators ----

    @rule(size=SIZE)
    def make_a_constant(self, size):
        with self.may_fail():
            tensor = self.toy.unseen(self.sizes[size], seed=self.parameter())
            self.tensors.append(tensor)

    @rule_of_tensors(
        inputs=st.lists(INDEX, max_size=3),
        results=st.lists(SIZE, min_size=1, max_size=3),
        recomputable=MOSTLY,
    )
    def compute(self, inputs, results, recomputable):
        arguments = [self.pick(i) for i in inputs]
        self.call("compute", arguments, results, recomputable)

    @rule_of_tensors(index=INDEX, length=st.integers(2, 8), size=SIZE, in_place=st.booleans())
    def compute_a_chain(self, index, length, size, in_place):
        """Only the last result stays; what came before must be computed again for it."""
        for i in range(length):
            if not self.call("link", [self.pick(index if i == 0 else -1)], [size], True):
                return
            if in_place and not self.call("bend", [(self.tensors[-1], MUTATE)], [], True):
                return
            if i > 0:
                self.tensors.pop(-2).release()

    @rule_of_tensors(
        outputs=st.lists(INDEX, min_size=1, max_size=2),
        inputs=SOME,
        results=st.lists(SIZE, max_size=1),
        recomputable=MOSTLY,
        keeps_old=st.booleans(),
    )
    def overwrite(self, outputs, inputs, results, recomputable, keeps_old):
        """In place, on storages or on parts of them, aliased or not."""
        arguments = [(self.pick(i), MUTATE) for i in outputs]
        arguments += [self.pick(i) for i in inputs]
        self.call("overwrite", arguments, results, recomputable, keeps_old=keeps_old)

    @rule_of_tensors(tensor=INDEX, inputs=SOME)
    def fill(self, tensor, inputs):
        arguments = [(self.pick(tensor), WRITE_ONLY)]
        arguments += [self.pick(i) for i in inputs]
        self.call("fill", arguments, [], True)

    @rule_of_tensors(
        index=INDEX,
        inputs=st.lists(INDEX, min_size=1, max_size=4),
        uses=st.lists(st.sampled_from([WRITE_ONLY] * 4 + [MUTATE]), min_size=4, max_size=4),
        backward=st.booleans(),
    )
    def fill_in_parts(self, index, inputs, uses, backward):
        """All of a storage, one part after the other."""
        base = self.pick(index)
        grains = base.store.words // self.grain
        ends = [grains * i // len(inputs) for i in range(len(inputs) + 1)]
        parts = [(a, b) for a, b in itertools.pairwise(ends) if a < b]
        for (start, end), i, use in zip(
            parts[:: -1 if backward else 1], inputs, uses, strict=False
        ):
            part = self.toy.view(base, start * self.grain, (end - start) * self.grain)
            try:
                self.call("fill part", [(part, use), self.pick(i)], [], True)
            finally:
                part.release()

    @rule_of_tensors(hidden=INDEX, inputs=st.lists(INDEX, min_size=1, max_size=2), size=SIZE)
    def normalize(self, hidden, inputs, size):
        hidden = self.pick(hidden)
        inputs = [self.pick(i) for i in inputs]
        # Hidden state that the operator also reads is not hidden.
        if any(hidden.store is tensor.store for tensor in inputs):
            return
        self.call("normalize", [*inputs, (hidden, SCRATCH)], [size], True)

    @rule_of_tensors(weight=INDEX, inputs=SOME, size=SIZE)
    def use_a_parameter(self, weight, inputs, size):
        weight = self.pick(weight)
        arguments = [(weight, CONSTANT), *(self.pick(i) for i in inputs)]
        self.call_with_a_parameter("layer", weight, arguments, [size])

    @rule_of_tensors(weight=INDEX, gradient=INDEX)
    def update_a_parameter(self, weight, gradient):
        weight = self.pick(weight)
        arguments = [(weight, MUTATE | CONSTANT), self.pick(gradient)]
        self.call_with_a_parameter("update", weight, arguments, [])

    def call_with_a_parameter(self, name, weight, arguments, results):
        before = self.toy.stats()
        if not self.call(name, arguments, results, True):
            return
        # A recorder that rests sees no arguments, and forgets at first what it knows of them.
        stats = self.toy.stats()
        if (stats.rests, stats.unrecorded_ops) == (before.rests, before.unrecorded_ops):
            weight.store.parameter_since_rest = stats.rests

    def call(self, name, arguments, results, recomputable, **flags):
        sizes = [self.sizes[size] for size in results]
        with self.may_fail():
            for tensor in self.toy.run(
                name,
                *arguments,
                results=sizes,
                parameter=self.parameter(),
                recomputable=recomputable,
                **flags,
            ):
                self.tensors.append(tensor)
            return True
        return False

    @rule_of_tensors(tensor=INDEX, inputs=SOME, size=SIZE)
    def fail_in_an_operator(self, tensor, inputs, size):
        target = self.pick(tensor)
        arguments = [(target, MUTATE), *(self.pick(i) for i in inputs)]
        ran = []

        def hook(operator):
            ran.append(operator)
            raise Failure

        try:
            with self.may_fail():
                self.toy.run(
                    "fail",
                    *arguments,
                    results=[self.sizes[size]],
                    parameter=self.parameter(),
                    fails=hook,
                )
        except AssertionError:
            if not ran:
                raise
            self.disarm()
        if ran:
            # What it left there is what counts from now on.
            content = target.bytes()
            start = target.offset // self.grain * 8
            target.store.expected[start : start + len(content)] = content

    # ---- tensors ----

    @rule_of_tensors(index=INDEX, start=st.floats(0, 1), end=st.floats(0, 1))
    def look_at_a_part(self, index, start, end):
        base = self.pick(index)
        grains = base.store.words // self.grain
        start, end = sorted((int(start * (grains - 1)), int(end * (grains - 1))))
        self.tensors.append(self.toy.view(base, start * self.grain, (end - start + 1) * self.grain))

    @rule_of_tensors(index=INDEX)
    def release(self, index):
        tensor = self.tensors.pop(index % len(self.tensors))
        if self.armed:
            tensor.release()
        else:
            with self.toy.no_failed_call():
                tensor.release()

    @rule_of_tensors(index=INDEX)
    def evict(self, index):
        tensor = self.pick(index)
        was_resident = not tensor.evicted
        if self.toy.evict(tensor):
            assert was_resident
            assert tensor.evicted

    @rule_of_tensors(index=INDEX)
    def move(self, index):
        tensor = self.pick(index)
        before = tensor.data
        with self.may_fail():
            moved = self.toy.move(tensor)
            assert moved == (tensor.data != before)
            if moved:
                assert not tensor.store.pins
                assert not tensor.store.given_away
        if not tensor.evicted:
            assert tensor.is_right()

    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 8))
    def move_some(self, seed, count):
        with self.may_fail():
            self.toy.move_some(seed, count)

    @rule()
    def compact(self):
        with self.may_fail():
            self.toy.compact()

    @rule_of_tensors(index=INDEX)
    def materialize(self, index):
        tensor = self.pick(index)
        with self.may_fail():
            self.toy.materialize(tensor)
            assert not tensor.evicted
            assert tensor.is_right()

    @rule()
    def materialize_all(self):
        """As disable() does."""
        with self.may_fail():
            self.toy.materialize_all()
            assert not any(tensor.evicted for tensor in self.tensors)

    @rule_of_tensors(index=INDEX, escaped=st.integers(0, 4).map(lambda n: n == 4))
    def pin(self, index, escaped):
        tensor = self.pick(index)
        with self.may_fail():
            self.toy.materialize(tensor)
            self.toy.pin(tensor, escaped)
            if escaped:
                tensor.store.escaped = tensor.store.given_away = True
            else:
                tensor.store.pins += 1

    @rule_of_tensors(index=INDEX)
    def unpin(self, index):
        store = self.pick(index).store
        assert self.toy.unpin(self.pick(index)) == (store.pins > 0)
        store.pins = max(store.pins - 1, 0)

    @rule_of_tensors(index=INDEX)
    def replace_memory(self, index):
        """Behind the recorder's back: what depends on the old content still gets it."""
        tensor = self.pick(index)
        with self.may_fail():
            self.toy.replace_memory(tensor)
            whole = self.toy.view(tensor, 0, tensor.store.words)
            seed = self.parameter().to_bytes(8, "little")
            self.toy.write(whole, seed)
            tensor.store.expected[:] = seed * self.toy.count(whole)
            tensor.store.escaped = False
            tensor.store.given_away = False
            tensor.store.parameter_since_rest = None
            whole.release()

    # ---- surroundings ----

    @initialize(swaps=st.booleans())
    def begin(self, swaps):
        """In half of the runs contents may go to host memory."""
        self.swaps = swaps
        self.toy.configure(swap_bytes=12 * self.chunk if swaps else 0)

    @precondition(lambda self: self.swaps)
    @rule(
        pages=st.sampled_from([0, 1, 4, 12, 1000]),
        speed=st.sampled_from([0, 1e3, 1e9, 1e15]),
        verify=st.sampled_from([0, 0, 1, 3]),
    )
    def swap_otherwise(self, pages, speed, verify):
        """Now and then there is too little of it."""
        self.toy.configure(
            swap_bytes=pages * self.chunk,
            swap_out_bytes_per_s=speed,
            swap_in_bytes_per_s=speed,
            verify=verify,
        )

    @rule(chunks=st.one_of(st.integers(6, 32), st.none()))
    def set_budget(self, chunks):
        with self.may_fail(limited=True):
            self.pool.set_budget(NO_LIMIT if chunks is None else chunks * self.chunk)
            self.budget = chunks

    @rule(ops=st.sampled_from([1, 3, 10, 1 << 30]))
    def keep_history(self, ops):
        self.toy.keep_history(ops)
        self.toy.drain()

    @rule(heuristic=st.sampled_from([*PRESETS, "c=ancestors,m=size+free,s=0.5,r=2"]))
    def choose_otherwise(self, heuristic):
        self.toy.configure(heuristic)

    @rule(n=st.integers(1, 4))
    def fail_a_recomputation(self, n):
        self.toy.failing_step = n

    @precondition(lambda self: self.fake)
    @rule(n=st.integers(1, 6), error=st.sampled_from([UNKNOWN, OUT_OF_MEMORY]))
    def fail_a_driver_call(self, n, error):
        self.fake.fail_call(n, error)
        self.armed = True

    # ---- what always holds ----

    @invariant()
    def rules_hold(self):
        self.toy.verify()
        stats = self.toy.stats()
        assert stats.unseen_writes == 0
        assert stats.clock_ns == 1 + stats.total_cost_ns + stats.recompute_cost_ns
        for tensor in self.tensors:
            assert self.toy.resident(tensor) != tensor.evicted
            if tensor.evicted:
                assert not tensor.store.pins
                if not self.swaps:
                    assert not tensor.store.escaped
                    assert tensor.store.parameter_since_rest != stats.rests
            else:
                assert tensor.is_right()
        if self.fake:
            assert self.fake.violations() == []

    def teardown(self):
        self.disarm()
        if isinstance(sys.exc_info()[1], Exception):
            self.let_go_of_everything()
            return
        for tensor in self.tensors:
            with self.toy.no_failed_call():
                tensor.release()
        self.toy.finish()
        if self.fake:
            assert self.fake.leaks() == 0

    def let_go_of_everything(self):
        """After a failure, which it must not hide."""
        with suppress(Exception):
            for tensor in self.tensors:
                tensor.release()
            self.toy.close()
            self.pool.destroy()


SETTINGS = settings(stateful_step_count=50, suppress_health_check=list(HealthCheck))


# Memory of the stand-in for libcuda, whose calls fail at will, copies to the host among them: a
# content stays where it was then.
ON_CUDA = {
    "driver": "cuda",
    "device": (1, 0),
    "chunk": 2 << 20,
    "grain": 1024,
    "sizes": (1024, 8192, 65536, 262144, 300 * 1024),
}
MACHINES = {
    **{f"host, {dealloc}": {"dealloc": dealloc} for dealloc in DEALLOCS},
    **{f"cuda, {dealloc}": ON_CUDA | {"dealloc": dealloc} for dealloc in DEALLOCS},
    # Where holes do not come together by themselves, so that moves make room.
    "host, fixed": {"fixed": 1},
    "host, resting": {"rests": 2},
}


def machine(name, fake_cuda):
    fake = {"fake": fake_cuda} if name.startswith("cuda") else {}
    return type("Machine", (EngineAgainstModel,), MACHINES[name] | fake)


@few_or_many(20, 200)
@pytest.mark.parametrize("name", MACHINES)
def test_jobs_agree_with_the_model(name, fake_cuda, examples):
    run(machine(name, fake_cuda), settings=settings(SETTINGS, max_examples=examples))


def test_times_that_an_aborted_call_read_are_not_for_the_next(fake_cuda):
    """Which has no inputs, and so no device."""
    job = machine("cuda, eager", fake_cuda)()
    job.begin(swaps=False)
    job.normalize(hidden=0, inputs=[1], size=2)
    job.move(index=0)
    for _ in range(3):
        job.fill(inputs=[], tensor=0)
    job.normalize(hidden=0, inputs=[1], size=2)
    job.overwrite(inputs=[], outputs=[0], recomputable=True, results=[], keeps_old=False)
    job.use_a_parameter(inputs=[], size=2, weight=0)
    job.overwrite(inputs=[], outputs=[0], recomputable=True, results=[], keeps_old=False)
    job.compute(inputs=[0], recomputable=True, results=[2])
    job.fail_in_an_operator(inputs=[], size=2, tensor=0)
    job.compute(inputs=[], recomputable=True, results=[2])
    job.rules_hold()
    job.teardown()
