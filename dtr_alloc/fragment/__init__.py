"""Where memory goes: traces of allocators, from our pools and from others', and what reads them.

``trace`` is a trace in memory and ``trace_file`` its file (docs/reference/trace-format.md).
Nothing here imports torch.
"""
