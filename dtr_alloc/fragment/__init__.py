"""Traces of allocators, from our pools and from others: their readers, measures, models and
pictures.

``trace`` is a trace in memory and ``trace_file`` its file (docs/reference/trace-format.md). Nothing
here imports torch.
"""
