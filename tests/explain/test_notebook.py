"""What a notebook shows of results: text that is escaped, and pictures without a magic line."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import proplace as pp
from proplace.core import markup
from proplace.core.text import UNSEEN

NASTY = "<img src=x onerror=alert(1)>\x1b[31m\u202e&amp;'\""
SCHEMA = pp.Schema(
    [
        pp.Continuous("debt", 0, 100, step=1, unit=f"u{NASTY}", label=f"debt{NASTY}"),
        pp.Binary("home", [f"no{NASTY}", f"yes{NASTY}"]),
    ]
)
NET = pp.Network([([[-1.0, 0.2]], [0.4])])
PEOPLE = pd.DataFrame(
    {"debt": [60, 20, 10, 30], "home": [f"no{NASTY}"] * 2 + [f"yes{NASTY}"] * 2},
    index=[f"i{NASTY}", "b", "c", "d"],
)


class Shown(HTMLParser):
    """The text of a piece of HTML, its elements, and whether tags match."""

    def __init__(self, source):
        super().__init__()
        self.source, self.tags, self.attributes, self.open, self.words = source, set(), [], [], []
        self.feed(source)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def shown(thing):
    """What a notebook shows, by IPython itself where it is installed."""
    try:
        from IPython.core.formatters import HTMLFormatter
    except ImportError:
        source = thing._repr_html_()
    else:
        source = HTMLFormatter()(thing)
    page = Shown(source)
    allowed = {"div", "strong", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert page.tags <= allowed
    assert {name for name, _ in page.attributes} <= {"style", "scope"}
    assert not UNSEEN.search(source)
    return page


@pytest.fixture(scope="module")
def result():
    explainer = pp.Proplace(NET, 0.02, schema=SCHEMA, k=3).fit(PEOPLE)
    return explainer.explain(pd.concat([PEOPLE[:1], PEOPLE[:1].assign(debt=np.nan), PEOPLE[2:3]]))


def test_one_answer(result):
    page = shown(result[0])
    words = result[0].words()
    assert words.sentence in page.text
    for change in words.changes:
        assert change.before in page.text
        assert change.after in page.text
    assert "optimal, distance" in page.text
    assert "missing" in shown(result[1]).text
    assert "bad_input" in shown(result[1]).text
    assert "distance" not in shown(result[1]).text


def test_all_answers(result):
    page = shown(result)
    assert repr(result) in page.text
    for e in result:
        assert e.status in page.text
        for change in e.words().changes:
            assert f"{change.title} {change.before} → {change.after}" in page.text
    assert result[1].reason in page.text
    made = result.provenance
    assert f"{made.network_digest[:12]}…), 4 training rows, {made.date}" in page.text


def test_many_answers_are_a_page_and_not_a_book(result):
    crowd = [replace(result[0], index=n) for n in range(25)]
    page = shown(pp.Explanations(crowd))
    assert page.source.count("<tr>") == 21
    assert "and 5 more: to_frame() has all" in page.text
    assert "more" not in shown(pp.Explanations(crowd[:20])).text
    assert "Explanations(none)" in shown(pp.Explanations([])).text


@pytest.mark.parametrize(
    "make", [pp.Proplace, pp.Rnce, lambda net, delta, schema: pp.Wachter(net, schema=schema)]
)
def test_explainers(make):
    explainer = make(NET, 0.02, schema=SCHEMA)
    assert "not fitted" in shown(explainer).text
    page = shown(explainer.fit(PEOPLE))
    assert "not fitted" not in page.text
    assert type(explainer).__name__ in page.text
    assert " 4" in page.text
    assert "Network(2-1)" in page.text


def test_layers_with_their_own_delta_are_not_told_as_one():
    assert "per layer" in shown(pp.Proplace(NET, [(0.02, 0.0)])).text


def test_certificates(result):
    page = shown(result[0].certificate)
    for text in (result[0].certificate.digest, "robust", result.provenance.network_digest, "0.02"):
        assert text in page.text


def test_a_certificate_of_a_stranger_is_shown_as_text(tmp_path):
    path = tmp_path / "proof.json"
    path.write_text(json.dumps({"verdict": "robust", "network": NASTY, "target": [NASTY] * 99}))
    page = shown(pp.Certificate.load(path))
    assert "onerror" in page.text
    assert len(page.source) < 3000


def test_markup_escapes_every_place():
    page = Shown(
        markup.card(NASTY, markup.paragraph(NASTY), markup.table([NASTY], [[NASTY, NASTY]]))
    )
    assert "img" not in page.tags
    assert page.source.count("&lt;img") == 5


def test_pictures_show_themselves(result):
    pytest.importorskip("matplotlib")
    for figure in (result[0].plot(), result.plot(), result.plot(retrained=[NET])):
        image = figure._repr_png_()
        assert image.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(image) > 10_000
    again = pickle.loads(pickle.dumps(figure))
    assert again._repr_png_()[:8] == image[:8]


def test_ipython_takes_the_picture(result):
    formatters = pytest.importorskip("IPython.core.formatters")
    pytest.importorskip("matplotlib")
    assert formatters.PNGFormatter()(result[0].plot())


def test_people_who_have_the_class_are_told_its_label():
    frame = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0]})
    model = LogisticRegression(C=100.0).fit(frame, ["refused"] * 2 + ["approved"] * 2)
    for explainer in (pp.Proplace(model, 0.01), pp.Wachter(model)):
        found = explainer.fit(frame).explain(frame[3:], target="approved")[0]
        assert found.status == "already_valid"
        assert found.reason.startswith("the network gives class 'approved' already")
