"""Two tiers of tests: quick ones that run after every change, and those marked ``slow``."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings

ALL = 100
"""Examples of a property test under the profile ``all``."""


def profiles():
    """Register the Hypothesis profiles and load the quick one."""
    settings.register_profile("quick", max_examples=20, derandomize=True, deadline=None)
    settings.register_profile("all", max_examples=ALL, deadline=None)
    settings.load_profile("quick")


def examples(number, **more):
    """Run ``number`` examples of a property test under the profile ``all``, a share under ``quick``."""
    share = settings().max_examples / ALL
    return settings(max_examples=math.ceil(number * share), **more)


def seeds(quick=8, all=120):
    """Return the seeds 0, 1, ... as parameters; those from ``quick`` on are slow."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n >= quick else []) for n in range(all)]


def slow_but(number, values):
    """Return values as parameters; all but the first few are slow."""
    return [
        pytest.param(value, marks=[pytest.mark.slow] if n >= number else [])
        for n, value in enumerate(values)
    ]
