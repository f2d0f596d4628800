"""Operators that overwrite: versions, copies, and what becomes constant and stays."""

import pytest
from native_pool import lib
from toy import MUTATE, WORDS, WRITE_ONLY, fan, line


class TestMutation:
    def test_an_overwrite_of_everything_forgets_the_old_content(self, toy):
        x, y = line(toy, "f")
        toy.run("copy_", (y, WRITE_ONLY), x)
        assert toy.stats().live_ops == 1
        toy.evict(y)
        assert toy.content(y) == y.expected()
        assert toy.recomputed == ["copy_"]

    def test_an_overwrite_of_a_constant_in_parts_makes_it_recomputable(self, toy):
        x = toy.unseen(WORDS)
        y = toy.unseen(WORDS)
        left, right = toy.view(y, 0, WORDS // 2), toy.view(y, WORDS // 2, WORDS // 2)
        toy.run("copy_", (right, WRITE_ONLY), x)
        assert not toy.evict(y)
        other = toy.one("f", right)  # which is written
        toy.run("fill_", (left, WRITE_ONLY))
        assert toy.evict(y)
        assert other.comes_back()
        assert toy.recomputed == ["copy_", "f"]
        assert toy.content(y) == y.expected()
        assert toy.recomputed[2:] in (["fill_"], ["copy_", "fill_"])

    def test_a_copy_of_what_was_not_written_is_not_written(self, toy):
        x = toy.unseen(WORDS)
        quarters = [toy.view(x, WORDS // 4 * i, WORDS // 4) for i in range(4)]
        first, second, third, last = quarters
        toy.run("fill_", (first, WRITE_ONLY))
        toy.run("copy_", (second, WRITE_ONLY), third, copies=True)
        toy.run("copy_", (third, WRITE_ONLY), first, copies=True)
        toy.run("fill_", (last, WRITE_ONLY))
        assert not toy.evict(x)
        toy.run("copy_", (second, WRITE_ONLY), third, copies=True)
        assert toy.evict(x)


class TestKeepingWhatIsOverwritten:
    """DTR_OP_KEEPS_OLD: of a compiled graph that updates running statistics, say."""

    SMALL, LARGE = 512, 65536 // 8 + 512  # words

    def test_what_the_operator_gives_besides_can_be_computed_again(self, toy):
        x = toy.unseen(WORDS)
        running = toy.unseen(self.SMALL)
        first = toy.one("norm", x, (running, MUTATE), keeps_old=True)
        second = toy.one("norm", x, (running, MUTATE), keeps_old=True, parameter=2)
        for tensor in (first, second):
            assert tensor.comes_back()
            assert running.is_right()
        assert not toy.evict(running)

    def test_what_was_computed_from_the_old_content_is_still_evictable(self, toy):
        x, running = toy.unseen(WORDS), toy.unseen(self.SMALL)
        before = toy.one("scale", x, running)
        assert toy.evict(before)
        toy.one("norm", x, (running, MUTATE), keeps_old=True)
        assert before.evicted
        assert toy.content(before) == before.expected()

    def test_what_is_large_is_not_copied_and_makes_constants(self, toy):
        x, running = toy.unseen(WORDS), toy.unseen(self.LARGE)
        result = toy.one("norm", x, (running, MUTATE), keeps_old=True)
        assert not toy.evict(result)
        assert toy.stats().kept_constant_bytes == 0

    @pytest.mark.parametrize("started", [False, True])
    def test_an_operator_that_fails_leaves_no_copy(self, toy, started):
        _x, running = toy.unseen(WORDS), toy.unseen(self.SMALL)
        blocks = toy.pool.stats().live_blocks
        buffer = toy.buffer(1)
        buffer[0] = running.number | MUTATE
        flags = lib.DTR_OP_RECOMPUTABLE | lib.DTR_OP_KEEPS_OLD
        assert toy.core.op_begin(toy.frame, 1, flags, 1) == 0
        toy.core.op_abort(toy.frame, started)
        assert toy.pool.stats().live_blocks == blocks


class TestConstants:
    def test_a_constant_that_is_overwritten_settles_its_dependents_first(self, toy):
        weight, resident, evicted, dead = fan(toy, 3)
        below = toy.one("g", dead)
        dead.release()
        assert toy.evict(evicted)
        assert toy.evict(below)
        toy.run("update_", (weight, MUTATE))
        assert sorted(toy.recomputed) == ["f", "f", "g"]
        for tensor in (weight, resident, evicted, below):
            assert tensor.is_right()  # the evicted ones were brought back
            assert not toy.evict(tensor)  # and all are constants
        assert toy.stats().live_ops == 0

    def test_a_resident_dependent_ends_the_settling(self, toy):
        weight, y, z = line(toy, "f", "g")
        toy.run("update_", (weight, MUTATE))
        assert not toy.evict(y)
        assert z.comes_back()
        assert toy.recomputed == ["g"]

    def test_tiny_results_are_constants(self, toy):
        x = toy.unseen(WORDS)
        mean = toy.one("mean", x, words=1)
        assert not toy.evict(mean)
        assert toy.stats().live_ops == 0


class TestPins:
    def test_inputs_of_a_running_operator_stay(self, make_toy):
        toy = make_toy(pages=8)
        x, *inputs = fan(toy, 4)
        for i in range(4):
            toy.one("g", x, parameter=i)
        seen = []

        def evict_inputs(operator):
            seen.extend(toy.evict(tensor) for tensor in inputs)

        result = toy.one("join", *inputs, words=3 * WORDS, fails=evict_inputs)
        assert seen == [False] * 4
        assert result.is_right()
