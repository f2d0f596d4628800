"""The laboratory: simulators, the search for schedules, allocator models and the studies.

It may import the product; the product never imports it.
"""
