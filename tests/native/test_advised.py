"""Which of the budgets that were played is advised (dtr_alloc/advise/suggest.py)."""

from dtr_alloc.advise.suggest import Outlook, _advised

PEAK = 1000


def outlook(budget_bytes, first, later=None):
    return Outlook(budget_bytes, 0.5, first, later or first, False, None)


OUTLOOKS = [outlook(960, 1.0), outlook(800, 1.05), outlook(700, 1.1), outlook(600, 2.5, 1.12)]


def advised(outlooks, smallest=500, noise=1.0):
    found = _advised(outlooks, PEAK, smallest, noise)
    return found and found.budget_bytes


def test_the_smallest_bearable_budget_is_advised():
    assert advised(OUTLOOKS) == 600


def test_a_budget_at_which_noise_would_end_the_first_steps_is_not_advised():
    assert advised(OUTLOOKS, noise=2.1) == 700


def test_a_budget_that_fails_before_the_step_is_learned_is_not_advised():
    assert advised([*OUTLOOKS, outlook(550, None, 1.1)]) == 600


def test_there_is_room_above_the_smallest_budget_where_another_one_saves_memory():
    assert advised(OUTLOOKS, smallest=600) == 700
    assert advised(OUTLOOKS[-1:], smallest=600) == 600


def test_what_saves_next_to_nothing_is_not_advised():
    assert advised(OUTLOOKS[:1]) is None
