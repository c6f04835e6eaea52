"""Several answers of a person on the page, and what is out of reach there."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest

import proplace as pp

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def test_the_table_is_that_of_the_paths(paths_result, paths_page):
    result, text = paths_result, paths_page.read_text(encoding="utf-8")
    assert len({e.index for e in result}) == 2
    assert text.count('<table class="paths">') == 1 + (sum(e.index == 1 for e in result) > 1)
    table = re.search(r'<table class="paths">(.*?)</table>', text, re.S)[1]
    cells = re.findall(r"<(?:th|td)\b[^>]*>(.*?)</(?:th|td)>", table)
    expected = result.paths(0)
    for cell in (*expected.columns, *expected.index, *expected.to_numpy().ravel()):
        if cell != "optimal":
            assert html.escape(str(cell)) in cells
    assert cells.count("nearest answer, proved") == 1  # the others are proved, and not nearest
    assert cells.count("proved") == expected.shape[1] - 2
    beyond = sum(e.out_of_reach for e in result)
    assert beyond > 0
    assert text.count('<span class="tag no">out of reach</span>') == 2 * beyond  # heading, overview
    assert "more effort than 4, what was set as reachable" in text


def test_pages_without_efforts_say_nothing_of_it(paths_result, tmp_path):
    setting = paths_result[0].setting
    explainer = pp.Proplace(setting.net, 0.01).fit(np.random.default_rng(1).random((60, 5)))
    page = explainer.explain([[0.1, 0.9, 0.0, 0.0, 0.0]]).report(tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "effort" not in text
    assert "out of reach" not in text
    assert '<table class="paths">' not in text
