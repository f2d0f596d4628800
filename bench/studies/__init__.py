"""Studies: what the papers report, measured anew, and our own comparisons.

``python -m bench.studies NAME`` runs one of them. Each is a module of this package that holds a
``STUDY`` (study.py): it computes a document, which is written as JSON, and draws pictures from
nothing but that document.
"""
