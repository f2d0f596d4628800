"""What stays in memory: constants and pinned storages."""

from toy import CONSTANT, MUTATE, WORDS, line, release


class TestConstants:
    def test_parameters_are_never_evicted(self, make_toy):
        toy = make_toy(pages=8)
        _, weight = line(toy, "init")
        for i in range(20):
            toy.one("f", (weight, CONSTANT), parameter=i)
        assert not weight.evicted
        assert not toy.evict(weight)

    def test_a_constant_that_is_overwritten_settles_its_dependents_first(self, toy):
        weight = toy.unseen(WORDS)
        resident, evicted, dead = (toy.one("f", weight, parameter=i) for i in range(3))
        below = toy.one("g", dead)
        dead.release()
        assert toy.evict(evicted)
        assert toy.evict(below)
        toy.run("update_", (weight, MUTATE))
        toy.verify()
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

    def test_a_parameter_that_was_evicted_comes_back_and_stays(self, toy):
        _, weight = line(toy, "init")
        assert toy.evict(weight)
        toy.one("f", (weight, CONSTANT))
        assert weight.is_right()
        assert not toy.evict(weight)

    def test_an_update_that_also_reads_a_dependent_works(self, make_toy):
        """As an optimizer does: the gradient depends on the weight that it changes."""
        toy = make_toy(pages=16)
        weight = toy.unseen(WORDS)
        for _ in range(5):
            y = toy.one("forward", (weight, CONSTANT))
            gradient = toy.one("backward", y, (weight, CONSTANT))
            toy.evict(gradient)
            toy.evict(y)
            toy.run("step_", (weight, MUTATE | CONSTANT), gradient)
            assert weight.is_right()
            assert toy.content(y) == y.expected()
            release(y, gradient)


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

    def test_pinned_storages_stay_until_unpinned_as_often(self, make_toy):
        toy = make_toy(pages=8)
        x, y = line(toy, "f")
        toy.pin(y)
        toy.pin(y)
        for i in range(20):
            toy.one("g", x, parameter=i)
        assert not y.evicted
        assert not toy.evict(y)
        assert toy.unpin(y)
        assert not toy.evict(y)
        assert toy.unpin(y)
        assert not toy.unpin(y)
        assert toy.evict(y)

    def test_a_pin_follows_the_buffer_to_its_next_version(self, toy):
        _, y = line(toy, "f")
        toy.pin(y)
        toy.run("add_", (y, MUTATE))
        assert not toy.evict(y)
        assert toy.unpin(y)
        assert toy.evict(y)

    def test_an_escaped_storage_is_a_constant_for_good(self, toy):
        _, y = line(toy, "f")
        toy.pin(y, escaped=True)
        assert not toy.evict(y)
        assert not toy.unpin(y)
        toy.run("add_", (y, MUTATE))
        assert not toy.evict(y)
        assert y.is_right()
