"""Mutants: which wrong decisions the tests notice.

    python tests/mutants.py core OUT.json tests/allocator tests/native
    python tests/mutants.py package OUT.json --contexts DATA [--before OLD.json]

Of the conditions of the core, or of the package, one in so many is turned: `<` becomes `<=`, `==`
becomes `!=`, `and` becomes `or`, a condition is negated, a counter stays. A copy of the tree has
all mutants, of which DTR_MUTANT chooses one. Tests run until the first one fails: all that are
given, or those that ran the line, by the data of coverage.py with branch = True and
dynamic_context = test_function. With --before it is an error if one lives that was killed then.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = (
    "allocator",
    *(f"native/{part}" for part in ("eviction", "graph", "learn", "policy", "run")),
)
PACKAGE = [
    f"dtr_alloc/{part}"
    for part in (
        *("advise", "fragment", "oplog", "simulation", "traces", "bounded.py", "config.py"),
        *("costs.py", "heuristics.py", "output_file.py", "pools.py", "records.py", "report.py"),
    )
]
HEADER = """#pragma once
#include <cstdlib>
inline bool mutant(int number) {
  static const int on = std::getenv("DTR_MUTANT") ? std::atoi(std::getenv("DTR_MUTANT")) : -1;
  return number == on;
}
"""
TURNED = {
    *((" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != ")),
    *((" != ", " == "), (" && ", " || "), (" || ", " && "), (" and ", " or "), (" or ", " and ")),
    *((" is not ", " is "), (" is ", " is not "), (" not in ", " in "), (" in ", " not in ")),
}
OPERATOR = "|".join(re.escape(old) for old, _ in sorted(TURNED, key=lambda of: -len(of[0])))
DECIDES = {
    ".cpp": r"\s*(?:\} else )?(?:if|while) \((.+)|\s*return (.+);",
    ".py": r"\s*(?:el)?if (.+):|\s*while (.+):|\s*return (.+)",
}
OTHERWISE = r" = |[?;]| for | else |lambda|:=|^\W*$"
"""In what is no plain condition."""
CHOOSES = {
    ".cpp": "mutant({0}) ? decltype({2})({1}) : ({2})",
    ".py": '({1}) if __import__("os").environ.get("DTR_MUTANT") == "{0}" else ({2})',
}


def mutated(line: str, suffix: str, number: int) -> str | None:
    """The line with a mutant that DTR_MUTANT chooses; None where there is none to make."""
    if suffix == ".cpp" and (counts := re.fullmatch(r"(\s*)(\+\+|--)([\w.>-]+);", line)):
        return f"{counts[1]}{{ if (!mutant({number})) {counts[2]}{counts[3]}; }}"
    if (found := re.fullmatch(DECIDES[suffix], line)) is None:
        return None
    begin, end = found.span(found.lastindex or 0)
    depths = list(itertools.accumulate("(".count(c) - ")".count(c) for c in line[begin:end]))
    if -1 in depths:  # where the condition's own parenthesis ends
        end = begin + depths.index(-1)
    elif suffix == ".cpp" and (found[1] or '"' in line):  # it goes on, or is no condition
        return None
    condition = line[begin:end]
    if condition.count("(") != condition.count(")") or re.search(OTHERWISE, condition):
        return None
    operators = list(re.finditer(OPERATOR, condition))
    if operators:
        at = operators[number % len(operators)]
        turned = condition[: at.start()] + dict(TURNED)[at.group()] + condition[at.end() :]
    elif line.lstrip().startswith("return"):
        return None
    else:
        turned = f"!({condition})" if suffix == ".cpp" else f"not ({condition})"
    if suffix == ".cpp" and found[1]:  # which may be a pointer or another object
        condition = f"bool({condition})"
    return line[:begin] + CHOOSES[suffix].format(number, turned, condition) + line[end:]


def mutate(tree: Path, parts: list[str], suffix: str, every: int) -> list[tuple[str, str, int]]:
    """Rewrites one in so many decisions in this tree: of each mutant what, where, and the line."""
    mutants = []
    seen = 0
    files = {path for part in parts for path in (tree / part, *(tree / part).rglob("*"))}
    for path in sorted(path for path in files if path.suffix == suffix):
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            if (made := mutated(line, suffix, len(mutants))) is not None:
                seen += 1
                if seen % every == 0:
                    lines[at] = made
                    where = str(path.relative_to(tree))
                    mutants.append((f"{where}: {line.strip()}", where, at + 1))
        path.write_text("\n".join(['#include "mutants.h"'] * (suffix == ".cpp") + [*lines, ""]))
    return mutants


def tests_of(contexts: Path, module: str, line: int) -> list[str]:
    """The tests that ran this line."""
    query = """
        SELECT DISTINCT context.context FROM arc
        JOIN file ON file.id = arc.file_id JOIN context ON context.id = arc.context_id
        WHERE file.path LIKE ? AND ? IN (arc.fromno, arc.tono) AND context.context != ''
    """
    with sqlite3.connect(contexts) as found:
        names = [name for (name,) in found.execute(query, (f"%/{module}", line))]
    nodes = []
    for file, *rest in (name[name.index("test_") :].split(".") for name in names):
        paths = (ROOT / "tests").rglob(f"{file}.py")
        nodes += ["::".join([str(path.relative_to(ROOT)), *rest]) for path in paths]
    return sorted(nodes)


def killer(tree: Path, tests: list[str], number: int, seconds: float) -> str:
    """The first test that fails; "" where the mutant lives."""
    environ = {**os.environ, "PYTHONPATH": str(tree), "DTR_MUTANT": str(number)}
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-W", "ignore"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=tree, env=environ, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "out of time"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "" if done.returncode == 0 else f"status {done.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("core", "package"))
    parser.add_argument("out", type=Path)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--contexts", type=Path)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--seconds", type=float, default=300, help="for the tests of one mutant")
    given = parser.parse_args()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", "build", ".venv", "out"))
        if given.what == "core":
            (tree / "allocator/mutants.h").write_text(HEADER)
            mutants = mutate(tree, list(CORE), ".cpp", given.every)
            command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            environ = {**os.environ, "DTR_ALLOC_BUILD": "debug"}
            subprocess.run(command, cwd=tree, env=environ, check=True)
        else:
            mutants = mutate(tree, PACKAGE, ".py", given.every)
        for number, (name, where, line) in enumerate(mutants):
            tests = given.tests or tests_of(given.contexts, where, line)
            found[name] = killer(tree, tests, number, given.seconds) if tests else ""
            print(f"{found[name] or 'LIVES':60} {name}", flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    before = json.loads(given.before.read_text()) if given.before else {}
    saved = [name for name, by in found.items() if not by and before.get(name)]
    print(f"{sum(map(bool, found.values()))} of {len(found)} mutants are killed")
    if saved:
        sys.exit("\n".join(["killed before, and live now:", *saved]))


if __name__ == "__main__":
    main()
