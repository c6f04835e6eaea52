"""The report in a real browser: nothing on the console, everything shown, no sideways scrolling."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from browser import CHROMIUM, DESKTOP, NO_BROWSER, PHONE, chromium, seen
from proplace.explain.statement import stated
from proplace.report.geometry import no_region
from support.lenders import LOAN
from support.tiers import quick

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)


@pytest.fixture
def page(folder):
    return folder / "report.html"


@pytest.mark.parametrize("width", quick(1, [DESKTOP, PHONE]))
def test_report_opens_without_errors(page, lender, width, tmp_path):
    view, console = seen(page, width, tmp_path)
    assert console == []
    assert view["title"] == "Loans <b>& more</b>"  # no name in the table could change it
    assert view["width"] == width
    assert view["scroll"] <= width, view["out"]
    assert view["out"] == []
    found = [e for e in lender.result if e.found]
    assert view["images"] >= 2 * len(found) - sum(bool(no_region(e)) for e in found)
    assert view["broken"] == 0
    assert view["small"] == 0
    text = re.sub(r"\s+", " ", view["text"])
    for e in lender.result:
        assert e.describe(LOAN).sentence in text
        assert stated(e, LOAN).digest in text
    assert "proplace check 'the proofs/answer-1.json' --model 'the proofs/model.npz'" in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_ids_stay_on_one_line(lender, width, tmp_path):
    people = lender.frame.loc[[e.index for e in lender.result[:3]]].copy()
    people.index = [f"customer-000{n}-2025" for n in range(2)] + ["long " * 30]
    path = tmp_path / "ids.html"
    lender.explainer.explain(people).report(path, LOAN, retrained=lender.retrained)
    view, console = seen(path, width, tmp_path)
    assert console == []
    assert view["names"] == 2
    assert view["wrapped"] == 0
    assert view["scroll"] <= width, view["out"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, PHONE, 600, DESKTOP])
def test_no_number_is_torn(width, tmp_path):
    """Long names leave little width beside them, and a number must not break into two."""
    names = ["average_outstanding_balance_of_all_accounts", "utilisation of revolving credit lines"]
    rows = pd.DataFrame({name: np.linspace(-1, 1, 30) * 1e9 / 7 for name in names})
    features = [
        pp.Continuous(n, -2e8, 2e8, unit="roubles and kopecks", scaling=(0, 1e8)) for n in names
    ]
    features.append(pp.Categorical("word", ["w" * 80, "v" * 80]))
    rows["word"] = ["w" * 80, "v" * 80] * 15
    net = pp.Network([([[1.0, 0.5, 0.1, 0.0]], [-0.2])])
    explainer = pp.Proplace(net, 0.01, k=3, schema=pp.Schema(features)).fit(rows)
    explainer.explain(rows[:2]).report(tmp_path / "long.html", retrained=[net])
    view, console = seen(tmp_path / "long.html", width, tmp_path)
    assert console == []
    assert view["numbers"] > 20
    assert view["torn"] == []
    assert view["scroll"] <= width, view["out"]
    assert view["out"] == []


@pytest.mark.slow
def test_report_alone_prints_nothing_on_console(page, tmp_path):
    dom, console = chromium(tmp_path / "profile", "--dump-dom", page.as_uri())
    assert console == []
    assert "What is proved" in dom


@pytest.mark.slow
def test_harness_finds_errors_and_wide_pages(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><title>bad</title><img src='none.png'>"
        "<div style='width:900px'>wide</div><script>missing()</script>",
        encoding="utf-8",
    )
    view, console = seen(bad, PHONE, tmp_path)
    assert any("missing is not defined" in line for line in console)
    assert view["scroll"] > PHONE
    assert view["out"]
    assert view["broken"] == 1
