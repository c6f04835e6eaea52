"""Claims of the page are proved or measured, each in its own words."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from oracles import forward, margin_of
from proplace.explain.words import ReportTerms
from proplace.report.geometry import worst_margins
from proplace.report.page import Moves, figures, glossary, lead, promises
from proplace.report.plots import FACTORS, _lasts, margin_curves
from support.lenders import DELTA, LOAN, SCHEMA, with_current
from support.pages import Page

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

WITHIN = "whose weights and biases each differ from the current model by at most 0.01"


def text_of(path):
    return Page(path).text


def moved(net, size, seed):
    """A network whose every parameter is some size away, up or down."""
    rng = np.random.default_rng(seed)
    return pp.Network(
        [
            (
                layer.W + size * rng.choice([-1.0, 1.0], layer.W.shape),
                layer.b + size * rng.choice([-1.0, 1.0], layer.b.shape),
            )
            for layer in net.layers
        ]
    )


@pytest.fixture(scope="module")
def some(lender):
    return lender.result[:2]


def test_page_without_retrained_networks_names_none(some, tmp_path):
    text = text_of(some.report(tmp_path / "a.html", LOAN))
    assert "retrained model" not in text
    assert "Counted" not in text
    assert "survive" not in text
    assert "stay true" not in text
    # The rest describes retraining, and promises nothing about it.
    rest = re.findall(r"[^.]*[Rr]etrain[^.]*\.", text)
    assert [r.strip() for r in rest] == [
        "Retraining changes these numbers.",
        "It has no unit; how far a retraining moves them can be measured.",
    ]
    assert "Not proved. Anything about a model that has changed by more" in text


def test_head_states_proved_claim(some, lender):
    count = len(some)
    said = lead(some, LOAN)
    assert said.endswith(
        f"All {count} answers are proved: every model {WITHIN} decides “approved”."
    )
    one = lead(some[:1], LOAN)
    assert f"1 applicant. The answer is proved: every model {WITHIN}" in one
    layers = [(DELTA, DELTA), (DELTA, 0.0), (0.0, 0.0)]
    frozen = pp.Proplace(lender.net, layers, schema=SCHEMA).fit(lender.frame)
    people = lender.frame.loc[[some[0].index]]
    assert "by at most what is set for their layer" in lead(frozen.explain(people), LOAN)


def test_answers_that_are_not_proved_are_not_counted_as_such(some):
    weak = replace(some[0], status="valid", certificate=None)
    mixed = pp.Explanations([weak, some[1], some[1]])
    said = lead(mixed, LOAN)
    assert "2 of 3 answers are proved: every model" in said
    assert said.endswith("The others are shown for the current model only.")
    shown = figures(mixed, [None] * 3, ReportTerms.of(mixed, LOAN), [])
    values = {fact.name: fact.value for fact in shown}
    assert values["answers proved for every model within delta"] == "2 of 3"
    assert ReportTerms.of(mixed, LOAN).answers == "answers"  # not "robust answers"
    assert ReportTerms.of(some, LOAN).answers == "robust answers"


@pytest.mark.parametrize(
    "method", [pp.baselines.Wachter, lambda net, schema: pp.Proplace(net, 0.0, schema=schema)]
)
def test_page_without_delta_claims_nothing_beyond_model(lender, method, tmp_path):
    people = lender.frame.loc[[lender.result[0].index]]
    result = method(lender.net, schema=SCHEMA).fit(lender.frame).explain(people)
    assert "shown for the current model only" in lead(result, LOAN)
    text = text_of(result.report(tmp_path / "a.html", LOAN))
    assert "Proved. The current model decides “approved” for each answer. Nothing beyond" in text
    assert "are proved" not in text
    assert "robust answer" not in text
    assert "a model that has changed in any way" in text


def test_lead_without_any_answer_states_it(lender):
    none = lender.explainer.explain(lender.frame.iloc[:2].assign(debt=np.nan))
    assert lead(none, LOAN).endswith("2 applicants. There is no answer for any of them.")
    said = promises(none, ReportTerms.of(none, LOAN), [None, None], lender.retrained)
    assert [fact.name for fact in said] == ["Proved", "Not proved"]


def test_how_far_retrained_networks_moved_is_measured(lender):
    setting = lender.result[0].setting
    by_hand = max(
        float(np.abs(old - new).max())
        for net in lender.retrained
        for a, b in zip(lender.net.layers, net.layers, strict=True)
        for old, new in ((a.W, b.W), (a.b, b.b))
    )
    far = Moves.of(setting, lender.retrained)
    assert (far.count, far.inside, far.apart, far.largest) == (2, 0, 0, by_hand)
    assert far.words == (
        f"2 retrained models, whose weights and biases moved by up to {by_hand:.3g}; none lies "
        "within delta"
    )
    near = [moved(lender.net, 0.99 * DELTA, seed) for seed in range(3)]
    assert Moves.of(setting, near).inside == 3
    assert Moves.of(setting, near).words.endswith("; all lie within delta")
    assert Moves.of(setting, near[:1]).words.endswith("; it lies within delta")
    mixed = [*near, moved(lender.net, 1.01 * DELTA, 3)]
    assert Moves.of(setting, mixed).words.endswith("; 3 of 4 lie within delta")


def test_delta_is_that_of_each_layer(lender):
    setting = lender.result[0].setting
    frozen = pp.Shifts.of(lender.net, [(DELTA, DELTA), (DELTA, DELTA), (DELTA, 0.0)])
    near = moved(lender.net, 0.5 * DELTA, 0)
    assert Moves.of(setting, [near]).inside == 1
    assert Moves.of(with_current(setting, shifts=frozen), [near]).inside == 0


def test_another_architecture_or_scaling_is_never_within_delta(lender):
    setting = lender.result[0].setting
    layers = [(layer.W, layer.b) for layer in lender.net.layers]
    scaled = pp.Network(layers, scale=np.full(lender.net.inputs, 1.5))
    wider = pp.Network([(np.vstack([layers[0][0]] * 2), None), (np.ones((1, 16)), None)])
    found = Moves.of(setting, [scaled, wider])
    assert (found.inside, found.apart, found.largest) == (0, 2, None)
    assert found.words == (
        "2 retrained models; all of another architecture or input scaling; none lies within delta"
    )
    assert "; 1 of 2 of another" in Moves.of(setting, [scaled, lender.net]).words


def test_networks_within_delta_keep_every_proved_answer(lender, tmp_path):
    """The counts of the page against plain forward passes, where the proof decides them."""
    near = [moved(lender.net, 0.999 * DELTA, seed) for seed in range(5)]
    result = lender.result
    kept = [
        margin_of(forward(net, e.encoded_counterfactual), 1) >= 0.0 for net in near for e in result
    ]
    assert all(kept)
    text = text_of(result.report(tmp_path / "a.html", LOAN, retrained=near))
    assert "5 retrained models, whose weights and biases moved by up to 0.00999" in text
    assert "; all lie within delta." in text
    assert f"are approved in {len(kept)} of {len(kept)} cases (100%)" in text


def test_limits_stand_before_answers(some, tmp_path):
    source = some.report(tmp_path / "a.html", LOAN).read_text(encoding="utf-8")
    order = [
        source.index(mark) for mark in ('id="says"', "Not proved.", "<article", 'id="glossary"')
    ]
    assert order == sorted(order)


def test_line_of_facts_names_origin_of_answers(lender, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1738324800")
    path = tmp_path / "net <b>.npz"
    lender.net.save(path)
    people = lender.frame.loc[[lender.result[0].index]]
    result = pp.Proplace(path, DELTA, schema=SCHEMA, k=7).fit(lender.frame).explain(people)
    text = text_of(result.report(tmp_path / "a.html", LOAN))
    file = hashlib.sha256(path.read_bytes()).hexdigest()
    made = result.provenance
    assert "Made 2025-01-31 Model net <b>.npz Training rows 400" in text
    head, _, rest = text.partition("What this page was made from")
    for digest in (file, made.network_digest, made.training_digest):
        assert digest not in head.replace(str(result[0].certificate.digest), "")
        assert digest in rest
    assert "<b>" not in (tmp_path / "a.html").read_text(encoding="utf-8").partition("<body>")[2]


def test_answers_of_unknown_origin_have_no_record(some, tmp_path):
    text = text_of(pp.Explanations(list(some)).report(tmp_path / "a.html", LOAN))
    assert "What this page was made from" not in text
    assert " UTC" not in text


def test_equal_runs_give_equal_pages(lender, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    people = lender.frame.loc[[lender.result[0].index]]
    for name in ("a.html", "b.html"):
        pp.Proplace(lender.net, DELTA, schema=SCHEMA).fit(lender.frame).explain(people).report(
            tmp_path / name, LOAN
        )
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_captions_claim_no_more_than_curves(lender):
    found = [e for e in lender.result if e.found]
    ours, _ = margin_curves(found, [])
    said = _lasts(ours, found[0].setting)
    size = float(said.removeprefix("up to a change of at least "))
    assert DELTA <= size <= 2 * DELTA
    worst = worst_margins(
        found[0], np.array([e.encoded_counterfactual for e in found]), np.array([size / DELTA])
    )
    assert (worst >= 0.0).all()
    falling = np.linspace(1.0, -1.0, len(FACTORS))[:, None] - 1e-9  # below 0 from factor 1 on
    net = lender.net
    some, layered = (
        with_current(found[0].setting, shifts=pp.Shifts.of(net, delta))
        for delta in (0.0175, [(0.01, 0.02)] * len(net.layers))
    )
    assert _lasts(falling, some) == "up to a change of at least 0.016"  # 11/12 of it: 0.01604
    assert _lasts(falling, layered) == "up to a change of at least 0.91 times delta"
    assert "not proved under a change of 0.00145" in _lasts(falling - 0.99, some)
    assert _lasts(falling - 2.0, some) == "not even in the current model"


def test_words_that_are_not_used_are_not_explained(lender, some):
    def words(result, *, compares):
        return {
            fact.name for fact in glossary(result, ReportTerms.of(result, LOAN), compares=compares)
        }

    everything = words(some, compares=True)
    assert {"delta", "margin", "certificate", "region", "robust neighbour"} <= everything
    assert "typical, plausibility" in everything
    assert {"plain nearest answer", "SHA-256"} <= everything
    assert ("nearest" in everything) == any(e.status == "optimal" for e in some)
    assert words(some, compares=False) == everything - {"plain nearest answer"}
    people = lender.frame.loc[[some[0].index]]
    plain = pp.baselines.Wachter(lender.net, schema=SCHEMA).fit(lender.frame).explain(people)
    missing = {"region", "robust neighbour", "certificate", "nearest"}
    assert words(plain, compares=True) == everything - missing
    box = pp.Proplace(lender.net, DELTA, schema=SCHEMA, region="box").fit(lender.frame)
    assert "region" not in words(box.explain(people), compares=True)
    for fact in glossary(some, ReportTerms.of(some, LOAN), compares=True):
        assert len(fact.value) < 200
        assert "{" not in fact.value


@pytest.mark.parametrize(
    ("index", "name", "kind"),
    [
        (["customer-0042-2025"], "customer-0042-2025", "id"),
        (["x" * 60], "x" * 60, "long id"),
        (pd.MultiIndex.from_tuples([("north", 7)]), "north, 7", "id"),
    ],
)
def test_ids_are_whole(lender, index, name, kind, tmp_path):
    people = lender.frame.loc[[lender.result[0].index, lender.result[0].index]].copy()
    people.index = index.append(index) if isinstance(index, pd.MultiIndex) else [*index, *index]
    result = lender.explainer.explain(people)
    source = result.report(tmp_path / "a.html", LOAN).read_text(encoding="utf-8")
    assert f'class="{kind}"><a href="#answer-1">{name}</a>' in source
    assert f"Applicant {name} <span" in source


def test_missing_map_has_reason(tmp_path):
    net = pp.Network([([[1.0]], [-0.5])])
    result = pp.Proplace(net, 0.05, k=2).fit([[0.2], [0.8], [0.9]]).explain([[0.1]])
    text = text_of(result.report(tmp_path / "a.html", LOAN))
    assert (
        "There is no map of the region: it would need two numbers, and there is only one." in text
    )


def test_page_states_that_categories_alone_have_no_map(tmp_path):
    schema = pp.Schema([*(pp.Continuous(c, 0, 1) for c in "ab"), pp.Binary("home")])
    net = pp.Network([([[0.2, 0.2, 1.0]], [-0.5])])
    rows = [[0.3, 0.4, 1.0], [0.9, 0.9, 1.0], [0.1, 0.2, 0.0]]
    explainer = pp.Proplace(net, 0.01, schema=schema, k=3).fit(rows)
    text = text_of(explainer.explain([[0.3, 0.4, 0.0]]).report(tmp_path / "a.html", LOAN))
    assert "There is no map of the region: the answer changes categories alone" in text
    assert "Dashed: the border" not in text
    text = text_of(explainer.explain([[0.1, 0.4, 0.0]]).report(tmp_path / "b.html", LOAN))
    assert "There is no map" not in text
    assert "Dashed: the border" in text
