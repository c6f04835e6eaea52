"""The page of an audit, as text and in a browser, on a desktop and on a phone."""

from __future__ import annotations

import numpy as np
import pytest

import proplace as pp
from browser import CHROMIUM, DESKTOP, NO_BROWSER, PHONE, seen
from proplace.ledger.verdicts import NETWORK_ACCEPTS, NOTES
from support.lenders import promise_rows


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """Promises of several terms, some of each verdict."""
    ledger = pp.Ledger(tmp_path_factory.mktemp("book") / "promises.db")
    rng = np.random.default_rng(0)
    near, far = pp.Network([([[1.0, 0.25]], [0.0])]), pp.Network([([[1.0, 0.0]], [2.0])])
    rows = rng.uniform(0.5, 2.0, size=(160, 2)) * np.array([1.0, -6.0])
    promise_rows(ledger, near, pp.Shifts.of(near, 0.25), np.array([[4.0, 1.0]]))
    promise_rows(ledger, far, pp.Shifts.of(far, 0.25), np.vstack([rows, [[4.0, 1.0]]]))
    wide = pp.Network([([[1.0, 0.0, 0.0]], [0.0])])
    promise_rows(ledger, wide, pp.Shifts.of(wide, 0.25), np.ones((1, 3)))
    return ledger.audit(near)


def test_audit_page_shows_counts_and_groups(audit, tmp_path):
    text = audit.report(tmp_path / "audit.html").read_text()
    counts = audit.counts
    assert min(counts.values()) >= 1
    assert f"keeps {counts['holds']} without a proof and breaks {counts['broken']}" in text
    assert f"And {counts['broken'] - 100} more" in text
    assert "lies in the promised set (the current model)" in text
    assert "takes 2 columns" in text
    assert audit.model_digest in text
    assert "Do not release" not in text


def test_alarm_comes_first(audit, tmp_path):
    note = audit.verdicts.note.copy()
    audit.verdicts.note[0] = NETWORK_ACCEPTS
    try:
        text = audit.report(tmp_path / "audit.html").read_text()
    finally:
        audit.verdicts.note[:] = note
    assert NOTES[NETWORK_ACCEPTS] in text
    assert text.index("Do not release this model") < text.index("What the verdicts mean")


def test_audit_of_no_promise_has_page(tmp_path):
    with pp.Ledger(tmp_path / "p.db") as ledger:
        page = ledger.audit(pp.Network([([[1.0]], [0.0])])).report(tmp_path / "audit.html")
    assert "No promise is open" in page.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_nothing_sticks_out(audit, tmp_path, width):
    page = audit.report(tmp_path / "audit.html")
    found, console = seen(page, width, tmp_path)
    assert console == []
    assert found["scroll"] <= found["width"]
    assert found["out"] == []
    assert found["torn"] == []
    assert found["small"] == 0
