"""Results in a notebook: the table of the data frame, and pictures without a magic line."""

from __future__ import annotations

import pickle

import pandas as pd
import pytest

import proplace as pp

NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def result():
    schema = pp.Schema(
        [pp.Continuous("debt", 0, 100, step=1), pp.Binary("home", [f"no{NASTY}", f"yes{NASTY}"])]
    )
    people = pd.DataFrame(
        {"debt": [60, 20, 10, 30], "home": [f"no{NASTY}"] * 2 + [f"yes{NASTY}"] * 2},
        index=[f"i{NASTY}", "b", "c", "d"],
    )
    net = pp.Network([([[-1.0, 0.2]], [0.4])])
    return pp.Proplace(net, 0.02, schema=schema, k=3).fit(people).explain(people[:2])


def test_results_show_their_frame_escaped(result):
    source = result._repr_html_()
    assert source == result.to_frame()._repr_html_()
    assert "&lt;img" in source
    assert "<img" not in source


def test_pictures_show_themselves(result):
    pytest.importorskip("matplotlib")
    for figure in (result[0].plot(), result.plot()):
        assert figure._repr_png_().startswith(b"\x89PNG\r\n\x1a\n")
    assert pickle.loads(pickle.dumps(figure))._repr_png_()[:8] == figure._repr_png_()[:8]
