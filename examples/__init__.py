"""Examples, each explained in its first lines.

A package of its own, so that ``examples.own_metric`` is this one where another distribution has
installed one of the same name (avalanche-lib has).
"""
