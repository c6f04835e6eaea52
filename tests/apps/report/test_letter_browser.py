"""Letters in a real browser: one page of A4 when printed, all of it, and readable on a phone."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from browser import CHROMIUM, NO_BROWSER, PHONE, chromium, seen
from proplace.core.distances import L1
from proplace.explain.results import Setting
from small_lender import LOAN

pytest.importorskip("jinja2")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)

DAYS = {"date": "2026-03-31", "valid_until": "2026-12-31"}


def person(changes, features, *, ways=1, digits=6):
    """Answers that change some of many features."""
    names = [f"feature {n} of a usual length" for n in range(features)]
    schema = pp.Schema([pp.Continuous(n, 0, 1000, unit="thousand dollars") for n in names])
    net = pp.Network([(np.ones((1, features)), [1.0])])
    setting = Setting(net, pp.Shifts.of(net, 0.01), schema, L1(np.ones(features)))
    rng = np.random.default_rng(0)
    before = pd.Series((1000 * rng.random(features)).round(1), index=names, dtype=object)
    after = before.copy()
    after.iloc[:changes] = (1000 * rng.random(changes)).round(digits)
    proof = pp.certify(net, np.ones((1, features)), 0.001, certificates=True).certificates[0]
    e = pp.Explanation(
        7, "optimal", "", 1, before, after, 0.2, 0.2, 0.01, setting=setting, certificate=proof
    )
    return pp.Explanations([replace(e, rank=n) for n in range(ways)])


def pages_of(pdf):
    return len(re.findall(rb"/Type\s*/Page[^s]", pdf.read_bytes()))


@pytest.mark.parametrize(
    ("changes", "features", "ways"),
    [(3, 60, 1), (14, 30, 1), (30, 30, 1), (8, 30, 4), (30, 30, 3)],
)
def test_a_letter_is_one_page(changes, features, ways, tmp_path):
    path = tmp_path / "a.html"
    person(changes, features, ways=ways).letter(7, path, LOAN, **DAYS)
    _, console = chromium(
        tmp_path / "profile",
        "--no-pdf-header-footer",
        f"--print-to-pdf={tmp_path / 'a.pdf'}",
        path.as_uri(),
    )
    assert console == []
    assert pages_of(tmp_path / "a.pdf") == 1


def test_this_test_would_see_a_second_page(tmp_path):
    path = tmp_path / "a.html"
    person(150, 150).letter(7, path, LOAN, **DAYS)  # more than a page holds in any type
    chromium(tmp_path / "profile", f"--print-to-pdf={tmp_path / 'a.pdf'}", path.as_uri())
    assert pages_of(tmp_path / "a.pdf") > 1


def test_a_letter_on_a_phone(tmp_path):
    path = tmp_path / "a.html"
    person(8, 30, ways=4).letter(7, path, LOAN, **DAYS)
    view, console = seen(path, PHONE, tmp_path)
    assert console == []
    assert view["title"] == "What would have to change: Applicant 7"
    assert view["scroll"] <= PHONE, view["out"]
    assert view["out"] == []
    assert view["torn"] == []
    assert view["small"] == 0
