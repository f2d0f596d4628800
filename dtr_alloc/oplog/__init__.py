"""Op logs: the operators of a job, in the format of simrd, the simulator of the DTR paper.

The format is that of section 4.6 of the thesis on simrd (Marisa Kirisame and others' prototype,
uwsampl/dtr-prototype), so each side reads the other's logs. A log is text, one JSON object a line,
in the order of events. Keys may come in any order; unknown keys are ignored. Sizes (bytes), times
(any unit, ours are nanoseconds) and alias indices are decimal strings; plain integers are read as
well. Names are any strings and stand for tensors as the program knows them.

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}``
    Lines before the first of these are dropped, so a job can warm up. (Our logs begin with
    ``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "RECORDED"}``: dtr_alloc recorded the job.) Other
    annotations are remarks; ours are below.
``{"INSTRUCTION": "CONSTANT", "NAME": "x1"}``
    A tensor that cannot be recomputed (a parameter, data). The next line is its size:
    ``{"INSTRUCTION": "MEMORY", "NAME": "x1", "MEMORY": "8"}``.
``{"INSTRUCTION": "CALL", "NAME": "add", "ARGS": ["x1"], "RESULT": ["x2"], "TIME": "521"}``
    An operator. For each result, in order, follow ``MEMORY`` (as above) and ``{"INSTRUCTION":
    "ALIAS", "NAME": "x2", "ALIAS": "-1"}``: the index of the argument of which the result is a
    view, or -1 if it has its own memory. A view's size counts as 0.
``{"INSTRUCTION": "MUTATE", "NAME": "add_", "ARGS": ["x1", "x2"], "MUTATE": [0], "TIME": "4"}``
    An operator in place. The names of the arguments with these indices stand for new tensors of the
    same size from here on; the old tensors are released. Ours may say ``"UNREAD": [0]``: the old
    contents of these are not read, so they can be recomputed (parameters cannot). simrd reads them
    all the same.
``{"INSTRUCTION": "COPY", "DST": "x3", "SRC": "x2"}``
    A further name for the tensor of SRC (``x3 = x2``).
``{"INSTRUCTION": "COPY_FROM", "DST": "x3", "SRC": "x2"}``
    The same for a name that already stands for a tensor and releases it. (The texts of the project
    also write COPYFROM, which is read as well.)
``{"INSTRUCTION": "RELEASE", "NAME": "x3"}``
    The name is gone. A tensor without names is dead. Releasing an undefined name (from before
    START) has no effect.

Tensors with names at the end are the results of the program.

Three annotations are ours; simrd ignores them.

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "EFFECT", "NAME": "item", "ARGS": ["x1"], "RESULT": [],
"TIME": "7"}``
    An operator that is never repeated: it reads its arguments and takes its time. Its results are
    constants; their lines follow it, in the order of RESULT.

Another precedes a CALL, MUTATE or EFFECT and lists the allocations of the operator, in order, for
simulation on a heap:

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "WORKSPACE", "TRACE": ["+4096", "=0", "-0"]}``
    ``+N``: a temporary of N bytes; ``-i``: the i-th temporary of this operator is freed (from 0);
    ``=k``: here the memory of result k is allocated. Without it an operator allocates its results
    in order and nothing else.

The third one is the call site of the operators that follow, up to the next of its kind:

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "PLACE", "NAME": "h.3.attn", "ARGS": ["model.py:81"]}``
    The path of a module, and the line of the job that called it; ``""`` if it is not known, as
    before the first of them.

Two levels: ``read`` gives typed instructions, each line checked by itself, with bounded memory;
``compile_log`` checks the program and packs it into numbers (``Program``) for the simulator.
``Writer`` is the reverse of ``read``. Files are plain, .gz, .bz2, .xz, or .zst if a library for it
is installed. Needs neither torch nor the compiled core.
"""

# ruff: noqa: F401 (these are the names of the package)
from dtr_alloc.oplog.format import (
    START,
    WORKSPACE,
    Alias,
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    LogError,
    Memory,
    Mutate,
    Release,
    Writer,
    effect,
    open_file,
    packer,
    place,
    read,
    to_line,
)
from dtr_alloc.oplog.program import (
    ALLOCATE,
    CALL,
    CONSTANT,
    COPY,
    COPY_FROM,
    EFFECT,
    FREE,
    FRESH,
    MOST_SUM,
    MUTATE,
    RELEASE,
    RESULT,
    Program,
    compile_log,
)
from dtr_alloc.oplog.steps import computed, instructions, made_bytes
