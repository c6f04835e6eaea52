"""Sentences, pictures and pages about a set with an interval for each parameter."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from proplace.core.transforms import Fold
from proplace.explain.words import ReportTerms, describe_networks, is_proved_robust
from proplace.report import page
from proplace.report.plots import (
    FACTORS,
    _lasts,
    draw_margins,
    margin_curves,
    margins_view,
    region_view,
)
from proplace.report.style import new_figure
from support.lenders import DELTA, LOAN, SCHEMA, with_current

ABOUT = "learned from 59 retrainings"


def moved(net, size, seed):
    rng = np.random.default_rng(seed)
    return net.with_layers(
        (
            layer.W + size * rng.uniform(-0.5, 1.0, layer.W.shape),
            layer.b + size * rng.uniform(-0.5, 1.0, layer.b.shape),
        )
        for layer in net.layers
    )


@pytest.fixture(scope="module")
def history(lender):
    return [moved(lender.net, 0.01, seed) for seed in range(5)]


@pytest.fixture(scope="module")
def box(history):
    hull = pp.Shifts.bounding(history)
    return pp.Shifts(hull.low, hull.high, description=ABOUT)


@pytest.fixture(scope="module")
def result(lender, box):
    people = lender.frame[lender.net.predict(lender.X) == 0].iloc[1:3]
    return pp.Proplace(lender.net, box, schema=SCHEMA).fit(lender.frame).explain(people, gap=0)


def about(e, shifts, **changes):
    """The same answer about another set."""
    return replace(e, setting=with_current(e.setting, shifts=shifts, **changes))


# -- sentences -------------------------------------------------------------------------------------


def test_set_is_named_by_its_origin(result, lender, history, box):
    said = result[0].describe(LOAN).sentence
    assert (
        " every model of the set “learned from 59 retrainings” (an interval for "
        "each of the weights and biases)" in said
    )
    assert "differ" not in said
    nameless = pp.Shifts(box.low, box.high)
    said = about(result[0], nameless).describe(LOAN).sentence
    assert f"every model of the set with the SHA-256 {box.digest[:12]}… (an interval" in said
    folds = [Fold.none(x.W, x.b).scaled(2.0 * np.ones(len(x.W))) for x in lender.net.layers]
    folded = pp.Network([(x.W, x.b) for x in lender.net.layers], folds=folds)
    said = describe_networks(with_current(result[0].setting, network=folded))
    assert "weights and biases, those with batch norm folded in)" in said


def test_sentence_states_that_model_is_outside_its_set(result, lender, history, box):
    outside = "The current model lies outside this set and "
    assert not box.contains(lender.net)
    assert f"{outside}accepts it, too." in result[0].describe().sentence
    wide = pp.Shifts.bounding([lender.net, *history])
    assert "outside" not in about(result[0], wide).describe().sentence
    assert "outside" not in about(result[0], pp.Shifts.of(lender.net, DELTA)).describe().sentence
    last = lender.net.layers[-1]
    layers = [(x.W, x.b) for x in lender.net.layers[:-1]]
    strict = lender.net.with_layers([*layers, (last.W, last.b - 100.0)])
    refusing = about(result[0], box, network=strict)
    assert f"{outside}does not accept it." in refusing.describe().sentence


def test_one_network_alone_is_no_promise_about_others(result, lender, history):
    one = about(result[0], pp.Shifts.bounding([lender.net]))
    assert not is_proved_robust(one)
    assert "the current model only: a retrained model" in one.describe().sentence
    other = about(result[0], pp.Shifts.bounding([history[0]]))
    assert is_proved_robust(other)  # every model of the set: another than the one in use
    assert "outside this set" in other.describe().sentence


def test_description_of_set_is_visible_and_cut(result, box):
    long = pp.Shifts(box.low, box.high, description="\x1b[31m" + "b" * 5000)
    said = about(result[0], long).describe().sentence
    assert "\x1b" not in said
    assert r"“\x1b[31mbbb" in said
    assert len(said) < 900
    assert "bbb…”" in said


# -- claims ----------------------------------------------------------------------------------------


def facts(found):
    return {fact.name: fact.value for fact in found}


def test_proved_part_is_separate_from_estimate(result):
    terms, plain = ReportTerms.of(result, LOAN), [None] * len(result)
    said = "Of 59 retrainings, 59 honour each promise."
    found = page.promises(result, terms, plain, (), said)
    names = [fact.name for fact in found]
    assert names[:2] == ["Proved", "Estimated from past retrainings, not proved"]
    promised, statement, *_ = (fact.value for fact in found)
    assert statement == said
    assert said not in promised
    assert "Every model of the set “learned from 59 retrainings”" in promised
    assert "of the same architecture" not in promised
    assert "The current model lies outside this set and accepts each of these" in promised
    assert "lies outside this set, if only with one weight or bias" in found[-1].value
    without = page.promises(result, terms, plain, (), "  ")
    assert [fact.name for fact in without] == ["Proved", "Original model", "Not proved"]


def test_answers_of_current_model_are_counted(result, lender, box):
    last = lender.net.layers[-1]
    layers = [(x.W, x.b) for x in lender.net.layers[:-1]]
    strict = lender.net.with_layers([*layers, (last.W, last.b - 100.0)])
    mixed = pp.Explanations([result[0], about(result[1], box, network=strict)])
    promised = page.promises(mixed, ReportTerms.of(mixed, LOAN), [None, None], ())[0].value
    assert "accepts 1 of the 2 answers that are called proved" in promised


def test_figures_and_record_name_set(result, box):
    figures = facts(page.figures(result, [None, None], ReportTerms.of(result, LOAN), ()))
    assert figures["answers proved for every model of the set"] == "2 of 2"
    assert figures["weights and biases that may change"] == "153 of 153"
    record = facts(page.record(result))
    assert record["Shift set, SHA-256"] == box.digest
    assert record["Origin of the shift set"] == ABOUT
    assert record["Weights and biases that may change"] == "153 of 153"
    assert record["Current model"] == "outside the set"
    assert "Delta" not in record


def test_frozen_parameters_are_not_counted_as_moving(lender, result, box):
    first = lender.net.layers[0]
    pairs = [(x.W, x.b) for x in box.low.layers]
    high = [(x.W, x.b) for x in box.high.layers]
    high[0] = pairs[0]
    some = pp.Shifts(box.low, box.high.with_layers(high))
    frozen = pp.Explanations([about(e, some) for e in result])
    figures = facts(page.figures(frozen, [None, None], ReportTerms.of(frozen, LOAN), ()))
    left = 153 - first.W.size - first.b.size
    assert figures["weights and biases that may change"] == f"{left} of 153"


def test_retrained_networks_lie_in_set_or_not(result, lender, history):
    setting = result[0].setting
    assert page.Moves.of(setting, history).words.endswith("all lie in the set")
    far = moved(lender.net, 0.5, 9)
    assert page.Moves.of(setting, [*history, far]).words.endswith("5 of 6 lie in the set")
    assert page.Moves.of(setting, [lender.net]).words.endswith("it does not lie in the set")


def test_glossary_explains_set_instead_of_delta(result, lender):
    def words(found):
        return facts(page.glossary(found, ReportTerms.of(found, LOAN), compares=True))

    ours, plain = words(result), words(lender.result)
    assert "delta" not in ours
    assert "the set" in ours
    assert not any("within delta" in text for text in ours.values())
    assert "not only the one in use" not in ours["robust, proved"]
    assert all(len(text) < 200 for text in ours.values())
    assert "the set" not in plain
    assert (
        plain["robust, proved"]
        == "Every model within delta decides “approved”, not only the current one."
    )


# -- pictures --------------------------------------------------------------------------------------


def test_curve_is_drawn_against_size_of_set(result):
    pytest.importorskip("matplotlib")
    e, terms = result[0], ReportTerms.of(result, LOAN)
    ours, plain = margin_curves([e], [None])
    axes = new_figure(4, 4).subplots()
    draw_margins(axes, ours, plain, e, terms)
    assert axes.get_xlabel() == "size of the set, 1 = as certified"
    assert [text.get_text() for text in axes.texts] == ["as certified"]
    assert axes.get_xlim() == (0.0, 2.0)
    box = e.setting.current.shifts
    for n in (0, 6, 12, 24):  # the curve is that of the scaled box
        lower = pp.certify(
            e.setting.current.network,
            e.encoded_counterfactual[None],
            box.scaled(FACTORS[n]),
            exact_margin=True,
        ).lower
        assert ours[n, 0] == pytest.approx(lower[0])
    picture = margins_view(ours, plain, e, terms)
    assert "against the size of the set" in picture.alt
    assert "current model" not in picture.caption
    assert "over all networks of the set at that size" in picture.caption
    map_ = region_view(e, None, terms)
    assert "what every model of the set calls approved" in map_.caption


def test_captions_of_set_claim_no_more_than_curve(result):
    setting = result[0].setting
    falling = np.linspace(1.0, -1.0, len(FACTORS))[:, None] - 1e-9  # below 0 from factor 1 on
    assert _lasts(falling, setting) == "up to at least 0.91 times the size of the set"
    assert _lasts(falling - 0.99, setting) == (
        "in the middle of the set, but not proved at 0.08 times its size"
    )
    assert _lasts(falling - 2.0, setting) == "not even in the middle of the set"


# -- the page --------------------------------------------------------------------------------------


def test_page_of_set_names_its_files(result, box, history, tmp_path):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    result.report(
        page, LOAN, proofs=tmp_path / "proofs", retrained=history, statement="<i>All</i> held."
    )
    text = page.read_text()
    assert "not proved.</strong> &lt;i&gt;All&lt;/i&gt; held.</p>" in text
    assert "Words such as the set, margin" in text
    assert "within delta" not in re.sub(r'data:image[^"]*', "", text)
    assert "--model proofs/model.npz --delta proofs/shifts.npz" in text
    assert pp.Shifts.load(tmp_path / "proofs" / "shifts.npz") == box
