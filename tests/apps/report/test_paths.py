"""Several answers of a person on the page, and what is out of reach there."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from test_page_browser import CHROMIUM, DESKTOP, PHONE, seen

import proplace as pp
from proplace.schema import Schema

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    schema = Schema(
        [
            pp.Continuous(
                "income", 0, 100, step=1, effort=[(0, 0), (10, 1), (40, 20)], label="pay"
            ),
            pp.Continuous("debt", 0, 100, step=1, unit="% of income"),
            pp.Categorical("job", ["<i>cook", "clerk & co", "boss"], effort=3),
        ]
    )
    names = schema.features[2].categories
    table = pd.DataFrame(
        {
            "income": rng.integers(0, 100, 200),
            "debt": rng.integers(0, 100, 200),
            "job": rng.choice(names, 200),
        }
    )
    net = pp.Network([([[1.0, -1.0, 0.0, 0.2, 0.5]], [-0.1])])
    explainer = pp.Proplace(net, 0.01, schema=schema, max_effort=4).fit(table)
    people = pd.DataFrame({"income": [20, 90], "debt": [50, 99], "job": [names[0]] * 2})
    return explainer.explain(people, count=3)


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    return result.report(tmp_path_factory.mktemp("paths") / "page.html")


def test_the_table_is_that_of_the_paths(result, page):
    text = page.read_text(encoding="utf-8")
    assert len({e.index for e in result}) == 2
    assert text.count('<table class="paths">') == 1 + (sum(e.index == 1 for e in result) > 1)
    table = re.search(r'<table class="paths">(.*?)</table>', text, re.S)[1]
    cells = re.findall(r"<(?:th|td)[^>]*>(.*?)</(?:th|td)>", table)
    expected = result.paths(0)
    for cell in (*expected.columns, *expected.index, *expected.to_numpy().ravel()):
        shown = str(cell).replace("&", "&amp;").replace("<", "&lt;")
        if cell != "optimal":
            assert shown in cells
    assert cells.count("nearest answer, proved") == 1  # the others are proved, and not nearest
    assert cells.count("proved") == expected.shape[1] - 2
    beyond = sum(e.out_of_reach for e in result)
    assert beyond > 0
    assert text.count('<span class="tag no">out of reach</span>') == 2 * beyond  # heading, overview
    assert "more effort than 4, what was set as reachable" in text


def test_pages_without_efforts_say_nothing_of_it(result, tmp_path):
    setting = result[0].setting
    explainer = pp.Proplace(setting.net, 0.01).fit(np.random.default_rng(1).random((60, 5)))
    page = explainer.explain([[0.1, 0.9, 0.0, 0.0, 0.0]]).report(tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "effort" not in text
    assert "out of reach" not in text
    assert '<table class="paths">' not in text


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_paths_fit_on_screens(page, width, tmp_path):
    view, console = seen(page, width, tmp_path)
    assert console == []
    assert view["scroll"] <= width, view["out"]
    assert view["out"] == []
    assert view["torn"] == []
    text = re.sub(r"\s+", " ", view["text"])
    assert "beside each other" in text
    assert ("path 2: " in text) == (width == PHONE)
