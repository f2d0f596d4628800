"""What the engine chooses to evict, under every heuristic.

check_invariants() compares, in every step, each cached sum with a fresh walk and each bound with
the score, and in every fourth the search with brute force (native/policy/victim_search.cpp).
"""

import itertools
import math
import random
import time
from collections import Counter

import pytest
from native_fixtures import SANITIZERS, cpp_program
from native_pool import FREE, IN_USE, NativePool, OutOfMemory, WrongState, ffi, lib
from toy import CONSTANT, MUTATE, PAGE, SCRATCH, WORDS, WRITE_ONLY, fan, release

from dtr_alloc import heuristics
from dtr_alloc.heuristics import COSTS, SIZES
from dtr_alloc.simulation.presets import PRESETS

SCORES = [name for name in PRESETS if PRESETS[name].select == "score"]
SHARES = (0, 0.5, 1)
HISTORY = 60  # operators: what is deeper is slow to bring back under heuristics that thrash


class Program:
    """Random operators on random tensors, evicted and released at random; the same for a seed."""

    def __init__(self, toy, seed, check_every=1):
        self.toy = toy
        toy.verifies = False  # check() does
        self.random = random.Random(seed)
        self.check_every = check_every
        self.tensors = [toy.unseen(WORDS, seed=i) for i in range(3)]
        self.steps = 0

    def some(self, most):
        return self.random.sample(self.tensors, self.random.randint(1, most))

    def sizes(self):
        return [
            self.random.choice([40, 256, WORDS, WORDS, 2 * WORDS, 3 * WORDS])
            for _ in range(self.random.choice([1, 1, 1, 2]))
        ]

    def step(self):
        toy, choice = self.toy, self.random.random()
        parameter = self.steps = self.steps + 1
        try:
            if choice < 0.55:
                inputs = self.some(3)
                self.tensors += toy.run("f", *inputs, results=self.sizes(), parameter=parameter)
            elif choice < 0.65:
                first, *others = self.some(3)
                uses = [(first, self.random.choice([MUTATE, WRITE_ONLY])), *others]
                toy.run("mutate", *uses, parameter=parameter)
            elif choice < 0.68:
                first, *others = self.some(3)
                uses = [*others, (first, SCRATCH)] if others else [(first, MUTATE)]
                self.tensors += toy.run("norm", *uses, results=self.sizes(), parameter=parameter)
            elif choice < 0.69:
                toy.run("update", (self.some(1)[0], MUTATE | CONSTANT), parameter=parameter)
            elif choice < 0.70:
                use = (self.some(1)[0], MUTATE)
                toy.run("receive", use, parameter=parameter, recomputable=False)
            elif choice < 0.73:
                tensor = self.some(1)[0]
                toy.materialize(tensor)
                toy.pin(tensor)
                self.check()
                assert toy.unpin(tensor)
            elif choice < 0.80:
                toy.evict(self.some(1)[0])
            elif choice < 0.84:
                toy.materialize(self.some(1)[0])
            elif choice < 0.86:
                whole = self.some(1)[0]
                self.tensors.append(toy.view(whole, 0, max(1, whole.words // 2)))
            elif len(self.tensors) > 4:
                gone = self.tensors.pop(self.random.randrange(len(self.tensors)))
                gone.release()
        except OutOfMemory:
            if len(self.tensors) > 4:
                self.tensors.pop(self.random.randrange(len(self.tensors))).release()
        if len(self.tensors) > 40:
            self.tensors.pop(self.random.randrange(len(self.tensors))).release()
        if self.steps % self.check_every == 0:
            self.check()

    def check(self):
        self.toy.verify()

    def run(self, steps):
        for _ in range(steps):
            self.step()
        return self

    def end(self):
        for tensor in self.tensors:
            if not tensor.evicted:
                assert tensor.is_right()
            tensor.release()


def combinations():
    for cost, size, share in itertools.product(COSTS, SIZES, SHARES):
        factor = 1.5 if share in (0.5, 1) else 1
        yield f"c={cost},m={size},s={share},r={factor}"


class TestExactness:
    @pytest.mark.parametrize("heuristic", [*combinations()])
    def test_the_search_finds_the_least_score_of_all(self, make_toy, heuristic):
        toy = make_toy(pages=40, heuristic=heuristic, history=HISTORY)
        program = Program(toy, heuristic).run(150)
        assert toy.stats().evictions > 20
        assert toy.stats().rematerializations > 0
        program.end()

    @pytest.mark.parametrize("heuristic", [*SCORES, "c=ancestors,m=size+free,s=0.7,r=2"])
    def test_bounds_may_age_over_many_steps(self, make_toy, heuristic):
        toy = make_toy(pages=60, heuristic=heuristic, history=HISTORY)
        program = Program(toy, 1, check_every=61).run(800)
        assert toy.stats().rematerializations > 50
        program.end()

    def test_what_a_heuristic_needs_is_built_when_it_is_chosen(self, make_toy):
        toy = make_toy(pages=40, heuristic="lru", history=HISTORY)
        program = Program(toy, 11)
        names = random.Random(3).choices([*PRESETS, *combinations()], k=60)
        for name in names:
            toy.configure(name)
            toy.verify()
            program.run(8)
        assert toy.stats().evictions > 50
        program.end()

    @pytest.mark.parametrize("heuristic", ["dtr-full", "msps", "dtr-eqclass", "lru"])
    def test_long_chains_are_walked_once_not_once_for_each_eviction(self, make_toy, heuristic):
        toy = make_toy(pages=64, heuristic=heuristic, room=lib.DTR_ROOM_SINGLE)
        links = [toy.unseen(128)]
        for i in range(3000):
            links.append(toy.one("link", links[-1], words=128, parameter=i))
        last = links.pop()
        before = toy.stats().storage_accesses
        release(*links[1:])
        for _ in range(3):
            assert toy.evict(last)
            toy.materialize(last)
        assert toy.stats().storage_accesses - before < 1_000_000  # 9 million and more if quadratic

    def test_a_search_walks_a_long_chain_once_not_once_for_each_candidate(self, make_toy):
        """What is kept of each link would be computed from all links before it."""
        toy = make_toy(pages=500, heuristic="marginal", room=lib.DTR_ROOM_SINGLE)
        link, kept = toy.unseen(WORDS), []
        for i in range(1000):
            following = toy.one("link", link, words=8 * WORDS, parameter=i)
            link.release()
            link = following
            kept.append(toy.one("keep", link, words=WORDS, parameter=i))
        stats = toy.stats()
        assert stats.searches > 500
        assert stats.storage_accesses / stats.searches < 200  # 756 if each walks by itself


def test_the_pool_knows_the_free_space_beside_a_block():
    rng = random.Random(4)
    with NativePool("host", budget=400 * PAGE) as pool:
        blocks = []
        for _ in range(300):
            if blocks and rng.random() < 0.45:
                pool.free(blocks.pop(rng.randrange(len(blocks))))
            else:
                blocks.append(pool.allocate(rng.choice([64, 700, 3000, PAGE, 3 * PAGE])))
            expected = Counter()
            snapshot = [block for block in pool.snapshot() if not block.is_small]
            for one, other in itertools.pairwise(snapshot):
                if one.state == FREE and other.state == IN_USE:
                    expected[other.address] += one.size_bytes
                if one.state == IN_USE and other.state == FREE:
                    expected[one.address] += other.size_bytes
            for block in pool.snapshot():
                # The slabs' region begins where that of the large blocks ends.
                free_bytes = 0 if block.is_small else expected[block.address]
                found = lib.dtr_pool_free_beside(pool.handle, ffi.cast("void *", block.address))
                assert found == (free_bytes if block.state == IN_USE else 0)
            unused = lib.dtr_pool_unused_bytes(pool.handle)
            stats = pool.stats()
            assert unused == stats.budget_bytes - stats.allocated_bytes


class TestPresets:
    """Each in a scene where it must choose what no other part would."""

    def evicted_first(self, toy, *tensors):
        """Which one goes when one must; the others are right where they were."""
        free = toy.pool.stats().budget_bytes - toy.pool.stats().allocated_bytes
        assert not any(tensor.evicted for tensor in tensors)
        filler = toy.unseen(free // 8 // WORDS * WORDS) if free >= PAGE else None
        extra = toy.unseen(WORDS)
        gone = [tensor.evicted for tensor in tensors]
        release(extra, *([filler] if filler else []))
        assert sum(gone) == 1
        return gone.index(True)

    def test_lru_takes_what_was_used_longest_ago(self, make_toy):
        toy = make_toy(pages=16, heuristic="lru", room=lib.DTR_ROOM_SINGLE)
        _, a, b, c = fan(toy, 3)
        release(toy.one("g", a, words=8))
        assert self.evicted_first(toy, a, b, c) == 1

    def test_largest_takes_the_largest(self, make_toy):
        toy = make_toy(pages=16, heuristic="largest")
        x = toy.unseen(WORDS)
        a, b, c = (toy.one("f", x, words=n * WORDS, parameter=n) for n in (1, 3, 2))
        assert self.evicted_first(toy, a, b, c) == 1

    def test_equal_scores_are_for_the_oldest(self, make_toy):
        toy = make_toy(pages=16, heuristic="c=none,m=none,s=0")
        _, *tensors = fan(toy, 3)
        assert self.evicted_first(toy, *tensors) == 0

    def test_free_bytes_beside_a_block_count(self, make_toy):
        """A small block between two holes frees more than a larger one among others."""
        toy = make_toy(pages=24, heuristic="c=none,m=size+free,s=0")
        x = toy.unseen(WORDS)
        row = [toy.one("f", x, words=n * WORDS, parameter=n) for n in (4, 2, 5, 3)]
        toy.unseen(WORDS)  # between them and the free space behind all
        release(row[0], row[2])
        toy.unseen(18 * WORDS)
        assert [row[1].evicted, row[3].evicted] == [True, False]

    def test_recomputations_weigh(self, make_toy):
        toy = make_toy(pages=16, heuristic="c=none,m=none,s=0,r=2")
        _, a, b = fan(toy, 2)
        toy.evict(a)
        toy.materialize(a)
        assert self.evicted_first(toy, a, b) == 1

    def test_random_is_uniform_and_the_same_for_a_seed(self, make_toy):
        def choices(rounds):
            toy = make_toy(pages=16, heuristic="random")
            x, *tensors = fan(toy, 5)
            toy.pin(tensors[2])
            chosen = []
            for _ in range(rounds):
                chosen.append(self.evicted_first(toy, *tensors))
                toy.materialize(tensors[chosen[-1]])
            toy.unpin(tensors[2])
            release(x, *tensors)
            return chosen

        counts = Counter(choices(800))
        assert counts.keys() == {0, 1, 3, 4}
        assert all(140 < count < 260 for count in counts.values())
        assert choices(40) == choices(40)


class TestCounters:
    def test_only_needed_metadata_is_maintained(self, make_toy):
        """lru, largest, random and local scores visit nothing but what they evaluate."""
        accesses = {}
        for name in PRESETS:
            room = PRESETS[name].room_number()
            toy = make_toy(pages=40, heuristic=name, history=HISTORY, room=room)
            program = Program(toy, 3, check_every=10**9).run(400)
            stats = toy.stats()
            accesses[name] = stats.storage_accesses - stats.evaluations
            assert stats.evaluations >= stats.searches - 20
            program.end()
        for name in ("lru", "largest", "random", "dtr-local"):
            assert accesses[name] == 0, name
        for name in ("dtr-full", "dtr-eqclass", "msps", "estar", "megengine", "coop"):
            assert accesses[name] > 0, name

    def test_a_search_evaluates_a_few_candidates_only(self, make_toy):
        toy = make_toy(pages=1100, heuristic="dtr-eqclass")
        x = toy.unseen(128)
        for i in range(1200):
            toy.one("f", x, words=WORDS, parameter=i)
        stats = toy.stats()
        assert stats.evictions > 100
        assert stats.evaluations / stats.searches < 40


class Scores:
    """A callback heuristic: what it was asked, and a function that answers."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []
        self.pointer = ffi.callback("dtr_score_fn", self.call, error=1)

    def call(self, context, candidates, count, scores, message, capacity):
        self.asked.append({candidates[i].id: candidates[i].size_bytes for i in range(count)})
        for i in range(count):
            scores[i] = self.answer(candidates[i])
        return 0


@pytest.mark.filterwarnings("ignore:Exception ignored from cffi callback")
class TestCallback:
    @pytest.fixture
    def make(self, make_toy):
        def make(answer, pages=16, **options):
            self.scores = Scores(answer)
            toy = make_toy(pages=pages, history=1000)
            toy.configure(
                heuristic=heuristics.Heuristic("mine", select="callback", score=answer),
                score=self.scores.pointer,
                **options,
            )
            return toy

        return make

    def test_the_smallest_answer_is_evicted_and_infinity_is_last(self, make):
        toy = make(lambda candidate: math.inf if candidate.size_bytes == PAGE else -1.0)
        x, *small = fan(toy, 2)
        large = toy.one("f", x, words=2 * WORDS)
        toy.unseen(12 * WORDS)
        assert [large.evicted, *(tensor.evicted for tensor in small)] == [True, False, False]
        toy.unseen(2 * WORDS)
        assert [tensor.evicted for tensor in small] == [True, False]  # the oldest of equals

    def test_searches_are_measured_by_the_processor(self, make):
        """Another program that has the processor meanwhile is no cost of a search."""
        toy = make(lambda candidate: time.sleep(0.05) or 1.0)
        fan(toy, 10)
        toy.unseen(10 * WORDS)
        stats = toy.stats()
        assert stats.searches > 3
        assert 0 < stats.search_ns < 50e6 * stats.searches

    def test_it_is_told_what_the_graph_says(self, make):
        """Sums by fresh walks over the same program are compared in check_invariants()."""
        seen = []

        def answer(candidate):
            seen.append(candidate.ancestors_ns + candidate.descendants_ns)
            assert candidate.component_ns >= 0
            assert candidate.staleness_ns >= 0
            assert candidate.size_bytes > 0
            cost = candidate.cost_ns + seen[-1]
            return cost / candidate.size_bytes / max(candidate.staleness_ns, 1)

        toy = make(answer, pages=40)
        toy.keep_history(HISTORY)
        Program(toy, 7).run(250).end()
        assert any(seen)
        assert toy.stats().evictions > 20

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (lambda candidate: math.nan, "gave NaN for storage"),
            (lambda candidate: 1 / 0, "the heuristic's callback failed"),
        ],
    )
    def test_a_failure_fails_the_allocation_and_nothing_else(self, make, capsys, answer, message):
        toy = make(answer)
        x, *_ = fan(toy, 10)
        before = ffi.buffer(toy.pool.stats())[:]
        with pytest.raises(WrongState, match=message):
            toy.one("f", x, words=9 * WORDS)
        with pytest.raises(WrongState, match=message):
            toy.pool.set_budget(4 * PAGE)
        assert ffi.buffer(toy.pool.stats())[:] == before
        assert toy.stats().evictions == 0
        toy.verify()
        toy.configure("lru")
        release(toy.one("f", x, words=9 * WORDS))
        assert toy.stats().evictions > 0

    def test_what_dies_while_it_answers_is_not_evicted(self, make):
        doomed = []

        def answer(candidate):
            while doomed:
                doomed.pop().release()
            return candidate.id  # the oldest, and it is gone

        toy = make(answer)
        _, *tensors = fan(toy, 6)
        doomed.append(tensors.pop(0))
        toy.unseen(10 * WORDS)
        assert [tensor.evicted for tensor in tensors].count(True) == 1
        assert tensors[0].evicted

    def test_it_is_asked_again_if_all_it_knew_are_gone(self, make):
        toy = make(lambda candidate: self.swap() or 1.0)
        x = toy.unseen(WORDS)
        tensors = [toy.one("f", x, parameter=0)]

        def swap():
            if len(self.scores.asked) == 1:
                tensors.pop().release()
                tensors.append(toy.one("f", x, parameter=1))

        self.swap = swap
        toy.unseen(15 * WORDS)
        assert len(self.scores.asked) == 2
        assert tensors[0].evicted

    def test_memory_of_its_own_must_fit(self, make):
        toy = make(lambda candidate: release(toy.unseen(9 * WORDS)) or 1.0)
        x, *_ = fan(toy, 8)
        with pytest.raises(WrongState, match="callback failed"):
            toy.one("f", x, words=8 * WORDS)
        toy.configure("lru")


# ---- Evicted components (native/policy/component.h) against brute force. Needs g++ ----


def test_random_merges_agree_with_brute_force_and_leave_no_node(tmp_path):
    program = cpp_program(tmp_path, "tests/native/random_components.cpp", flags=SANITIZERS)
    for seed in range(5):
        kind, nodes, merges = program(seed, 1000).split()
        assert kind == "ok"
        assert min(int(nodes), int(merges)) > 100
