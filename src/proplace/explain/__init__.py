"""One lifecycle for every method: read people, find a point, prove it, say it in the table's units.

It may import every room but ``promises`` and ``apps``.
"""
