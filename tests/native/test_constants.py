"""What stays in memory: constants and pinned storages."""

from toy import MUTATE, WORDS, line


class TestConstants:
    def test_a_constant_that_is_overwritten_settles_its_dependents_first(self, toy):
        weight = toy.unseen(WORDS)
        resident, evicted, dead = (toy.one("f", weight, parameter=i) for i in range(3))
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
        x = toy.unseen(WORDS)
        inputs = [toy.one("f", x, parameter=i) for i in range(4)]
        for i in range(4):
            toy.one("g", x, parameter=i)
        seen = []

        def evict_inputs(operator):
            seen.extend(toy.evict(tensor) for tensor in inputs)

        result = toy.one("join", *inputs, words=3 * WORDS, fails=evict_inputs)
        assert seen == [False] * 4
        assert result.is_right()
