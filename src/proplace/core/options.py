"""Checks of options: each returns a valid value or raises an error with the allowed ones."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from proplace.core.errors import OptionError
from proplace.core.text import short


def integer(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number of at least ``least``, or raise."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise OptionError(
            f"{name} must be a whole number >= {least}, not {short(value)}", name=name, value=value
        )
    return int(value)


def processes(name: str, value: Any) -> int | None:
    """Return a number of processes as joblib takes it, or raise."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value == 0:
        raise OptionError(
            f"{name} must be a whole number >= 1, or -1 for all processors, not {short(value)}",
            name=name,
            value=value,
        )
    return int(value)


def positive(name: str, value: float) -> float:
    """Return a positive finite number, or raise."""
    if not (_finite(value) and value > 0.0):
        raise OptionError(
            f"{name} must be a positive number, not {short(value)}", name=name, value=value
        )
    return float(value)


def not_negative(name: str, value: float) -> float:
    """Return a finite number >= 0, or raise."""
    if not (_finite(value) and value >= 0.0):
        raise OptionError(
            f"{name} must be a number >= 0, not {short(value)}", name=name, value=value
        )
    return float(value)


def finite(name: str, value: Any) -> float:
    """Return a finite number, or raise."""
    if not _finite(value):
        raise OptionError(
            f"{name} must have finite numbers, not {short(value)}", name=name, value=value
        )
    return float(value)


def _finite(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> Any:
    """Return one of the allowed names, or raise."""
    if value not in allowed:
        raise OptionError(
            f"{name} must be one of {', '.join(map(repr, allowed))}, not {short(value)}",
            name=name,
            value=value,
        )
    return value
