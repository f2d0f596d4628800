"""Contents leave memory to make room, and operators bring them back."""

import pytest
from native_pool import WrongState
from toy import WORDS, Toy, chain, fan, line, release


class TestMakingRoom:
    def test_what_comes_back_once_more_is_counted_apart(self, make_toy):
        toy = make_toy(pages=8)
        _, result = line(toy, "f")
        for times in range(4):
            stats = toy.stats()
            first = min(times, 1) * stats.total_cost_ns
            assert (stats.recompute_cost_ns, stats.twice_cost_ns) == (
                times * stats.total_cost_ns,
                times * stats.total_cost_ns - first,
            )
            assert result.comes_back()

    def test_chains_of_20000_operators_rematerialize_without_recursion(self, make_toy):
        toy = make_toy(pages=64)
        x = toy.unseen(128)
        # Kept while it grows: a dead history that outweighs its storage would be cut.
        links = [x]
        for i in range(20_000):
            links.append(toy.one("link", links[-1], words=128, parameter=i))
        last = links.pop()
        release(*links[1:])
        assert toy.evict(last)
        assert toy.stats().evicted_storages == 20_000
        assert toy.content(last) == last.expected()
        assert len(toy.recomputed) == 20_000

    def test_a_history_that_outweighs_its_storage_is_cut(self, make_toy):
        """A running average does not keep its whole past: its present becomes a constant."""
        toy = make_toy(pages=64)
        x = toy.unseen(128)
        last = chain(toy, x, 1_000, words=128)
        assert toy.stats().live_ops <= 64 + 7
        assert toy.content(last) == last.expected()


class TestSeveralResults:
    def test_all_evicted_results_come_back_and_the_others_are_freed_at_once(self, toy):
        x = toy.unseen(WORDS)
        *parts, dead = toy.run("split", x, results=[WORDS] * 5)
        for part in parts[1:]:
            assert toy.evict(part)
        dead.release()
        kept = toy.pool.stats().live_blocks
        assert toy.content(parts[2]) == parts[2].expected()
        assert toy.recomputed == ["split"]
        assert toy.pool.stats().live_blocks == kept + 3
        for part in parts:
            assert part.is_right()


class TestHistory:
    def test_an_evicted_storage_beyond_the_limit_is_brought_back(self, make_toy):
        toy = make_toy(history=10)
        x, old = line(toy, "f")
        assert toy.evict(old)
        for i in range(12):
            toy.one("g", x, parameter=i)
        assert not old.evicted
        assert not toy.evict(old)
        assert toy.stats().live_ops <= 11


def test_an_input_that_dies_after_the_step_was_described_is_held_for_it(make_toy):
    """As another thread may let go of it."""
    toy = make_toy(pages=8)
    _, y, z = line(toy, "f", "g")
    assert toy.evict(z)
    rebuild = toy._rebuild

    def rebuild_later(numbers, mine):
        y.release()
        toy.unseen(6 * WORDS).release()  # which would take its memory
        return rebuild(numbers, mine)

    toy._rebuild = rebuild_later
    toy.materialize(z)
    assert toy.recomputed == ["g"]


# ---- Whether a rematerialization gives the bytes that were evicted (native/graph/verifier.h) ----


class Impure(Toy):
    """An operator that is called impure gives another result each time from some time on."""

    is_impure = False

    def _execute(self, operator, tensors):
        if self.is_impure and operator.name == "impure":
            self.count_of_runs = getattr(self, "count_of_runs", 0) + 1
            operator = operator._replace(parameter=self.count_of_runs)
        return super()._execute(operator, tensors)


def test_a_result_that_differs_fails_the_rematerialization_and_stays_evicted(make_toy):
    toy = make_toy(kind=Impure, verify=1)
    _, x = line(toy, "impure")
    toy.evict(x)
    toy.is_impure = True
    with pytest.raises(WrongState, match=r"op \d+ .* of the 4096 bytes of storage \d+ .* offset 0"):
        toy.materialize(x)
    assert not toy.resident(x)
    toy.is_impure = False
    assert toy.content(x) == x.expected()


def test_only_each_nth_eviction_keeps_a_copy(make_toy):
    toy = make_toy(verify=3)
    _, *results = fan(toy, 7)
    for result in results:
        assert toy.evict(result)
    for result in results:
        toy.materialize(result)
        result.release()
    assert toy.stats().verified == 2
