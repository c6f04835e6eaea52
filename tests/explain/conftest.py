"""Fixtures of the tests of explanations."""

import pytest

from proplace.explain import proplace


@pytest.fixture
def small_slack(monkeypatch):
    """Demand next to no extra margin, so that distances are those at the margin itself."""
    monkeypatch.setattr(proplace, "SLACK", 1e-7)
