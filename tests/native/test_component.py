"""Evicted components (native/policy/component.h) against brute force. Needs g++."""

import subprocess

import pytest
from native_fixtures import ROOT, compile_cpp


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("component") / "random_components"
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    source = ROOT / "tests/native/random_components.cpp"
    return compile_cpp([source], path, *sanitizers)


@pytest.mark.parametrize("seed", range(5))
def test_random_merges_agree_with_brute_force_and_leave_no_node(program, seed):
    # A sanitizer that is preloaded for Python must not be loaded twice.
    environment = {"ASAN_OPTIONS": "detect_leaks=1"}
    result = subprocess.run(
        [str(program), str(seed), "1000"], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
    kind, nodes, merges = result.stdout.split()
    assert kind == "ok"
    assert int(nodes) > 100
    assert int(merges) > 100
