"""Readers of other tools' traces of allocators, and the measures, models and pictures of any trace
(dtr_alloc/traces). Nothing here imports torch."""
