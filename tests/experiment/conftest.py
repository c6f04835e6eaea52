"""The toy data set in place of COMPAS."""

from __future__ import annotations

import pytest

from experiment.toy import SETTINGS, toy
from proplace.experiment import archive, protocol, settings
from proplace.experiment import run as experiment


@pytest.fixture
def toy_for_compas(monkeypatch):
    """Replace COMPAS by the toy data."""
    made = toy()
    monkeypatch.setattr(protocol, "load", lambda name, folder, repaired: made)
    monkeypatch.setattr(archive, "load", lambda name, folder, repaired: made)
    monkeypatch.setitem(settings.SETTINGS, "compas", SETTINGS)

    def forget():
        for memory in (protocol.dataset, experiment._problem, experiment._outliers):
            memory.cache_clear()

    forget()
    yield made
    forget()
