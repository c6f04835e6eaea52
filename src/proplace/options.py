"""Checks of options: each returns the value, or says what it must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proplace.errors import OptionError


def whole(name: str, value: int, *, least: int = 1) -> int:
    """Return a whole number of at least ``least``, or say what it must be."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise OptionError(f"{name} must be a whole number >= {least}, not {value!r}")
    return int(value)


def positive(name: str, value: float) -> float:
    """Return a positive finite number, or say what it must be."""
    if isinstance(value, bool) or not (math.isfinite(value) and value > 0.0):
        raise OptionError(f"{name} must be a positive number, not {value!r}")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """Return a finite number >= 0, or say what it must be."""
    if isinstance(value, bool) or not (math.isfinite(value) and value >= 0.0):
        raise OptionError(f"{name} must be a number >= 0, not {value!r}")
    return float(value)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> Any:
    """Return one of some names, or say which there are."""
    if value not in allowed:
        raise OptionError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value
