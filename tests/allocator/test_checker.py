"""The checker itself: a rule that is broken by hand is named. Needs g++."""

import re
import subprocess

import pytest
from native_fixtures import ROOT, compile_cpp


@pytest.fixture(scope="module")
def verdicts(core_object, tmp_path_factory):
    """What the checker says of each corruption: (broken rule, message)."""
    folder = tmp_path_factory.mktemp("corrupt")
    sources = [ROOT / "tests/allocator/corrupt_heap.cpp", core_object]
    program = folder / "corrupt_heap"
    compile_cpp(sources, program, "-ldl", "-lpthread")
    output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return [line.split(" ", 1) for line in output.splitlines()]


def test_every_corruption_is_found_and_named(verdicts):
    assert len(verdicts) == 19
    for rule, message in verdicts:
        assert message.startswith(f"{rule}: "), f"{rule} was broken, the checker says: {message!r}"


def test_every_rule_is_broken_once(verdicts):
    headers = ("heap.h", "chunks.h", "slab.h", "pool.h")
    text = "".join((ROOT / "allocator" / header).read_text() for header in headers)
    rules = set(re.findall(r"^//   ([HCLP]\d)  ", text, re.MULTILINE))
    assert len(rules) >= 15
    assert rules == {rule for rule, _ in verdicts}
