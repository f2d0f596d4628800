"""Every reader of files with files that nobody should write. Needs the native build."""

import pytest
from fuzz_readers import TARGETS, fuzz


def test_what_is_mutated_is_read_or_refused_by_name(tmp_path):
    ran, found = fuzz(tmp_path, cases=12)
    assert not found
    assert ran == dict.fromkeys(TARGETS, 12)


@pytest.mark.long
def test_what_is_mutated_for_a_minute_is_read_or_refused_by_name(tmp_path):
    ran, found = fuzz(tmp_path, 60, jobs=2, seed=10_000)
    assert not found
    assert ran.keys() == TARGETS.keys()
    assert min(ran.values()) > 0
