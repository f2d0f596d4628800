"""Programs that our own code writes, for the studies and for tests.

A log that was recorded is read by dtr_alloc/oplog; this packs instructions in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dtr_alloc import oplog
from dtr_alloc.oplog import FRESH, Program


class Log:
    """A program being written.

    Names and arguments are text, several with spaces between them. Sizes are bytes, times are any
    unit.

    Attributes:
        program: what was written so far.
    """

    def __init__(self, label: str = "by hand") -> None:
        self.program = Program(label)
        self._numbers: dict[str, int] = {}

    def _name(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.program.names)
            self.program.names.append(name)
        return self._numbers[name]

    def constant(self, name: str, size: int) -> None:
        """A tensor that is never evicted."""
        self.program.code.extend((oplog.CONSTANT, self._name(name), size))

    def call(
        self,
        arguments: str,
        results: Mapping[str, int | str],
        time: int = 1,
        workspace: Sequence[str] = (),
    ) -> None:
        """An operator. Its results have a size each, or the argument that they are a view of;
        ``workspace`` is that of the annotation WORKSPACE (dtr_alloc/oplog)."""
        args = arguments.split()
        self.program.code.extend((oplog.CALL, time, len(args), *map(self._name, args)))
        self.program.code.append(len(results))
        for name, what in results.items():
            size, alias = (0, args.index(what)) if isinstance(what, str) else (what, FRESH)
            self.program.code.extend((self._name(name), size, alias))
        self._operator(workspace)

    def effect(
        self,
        arguments: str,
        results: Mapping[str, int | str],
        time: int = 1,
        workspace: Sequence[str] = (),
    ) -> None:
        """An operator that is never repeated; its results are constants."""
        at = len(self.program.code)
        self.call(arguments, results, time, workspace)
        self.program.code[at] = oplog.EFFECT

    def mutate(
        self, arguments: str, *indices: int, time: int = 1, workspace: Sequence[str] = ()
    ) -> None:
        """An operator in place: it overwrites the arguments with these indices (-1 - i: without
        reading argument i)."""
        args = arguments.split()
        self.program.code.extend((oplog.MUTATE, time, len(args), *map(self._name, args)))
        self.program.code.extend((len(indices), *indices))
        self._operator(workspace)

    def _operator(self, workspace: Sequence[str]) -> None:
        kinds = {"+": oplog.ALLOCATE, "-": oplog.FREE, "=": oplog.RESULT}
        for entry in workspace:
            self.program.workspace.extend((kinds[entry[0]], int(entry[1:])))
        self.program.workspace_at.append(len(self.program.workspace))
        self.program.operators.append(0)

    def copy(self, to: str, source: str) -> None:
        """A further name for a tensor."""
        self.program.code.extend((oplog.COPY, self._name(to), self._name(source)))

    def copy_from(self, to: str, source: str) -> None:
        """The same for a name that stands for a tensor already."""
        self.program.code.extend((oplog.COPY_FROM, self._name(to), self._name(source)))

    def release(self, *names: str) -> None:
        """These names are gone."""
        for name in names:
            self.program.code.extend((oplog.RELEASE, self._name(name)))
