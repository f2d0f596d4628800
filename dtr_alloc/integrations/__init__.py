"""Callbacks and trackers of frameworks. Each module needs its framework; `import dtr_alloc` imports
none."""
