"""The parts of the site that come from the code. A page names them in a line of its own:
``<!-- settings -->``, ``<!-- headers -->``, ``<!-- rules -->``, ``<!-- peers -->``,
``<!-- conformance -->``, ``<!-- frameworks -->``, ``<!-- foreign -->`` and ``<!-- suggest -->``
(of results),
``<!-- changes -->``, or ``<!-- picture NAME.svg -->``. A notebook is a page like others, with the
outputs that it holds."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "build/pictures"

_MARK = re.compile(r"^<!-- (\w+) ?([\w.-]*) -->$", re.MULTILINE)
_RULE = re.compile(r"//\s+(?P<number>[A-Z][0-9]{1,2})\s\s?(?P<text>[^\s.:,)].*)")
_MORE = re.compile(r"//\s{3,}(?P<text>\S.*)")


class Rule(NamedTuple):
    """One numbered rule, as the comment at the top of a file states it."""

    number: str
    file: str
    text: str

    @property
    def line(self) -> str:
        """Its first sentence."""
        return re.split(r"(?<=\.) ", self.text, maxsplit=1)[0].rstrip(".;")


def rules(root: Path = ROOT) -> list[Rule]:
    """Every numbered rule of the C++ code, by file."""
    return [rule for path in sources(root) for rule in _rules_of(path, root)]


def sources(root: Path = ROOT) -> list[Path]:
    """The C++ files of the allocator and the engine."""
    found = (path for part in ("allocator", "native") for path in sorted((root / part).rglob("*")))
    return [path for path in found if path.suffix in (".h", ".cpp")]


def _rules_of(path: Path, root: Path) -> list[Rule]:
    found: list[Rule] = []
    is_inside = False
    for line in path.read_text().splitlines():
        if not line.startswith("//"):
            break  # rules stand in the comment that opens a file
        if begin := _RULE.fullmatch(line):
            file = str(path.relative_to(root))
            found.append(Rule(begin["number"], file, begin["text"].strip()))
            is_inside = True
        elif is_inside and (more := _MORE.fullmatch(line)):
            last = found[-1]
            found[-1] = last._replace(text=f"{last.text} {more['text'].strip()}")
        else:
            is_inside = False
    return found


def settings(root: Path = ROOT) -> str:
    """The fields of Config as Markdown, each under its variable, with its default and its parts."""
    from dtr_alloc.config import WITHOUT_VARIABLE, Config, variable

    module = ast.parse((root / "dtr_alloc/config.py").read_text())
    classes = {n.name: _fields(n) for n in module.body if isinstance(n, ast.ClassDef)}
    parts = []
    for name, text in classes["Config"].items():
        value = getattr(Config(), name)
        default = "" if value is None else f"Default: `{value}`\n\n"
        head = name if name in WITHOUT_VARIABLE else variable(name)
        parts.append(f"### `{head}`\n\n{default}{text}\n")
        if name in ("pool", "debug"):
            words = classes[type(value).__name__]
            parts += [
                f"- `{word.replace('_', '-')}`: {_inline(text)}" for word, text in words.items()
            ]
            parts.append("")
    return "\n".join(parts)


def _fields(class_: ast.ClassDef) -> dict[str, str]:
    """The documented fields of a class, as Markdown."""
    return {
        ast.unparse(field.target): _as_markdown(ast.literal_eval(text.value))
        for field, text in zip(class_.body, class_.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _inline(text: str) -> str:
    return text.replace("\n", " ")


def _as_markdown(docstring: str) -> str:
    lines = [line.strip() for line in docstring.strip().splitlines()]
    return re.sub(r"``([^`]+)``", r"`\1`", "\n".join(lines))


def headers(root: Path = ROOT) -> str:
    """The public C headers, whole."""
    parts = []
    for path in sorted((root / "native/include").rglob("*.h")):
        name = path.relative_to(root)
        parts.append(f"## `{name}`\n\n```c\n{path.read_text().rstrip()}\n```\n")
    return "\n".join(parts)


def rules_index(root: Path = ROOT) -> str:
    """One table of rules for each file."""
    parts: list[str] = []
    file = ""
    for rule in rules(root):
        if rule.file != file:
            file = rule.file
            parts.append(f"\n### `{file}`\n\n| rule | |\n|---|---|")
        parts.append(f"| {rule.number} | {_cell(rule.line)} |")
    return "\n".join(parts)


def _cell(text: str) -> str:
    """Text that a cell of a table shows as it is, with its code."""
    return re.sub(r"[|_]", r"\\\g<0>", text.replace("<", "&lt;"))


def peers(root: Path = ROOT) -> str:
    """How dtr_alloc stands beside other methods, by the committed results of bench.peers."""
    from bench.peers.report import markdown

    return markdown(json.loads((root / "bench/results/peers_cpu.json").read_text()))


def conformance(root: Path = ROOT) -> str:
    """What can be evicted, by the committed results of bench.conformance."""
    from bench.conformance.report import markdown

    return markdown(json.loads((root / "bench/results/conformance_cpu.json").read_text()))


def frameworks(root: Path = ROOT) -> str:
    """Jobs of frameworks under budgets, by the committed results of bench.frameworks."""
    from bench.frameworks.report import markdown

    return markdown(json.loads((root / "bench/results/frameworks_cpu.json").read_text()))


def foreign(root: Path = ROOT) -> str:
    """Jobs of public packages and repositories, by the committed results of bench.foreign."""
    from bench.foreign.report import markdown

    return markdown(json.loads((root / "bench/results/foreign_cpu.json").read_text()))


def suggest(root: Path = ROOT) -> str:
    """Whether advice is right, by the committed results of bench.suggest."""
    from bench.suggest import markdown

    return markdown(json.loads((root / "bench/results/suggest_cpu.json").read_text()))


def changes(root: Path = ROOT) -> str:
    """The changelog without its title."""
    return (root / "CHANGELOG.md").read_text().partition("\n")[2]


def _picture(name: str) -> str:
    """A picture if `make pictures` has drawn it; in any case the command."""
    command = f"*Picture: `{name}`, drawn by `make pictures`.*"
    return f"![{name}](drawn/{name})" if (PICTURES / name).is_file() else command


PARTS = {
    "settings": settings,
    "headers": headers,
    "rules": rules_index,
    "peers": peers,
    "conformance": conformance,
    "frameworks": frameworks,
    "foreign": foreign,
    "suggest": suggest,
    "changes": changes,
}


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs for each page."""

    def written(mark: re.Match[str]) -> str:
        what, name = mark.groups()
        if what == "picture":
            return _picture(name)
        return PARTS[what]()

    return _MARK.sub(written, markdown)


def notebook(text: str) -> str:
    """A notebook as Markdown: its cells, and what they returned when it was executed."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [_output(output["data"]) for output in cell["outputs"]]
    return "\n\n".join(parts)


def _output(data: dict[str, Any]) -> str:
    """As HTML, in a block that Markdown leaves as it is, or as text."""
    if "text/html" in data:
        return f"<div style='overflow-x: auto'>{''.join(data['text/html'])}</div>"
    return f"```text\n{''.join(data['text/plain'])}\n```"


def on_page_read_source(page: Any, **_: object) -> str | None:
    """Called by mkdocs for each page."""
    is_notebook = page.file.src_uri.endswith(".ipynb")
    return notebook(page.file.content_string) if is_notebook else None


def on_files(files, config):  # type: ignore[no-untyped-def]
    """Called by mkdocs: notebooks are pages, and the pictures that are drawn belong to the site."""
    from mkdocs.structure.files import File

    class Notebook(File):
        def is_documentation_page(self) -> bool:
            return True

    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        files.append(Notebook(file.src_uri, file.src_dir, file.dest_dir, file.use_directory_urls))
    for path in sorted(PICTURES.glob("*.svg")):
        uri = f"studies/drawn/{path.name}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files
