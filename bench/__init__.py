"""Measurements of dtr_alloc on real models; every script prints a table and writes JSON."""
