"""Op logs: what a job computed, in the format of simrd, the simulator of the DTR paper.

The format is that of section 4.6 of the thesis on simrd (Marisa Kirisame and others' prototype,
uwsampl/dtr-prototype), so logs of either side serve the other. A log is text, one JSON object a
line, in the order in which things happened. Keys may come in any order; unknown keys are ignored.
Sizes (bytes), times (any unit, ours are nanoseconds) and alias indices are decimal strings; plain
integers are read as well. Names are any strings and stand for tensors as the program knows them.

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}``
    Lines before the first of these are dropped, so that a job can warm up. (Of ours the first one
    is ``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "RECORDED"}``: a job was recorded here.) Other
    annotations are remarks; ours are below.
``{"INSTRUCTION": "CONSTANT", "NAME": "x1"}``
    A tensor that nothing can compute again (a parameter, data). The next line is its size:
    ``{"INSTRUCTION": "MEMORY", "NAME": "x1", "MEMORY": "8"}``.
``{"INSTRUCTION": "CALL", "NAME": "add", "ARGS": ["x1"], "RESULT": ["x2"], "TIME": "521"}``
    An operator. For each result, in order, follow ``MEMORY`` (as above) and
    ``{"INSTRUCTION": "ALIAS", "NAME": "x2", "ALIAS": "-1"}``: the index of the argument that the
    result is a view of, or -1 if it has memory of its own. A view's size counts as 0.
``{"INSTRUCTION": "MUTATE", "NAME": "add_", "ARGS": ["x1", "x2"], "MUTATE": [0], "TIME": "4"}``
    An operator in place. The names of the arguments with these indices stand for new tensors of
    the same size from here on; the tensors that they stood for are released. Ours may say
    ``"UNREAD": [0]``: the old content of these is not read, so they can be computed again
    (parameters cannot). simrd reads it all the same.
``{"INSTRUCTION": "COPY", "DST": "x3", "SRC": "x2"}``
    A further name for the tensor of SRC (``x3 = x2``).
``{"INSTRUCTION": "COPY_FROM", "DST": "x3", "SRC": "x2"}``
    The same for a name that stands for a tensor already and lets go of it. (The texts of the
    project also write COPYFROM, which is read as well.)
``{"INSTRUCTION": "RELEASE", "NAME": "x3"}``
    The name is gone. A tensor without names is dead. Releasing a name that was never defined
    (what was made before START) means nothing.

What still has names at the end is what the program wants to have.

Three annotations are ours; simrd passes over them.

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "EFFECT", "NAME": "item", "ARGS": ["x1"], "RESULT": [],
"TIME": "7"}``
    An operator that is never repeated, since nothing can be got by that: it reads its arguments and
    takes its time. What it makes are constants; their lines follow it, in the order of RESULT.

Another stands right before a CALL, MUTATE or EFFECT and says what the operator allocated while
it ran, in order, for simulation on a heap:

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "WORKSPACE", "TRACE": ["+4096", "=0", "-0"]}``
    ``+N``: a temporary of N bytes; ``-i``: the i-th temporary of this operator is freed (from 0);
    ``=k``: here the memory of result k is allocated. Without it an operator allocates its
    results in order and nothing else.

A third one says where in the job the operators stand that follow, up to the next of its kind:

``{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "PLACE", "NAME": "h.3.attn", "ARGS": ["model.py:81"]}``
    In which module, by its path, and at which line of the job that was called; ``""`` is what is
    not known. Before the first of them nothing is.

Two levels: ``read`` gives typed instructions, each line checked by itself, with bounded memory;
``compile_log`` checks the program and packs it into numbers (``Program``) for the simulator.
``Writer`` is the reverse of ``read``. Files are plain, .gz, .bz2, .xz, or .zst where a library for
it is installed. Needs neither torch nor the compiled core.
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
