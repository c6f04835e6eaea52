"""Limits against endless waiting. No test may fail because a machine is slow."""

PATIENCE = 1800.0
"""Seconds after which waiting for an expected event ends."""
