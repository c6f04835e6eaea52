"""Robust neighbours of a person and the convex pieces that they span."""
