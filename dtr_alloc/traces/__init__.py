"""Traces of allocators: their form in memory and on disk, and the recording of a running job."""
