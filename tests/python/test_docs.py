"""What pages and comments name exists: files, pages and numbered rules. Needs nothing."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

import dtr_alloc
from dtr_alloc import config

ROOT = Path(__file__).parents[2]

_spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs/hooks.py")
assert _spec is not None
assert _spec.loader is not None
hooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hooks)

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "allocator/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOLDERS = "allocator|native|dtr_alloc|tests|bench|docs"
FILE = re.compile(rf"`((?:{FOLDERS})/[\w./-]+)`")
PAGE = re.compile(r"docs/[\w/-]+\.md")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
RULE = re.compile(r"\b[A-Z][0-9]{1,2}\b(?!\.[0-9])")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_or_links_exists(page: Path) -> None:
    text = page.read_text()
    named = [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    linked = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not named + linked


def test_every_part_of_the_package_that_a_page_names_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"\bdtr_alloc\.(?!h\b)([a-z_]+)", page.read_text()):
            folder = ROOT / "dtr_alloc" / name
            is_module = folder.is_dir() or folder.with_suffix(".py").is_file()
            assert is_module or name in dtr_alloc.__all__, (page.name, name)


def test_the_settings_page_lists_every_variable() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    listed = re.findall(r"^\| `(DTR_ALLOC_\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == list(config.known_variables())


def test_every_page_that_the_code_names_exists() -> None:
    files = [
        path
        for part in ("allocator", "native", "dtr_alloc", "tests", "bench")
        for path in sorted((ROOT / part).rglob("*"))
        if path.suffix in (".h", ".cpp", ".py") and ".link" not in path.parts
    ]
    wrong = {
        (str(path.relative_to(ROOT)), page)
        for path in files
        for page in PAGE.findall(path.read_text())
        if not (ROOT / page).is_file()
    }
    assert not wrong


def test_every_rule_has_one_number_and_every_number_a_rule() -> None:
    """In the files of one folder a number stands for one rule; a comment names only rules."""
    rules = hooks.rules()
    assert len(rules) > 40
    twice = Counter((rule.file.split("/")[0], rule.number) for rule in rules)
    assert not [where for where, count in twice.items() if count > 1]
    known = {rule.number for rule in rules}
    unknown = {
        (str(path.relative_to(ROOT)), number)
        for path in hooks.sources()
        for line in path.read_text().splitlines()
        for number in RULE.findall(line.partition("//")[2])
        if number not in known
    }
    assert not unknown


def test_every_function_that_the_journey_names_is_defined_in_its_file() -> None:
    page = (ROOT / "docs/concepts/journey-of-a-request.md").read_text()
    steps = re.findall(r"^\| `(\w+)\(\)` \| `([\w./]+)` \|", page, re.MULTILINE)
    assert len(steps) > 15
    assert not [
        (name, file)
        for name, file in steps
        if not re.search(
            rf"^(  )?[A-Za-z][^;=\n]*\b{name}\([^;\n]*$", (ROOT / file).read_text(), re.MULTILINE
        )
    ]


def test_what_is_public_is_what_is_listed() -> None:
    assert sorted(dir(dtr_alloc)) == sorted(dtr_alloc.__all__)
    assert all(getattr(dtr_alloc, name).__doc__ for name in dtr_alloc.__all__ if name[0] != "_")


def test_the_citation_names_this_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {dtr_alloc.__version__}" in lines
