"""Kept seeds."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def seeds_of(name):
    """The kept files of one reader."""
    return [path.read_bytes() for path in sorted((_HERE / name).iterdir())]
