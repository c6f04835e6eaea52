"""Robust neighbours of a person and the convex pieces that they span.

It may import every room but ``search``, ``explain`` and ``apps``.
"""
