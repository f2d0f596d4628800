"""Mutants: which wrong decisions the tests notice.

    python tests/mutants.py core OUT.json tests/allocator tests/native
    python tests/mutants.py package OUT.json --contexts DATA [--before OLD.json]

Of the conditions of the core, or of the package, one in so many is turned: `<` becomes `<=`, `==`
becomes `!=`, `&&` becomes `||`, a condition is negated, a counter stays. The core is built once, in
a copy of the tree, with all of its mutants, of which DTR_MUTANT chooses one; a module of Python is
rewritten for each. Tests run until the first one fails: for the core all that are given, for the
package those that ran the line, by the data of coverage.py with branch = True and dynamic_context =
test_function. With --before it is an error if a mutant lives that was killed then.
"""

import argparse
import ast
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
SWITCH = """#pragma once
#include <cstdlib>
inline bool mutant(int number) {
  static const int on = std::getenv("DTR_MUTANT") ? std::atoi(std::getenv("DTR_MUTANT")) : -1;
  return number == on;
}
"""
TURNED = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ",
    " && ": " || ", " || ": " && ",
}  # fmt: skip
DECISION = re.compile(r"\s*(?:\} else )?(?:if|while) \(")
RETURNED = re.compile(
    r"(?P<before>\s*return )(?P<condition>.+ (?:[<>]=?|[!=]=|&&|\|\|) .+)(?P<after>;)$"
)
COUNTED = re.compile(r"(?P<before>\s*(?:\w.*\) )?)(?P<counter>(?:\+\+|--)[\w.>-]+);$")


def turned(condition: str, at: int) -> str:
    """The condition with one of its operators turned, or else negated."""
    operators = list(re.finditer(r" (?:[<>]=?|[!=]=|&&|\|\|) ", condition))
    if not operators:
        return f"!({condition})"
    chosen = operators[at % len(operators)]
    return condition[: chosen.start()] + TURNED[chosen.group()] + condition[chosen.end() :]


def closed(line: str, begin: int) -> int:
    """Where the parenthesis ends that opens before `begin`; -1 on another line."""
    depth = 1
    for at in range(begin, len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if not depth:
            return at
    return -1


def mutated(line: str, number: int) -> str | None:
    """The line of C++ with a mutant that DTR_MUTANT chooses; None where there is none to make."""
    if found := COUNTED.fullmatch(line):
        return f"{found['before']}if (!mutant({number})) {found['counter']};"
    if found := DECISION.match(line):
        begin, end = found.end(), closed(line, found.end())
    elif found := RETURNED.fullmatch(line):
        begin, end = found.span("condition")
    else:
        return None
    condition = line[begin:end]
    if (
        end < 0
        or re.search(r" = |\?|; ", condition)
        or condition.count("(") != condition.count(")")
    ):
        return None
    chosen = f"mutant({number}) ? bool({turned(condition, number)}) : bool({condition})"
    return line[:begin] + chosen + line[end:]


def core(tree: Path, every: int) -> list[str]:
    """Rewrites one in so many decisions of the core in this tree and builds it; the mutants."""
    names: list[str] = []
    seen = 0
    for path in sorted(path for part in CORE for path in (tree / part).rglob("*.cpp")):
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            if (made := mutated(line, len(names))) is not None:
                seen += 1
                if seen % every == 0:
                    lines[at] = made
                    names.append(f"{path.relative_to(tree)}: {line.strip()}")
        path.write_text("\n".join(['#include "mutants.h"', *lines, ""]))
    (tree / "allocator/mutants.h").write_text(SWITCH)
    environ = {**os.environ, "DTR_ALLOC_BUILD": "debug"}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=tree, env=environ, check=True)
    return names


SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Turn(ast.NodeTransformer):
    """Turns the decision of this number, and counts them all."""

    def __init__(self, number: int):
        self.number, self.seen, self.text, self.line = number, -1, "", 0

    def is_next(self, node: ast.expr) -> bool:
        self.seen += 1
        if self.seen == self.number:
            self.text, self.line = ast.unparse(node), node.lineno
        return self.seen == self.number

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if self.is_next(node):
            node.ops[-1] = SWAPPED[type(node.ops[-1])]()
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        if self.is_next(node):
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        return self.generic_visit(node)  # type: ignore[return-value]


def package(tree: Path, every: int) -> Iterator[tuple[str, str, int]]:
    """Rewrites one decision of a module in this tree at a time: its name, module and line."""
    parts = [tree / part for part in PACKAGE]
    files = {path for part in parts for path in (part, *part.rglob("*.py")) if path.is_file()}
    for path in sorted(files):
        source = path.read_text()
        for number in range(every - 1, sys.maxsize, every):
            turn = Turn(number)
            made = ast.unparse(turn.visit(ast.parse(source)))
            if turn.seen < number:
                break
            path.write_text(made)
            module = str(path.relative_to(tree))
            yield f"{module}: {turn.text}", module, turn.line
        path.write_text(source)


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
    for name in names:
        file, *rest = name[name.index("test_") :].split(".")
        paths = (ROOT / "tests").rglob(f"{file}.py")
        nodes += ["::".join([str(path.relative_to(ROOT)), *rest]) for path in paths]
    return sorted(nodes)


def killer(tree: Path, tests: list[str], number: int, seconds: float) -> str:
    """The first test that fails; "" where the mutant lives."""
    environ = {**os.environ, "PYTHONPATH": str(tree), "DTR_MUTANT": str(number)}
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
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

    def note(name: str, by: str) -> None:
        found[name] = by
        print(f"{by or 'LIVES':60} {name}", flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", "build", ".venv", "out"))
        if given.what == "core":
            for number, name in enumerate(core(tree, given.every)):
                tests = given.tests[:: -1 if name.startswith("native") else 1]  # its own first
                note(name, killer(tree, tests, number, given.seconds))
        else:
            for name, module, line in package(tree, given.every):
                tests = tests_of(given.contexts, module, line)
                note(name, killer(tree, tests, -1, given.seconds) if tests else "")
    before = json.loads(given.before.read_text()) if given.before else {}
    saved = [name for name, by in found.items() if not by and before.get(name)]
    print(f"{sum(map(bool, found.values()))} of {len(found)} mutants are killed")
    if saved:
        sys.exit("\n".join(["killed before, and live now:", *saved]))


if __name__ == "__main__":
    main()
