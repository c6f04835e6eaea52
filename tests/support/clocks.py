"""Limits against endless waiting. No test may fail because a machine is slow."""

PATIENCE = 1800.0
"""Seconds after which something that should come is given up."""
