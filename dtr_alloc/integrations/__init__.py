"""Callbacks and trackers of frameworks. Each module needs its framework; none is imported by
`import dtr_alloc`."""
