"""Fixture of the tests of proofs."""

from __future__ import annotations

import math

import pytest

from proplace.certification import checker


@pytest.fixture
def any_margin(monkeypatch):
    """Let proofs of any margin count, so that they are tested at margins of both signs.

    The sign that a certificate needs is tested in test_margin_sign.py.
    """
    monkeypatch.setattr(checker, "MIN_MARGIN", -math.inf)
