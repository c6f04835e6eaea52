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
    """Return the seeds 0, 1, ... as parameters. Those from ``quick`` on are slow."""
    return [_param(n, slow=n >= quick) for n in range(all)]


def quick(number, values):
    """Return values as parameters. All but the first few are slow."""
    return [_param(value, slow=n >= number) for n, value in enumerate(values)]


def thorough(few, many):
    """Return arguments for a quick run, and those for a slow one."""
    return [_param(few, slow=False), _param(many, slow=True)]


def every(number, values):
    """Return values as parameters. All but every n-th one are slow."""
    return [_param(value, slow=n % number > 0) for n, value in enumerate(values)]


def only(quick, values):
    """Return values as parameters. Those whose name is not in ``quick`` are slow."""
    return [_param(value, slow=str(value) not in quick) for value in values]


def _param(value, *, slow):
    cells = value if isinstance(value, tuple) else (value,)
    return pytest.param(*cells, marks=[pytest.mark.slow] if slow else [])
