"""Letters in a real browser: whole when printed, and readable on a phone."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from browser import CHROMIUM, NO_BROWSER, PHONE, chromium, seen
from proplace.core.distances import L1
from proplace.report.letter import letter_of_promise
from support.lenders import LOAN, setting_of

pytest.importorskip("jinja2")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)

WIDTH = 650  # pixels of CSS between the margins of a page of A4


def promised(changes, features, *, digits=6):
    """A promise that changes some of many features."""
    names = [f"feature {n} of a usual length" for n in range(features)]
    schema = pp.Schema([pp.Continuous(n, 0, 1000, unit="thousand dollars") for n in names])
    net = pp.Network([(np.ones((1, features)), [1.0])])
    model = pp.Model.of(net).with_schema(schema)
    setting = setting_of(model, pp.Shifts.of(net, 0.01), distance=L1(np.ones(features)))
    rng = np.random.default_rng(0)
    before = pd.Series((1000 * rng.random(features)).round(1), index=names, dtype=object)
    after = before.copy()
    after.iloc[:changes] = (1000 * rng.random(changes)).round(digits)
    proof = pp.certify(net, np.ones((1, features)), 0.001, certificates=True).certificates[0]
    e = pp.Explanation(
        "optimal",
        "",
        index=7,
        target=1,
        original=before,
        counterfactual=after,
        distance=0.2,
        bound=0.2,
        margin=0.01,
        setting=setting,
        certificate=proof,
    )
    return SimpleNamespace(
        state="open",
        id=7,
        person="ann",
        issued="2026-11-16T09:30:00Z",
        expires="2027-05-31",
        wording=LOAN,
        explanation=e,
    )


@pytest.mark.parametrize(("changes", "digits"), [(3, 6), (30, 15)])
def test_printed_letter_loses_nothing(changes, digits, tmp_path):
    """On pages of A4, however many: nothing is wider than a page, and no type is small."""
    path = tmp_path / "a.html"
    letter_of_promise(promised(changes, 30, digits=digits), path)
    text = path.read_text(encoding="utf-8")
    pdf = tmp_path / "a.pdf"
    _, console = chromium(tmp_path / "profile", f"--print-to-pdf={pdf}", path.as_uri())
    assert console == []
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", pdf.read_bytes())) <= 3
    # The rules of print in a frame as wide as the page within its margins.
    printed = text.replace("@media print", "@media all").replace("@media screen", "@media not all")
    path.write_text(printed, encoding="utf-8")
    view, _ = seen(path, WIDTH, tmp_path)
    assert view["scroll"] <= WIDTH, view["out"]
    assert view["out"] == []
    assert "eature 0 of a usual length" in view["text"]
    assert "For specialists" in view["text"]


def test_letter_fits_phone(tmp_path):
    path = tmp_path / "a.html"
    letter_of_promise(promised(8, 30), path)
    view, console = seen(path, PHONE, tmp_path)
    assert console == []
    assert view["title"] == "Letter to applicant ann, promise 7"
    assert view["scroll"] <= PHONE, view["out"]
    assert view["out"] == []
    assert view["torn"] == []
    assert view["small"] == 0
