"""Redeeming a promise: every verdict against plain fractions and the framework's own prediction."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import unicodedata
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.core.errors import InputError, LedgerError, NotInLedgerError, TargetError
from proplace.ledger import redeem
from proplace.ledger.redeem import reading
from support.errors import raises
from support.lenders import (
    APPLICANTS,
    INCOME_DEBT,
    JOBS,
    NET,
    NUMBERS,
    TRAINING,
    applicants,
    changed,
    deciding,
    intervals,
    tilted,
    written,
)

STEPS = {"age": 1.0, "income": 500.0}


@pytest.fixture
def ledger(lender, tmp_path):
    with pp.Ledger(tmp_path / "promises.db") as opened:
        opened.issue(lender.result, ids=ids(lender), expires="2999-12-31")
        yield opened


def ids(lender):
    return {e.index: f"person-{e.index}" for e in lender.result}


def numbers_of(ledger):
    return list(ledger.promises().index)


def answer_of(promise):
    return dict(promise.facts["answer"])


# -- the oracle ------------------------------------------------------------------------------------


def read(name, value):
    """A number as the schema reads it: what misses a step by less than a millionth of it is the step."""
    step = STEPS.get(name)
    if step is not None and abs(value - step * round(value / step)) <= 1e-6 * step:
        value = step * round(value / step)
    return written(value)


def expected(promise, row, pipe, wanted):
    """Verdict and missing features, by fractions and by the pipeline itself."""
    return judged(promise, row, pipe.predict(pd.DataFrame([row]))[0] == wanted)


def judged(promise, row, accepted):
    """The same, if the pipeline has predicted before."""
    answer = answer_of(promise)
    missing, exact = {}, True
    for name, (low, high) in intervals(promise).items():
        value = read(name, row[name])
        exact = exact and value == written(answer[name])
        if not low <= value <= high:
            missing[name] = low - value if value < low else high - value
    for name in ("job", "member"):
        if row[name] != answer[name]:
            exact, missing[name] = False, None
    if missing:
        return ("accepted_anyway" if accepted else "not_met"), missing
    return ("met_exactly" if exact else "met_within_tolerance") if accepted else "broken", missing


def tried(promise):
    """Values of each feature at, just inside and just outside of the ends of what was promised."""
    answer, found = answer_of(promise), {}
    for name, (low, high) in intervals(promise).items():
        ends, step = [float(low), float(high)], STEPS.get(name, 0.01)
        near = [np.nextafter(end, way) for end in ends for way in (-np.inf, np.inf)]
        far = [end + sign * step for end in ends for sign in (-1, 1)]
        halves = [end + sign * step / 2 for end in ends for sign in (-1, 1)]
        values = [*ends, *near, *far, *halves, (ends[0] + ends[1]) / 2]
        if name not in STEPS:  # numbers that differ in the last digit alone are encoded alike
            values = [value for value in values if abs(value - answer[name]) > 1e-12]
        found[name] = [answer[name], *values]
    found["job"] = JOBS
    found["member"] = ["no", "yes"]
    return found


def same(redemption, verdict, missing):
    assert redemption.verdict == verdict, (redemption, missing)
    assert {one.feature for one in redemption.unmet} == set(missing)
    for one in redemption.unmet:
        if missing[one.feature] is not None:
            assert Fraction(repr(one.shortfall)) == pytest.approx(missing[one.feature], rel=1e-12)
            assert (one.shortfall > 0) == (missing[one.feature] > 0)
    assert redemption.accepted == (
        verdict in ("met_exactly", "met_within_tolerance", "accepted_anyway")
    )
    assert redemption.accepted == redemption.accepted


def asked(promise, row, model):
    """The result of :meth:`Ledger.redeem`, with a model that was imported once."""
    return redeem.compare(promise, row, model, "2026-01-01")[0]


def test_every_feature_step_in_and_out(lender, ledger):
    seen = set()
    for number in numbers_of(ledger)[:2]:
        promise = ledger.promise(number)
        choices = [(name, value) for name, some in tried(promise).items() for value in some]
        rows = [answer_of(promise) | {name: value} for name, value in choices]
        pipes = [(lender.pipe, 1), (lender.accepting(), 6), (lender.refusing(), 6)]
        for pipe, every in pipes:
            model, some = reading(pipe, promise.terms.model), rows[::every]
            accepted = pipe.predict(pd.DataFrame(some)) == lender.wanted
            for row, by_pipe in zip(some, accepted, strict=True):
                verdict, missing = judged(promise, row, by_pipe)
                same(asked(promise, row, model), verdict, missing)
                seen.add(verdict)
    assert seen == {"met_exactly", "met_within_tolerance", "accepted_anyway", "not_met", "broken"}


def test_several_features_at_once(lender, ledger):
    promise = ledger.promise(numbers_of(ledger)[1])
    choices, model = tried(promise), reading(lender.pipe, promise.terms.model)
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(40):
        few = rng.choice(list(choices), 2, replace=False)
        row = answer_of(promise) | {
            name: choices[name][rng.integers(len(choices[name]))] for name in few
        }
        verdict, missing = expected(promise, row, lender.pipe, lender.wanted)
        same(asked(promise, row, model), verdict, missing)
        found.add((verdict, len(missing)))
    assert ("met_within_tolerance", 0) in found
    assert any(count == 2 for _, count in found)


def test_model_of_promise_never_breaks_it(lender, ledger):
    """Nor do the corners of the promised box, predicted by the pipeline itself."""
    for number in numbers_of(ledger)[2:]:
        promise = ledger.promise(number)
        ends, own = intervals(promise), promise.terms.model
        models = [own, reading(lender.pipe, own)]
        for corner in itertools.product(*(map(float, ends[name]) for name in NUMBERS)):
            row = answer_of(promise) | dict(zip(NUMBERS, corner, strict=True))
            for model in models:
                found = asked(promise, row, model)
                assert found.met
                assert found.verdict == found.met
            assert lender.pipe.predict(pd.DataFrame([row]))[0] == lender.wanted


def test_both_interval_and_proof_must_cover_value(ledger):
    promise = ledger.promise(numbers_of(ledger)[1])
    low, _ = intervals(promise)["income"]
    row = answer_of(promise) | {"income": float(low)}
    assert ledger.redeem(promise.id, row, record=False).verdict == "met_within_tolerance"
    frame = pd.DataFrame([row])
    codes = promise.terms.model.encode(frame)[0]
    assert not redeem.unmet_features(promise, frame, codes)
    j = APPLICANTS.span("income").start
    tight = promise.low.copy()
    tight[j] = np.nextafter(codes[j], np.inf)
    less = dataclasses.replace(promise, low=tight)  # the proof ends before the interval does
    (one,) = redeem.unmet_features(less, frame, codes)
    assert (one.feature, one.shortfall) == ("income", 0.0)
    assert "edge of what was proved" in one.words
    tight = promise.high.copy()
    tight[j] = np.nextafter(codes[j], -np.inf)
    (one,) = redeem.unmet_features(dataclasses.replace(promise, high=tight), frame, codes)
    assert one.feature == "income"
    wide = dataclasses.replace(promise, low=promise.low - 1.0)  # the proof covers more
    frame = pd.DataFrame([row | {"income": float(low) - 1.0}])
    (one,) = redeem.unmet_features(wide, frame, promise.terms.model.encode(frame)[0])
    assert (one.feature, one.shortfall) == ("income", 1.0)


def test_redemption_describes_unmet_features(lender, ledger):
    promise = ledger.promise(numbers_of(ledger)[0])
    low, high = intervals(promise)["income"]
    row = answer_of(promise) | {"income": float(low) - 250, "job": "smith", "member": "yes"}
    found = ledger.redeem(promise.id, row, lender.refusing(), record=False)
    words = {one.feature: one.words for one in found.unmet}
    assert words["income"] == (
        f"income is {float(low) - 250:,.0f} dollars, promised is at least {float(low):,.0f} dollars: "
        "250 dollars too little"
    )
    assert words["job"] == f"job is “smith”, promised is “{answer_of(promise)['job']}”"
    assert all(said in str(found) for said in words.values())
    assert "gives class refused, not granted" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["verdict"] == "not_met"
    much = ledger.redeem(promise.id, row | {"income": float(high) + 3.5}, record=False)
    assert "3.5 dollars too much" in str(much)
    # All smaller shares are promised. "No more than" concerns nobody below its range.
    for value, said in ((0.9, "promised is at most"), (-0.5, "promised is 0 to")):
        assert said in str(ledger.redeem(promise.id, row | {"share": value}, record=False))


# -- what is written -------------------------------------------------------------------------------


def test_broken_is_never_hidden_and_leaves_promise_open(lender, ledger):
    number = numbers_of(ledger)[0]
    row = ledger.promise(number).answer
    found = ledger.redeem(number, row, lender.refusing())
    assert (found.verdict, found.met, found.label) == ("broken", "met_exactly", "refused")
    assert "BROKEN" in str(found)
    assert not found.accepted
    assert ledger.promise(number).state == "open"
    entry = list(ledger.entries(number))[-1]
    assert (entry.seq, entry.kind, entry.facts["verdict"]) == (found.entry, "attempted", "broken")
    kept = ledger.redeem(number, row)  # by the model of the promise
    assert kept.verdict == "met_exactly"
    assert ledger.promise(number).state == "redeemed"
    assert [e.kind for e in list(ledger.entries(number))] == ["issued", "attempted", "redeemed"]
    assert list(ledger.attempts(number)["verdict"]) == ["broken", "met_exactly"]
    assert ledger.verify().valid


@pytest.mark.parametrize(
    "verdict", ["met_exactly", "met_within_tolerance", "accepted_anyway", "not_met", "broken"]
)
def test_accepted_person_closes_promise(lender, ledger, verdict):
    number = numbers_of(ledger)[1]
    row = answer_of(ledger.promise(number))
    row["income"] += {
        "met_within_tolerance": 500,
        "accepted_anyway": -100_000,
        "not_met": -100_000,
    }.get(verdict, 0)
    model = lender.accepting() if verdict == "accepted_anyway" else lender.pipe
    model = lender.refusing() if verdict == "broken" else model
    assert ledger.redeem(number, row, model, record=False).verdict == verdict
    assert len(list(ledger.entries(number))) == 1
    found = ledger.redeem(number, row, model)
    assert found.verdict == verdict
    closed = verdict in ("met_exactly", "met_within_tolerance", "accepted_anyway")
    assert ledger.promise(number).state == ("redeemed" if closed else "open")
    assert list(ledger.entries(number))[-1].kind == ("redeemed" if closed else "attempted")
    seen = ledger.attempts(number).loc[found.entry]
    assert seen["row"] == row
    assert seen["verdict"] == verdict
    assert ledger.verify().valid


def test_rows_of_every_shape_mean_same(ledger):
    promise = ledger.promise(numbers_of(ledger)[0])
    row = answer_of(promise)
    table = pd.DataFrame([row | {"customer": "is no feature"}], index=["x"])
    shapes = [row, table.loc["x"], table]
    assert {ledger.redeem(promise.id, one, record=False).verdict for one in shapes} == {
        "met_exactly"
    }
    for wrong in ([1, 2], pd.DataFrame([row, row])):
        with raises(InputError, name="person"):
            ledger.redeem(promise.id, wrong)


def test_noise_of_arithmetic_is_no_difference(ledger):
    promise = ledger.promise(numbers_of(ledger)[0])
    row = answer_of(promise)
    row["income"] = np.nextafter(row["income"], np.inf)
    assert ledger.redeem(promise.id, row, record=False).verdict == "met_exactly"
    row["share"] = np.nextafter(row["share"], np.inf)  # without a step every digit counts
    assert ledger.redeem(promise.id, row, record=False).verdict == "met_within_tolerance"


# -- cells that are missing or strange -------------------------------------------------------------


def test_missing_cells_count_as_imputed_values(lender, ledger):
    for number in numbers_of(ledger)[:2]:
        promise = ledger.promise(number)
        row = answer_of(promise)
        for nothing in (None, np.nan, pd.NA):
            gap = row | {"age": nothing}
            fill = lender.pipe[0].named_transformers_["pipeline"][0].statistics_[0]
            verdict, missing = expected(promise, row | {"age": fill}, lender.pipe, lender.wanted)
            found = ledger.redeem(number, gap, lender.pipe, record=False)
            same(found, verdict, missing)
            assert {one.value for one in found.unmet} <= {fill}


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"job": "cooc"}, "job"),
        ({"job": None}, "job"),
        ({"income": "much"}, "income"),
        ({"income": np.inf}, "income"),
    ],
)
def test_cells_that_cannot_be_read_are_refused(ledger, cells, name):
    number = numbers_of(ledger)[0]
    head = ledger.head
    with raises(InputError, name=name):
        ledger.redeem(number, answer_of(ledger.promise(number)) | cells)
    assert ledger.head == head


def test_redeem_rejects_missing_column(ledger):
    number = numbers_of(ledger)[0]
    row = answer_of(ledger.promise(number))
    row["incme"] = row.pop("income")
    with raises(InputError, name="income", match="incme"):
        ledger.redeem(number, row)


def test_redeem_refuses_features_that_no_model_looks_at(ledger):
    number = numbers_of(ledger)[0]
    head, row = ledger.head, answer_of(ledger.promise(number))
    with raises(InputError, name="savings", match="savings"):
        ledger.redeem(number, row | {"savings": 10_000})
    assert ledger.head == head


def test_redeem_finds_columns_whose_names_are_composed_in_another_way(tmp_path):
    name = "r\N{LATIN SMALL LETTER E WITH ACUTE}sum\N{LATIN SMALL LETTER E WITH ACUTE}"
    schema = pp.Schema([pp.Continuous(name, 0, 100, step=1), pp.Continuous("debt", 0, 50, step=1)])
    table = TRAINING.rename(columns={"income": name})
    result = (
        pp.Proplace(NET, 0.01, schema=schema, k=3)
        .fit(table)
        .explain(pd.DataFrame({name: [20], "debt": [30]}))
    )
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        (number,) = ledger.issue(result, ["anna"]).ids
        row = ledger.promise(number).answer.to_dict()
        decomposed = {unicodedata.normalize("NFD", key): value for key, value in row.items()}
        assert list(decomposed) != list(row)
        assert ledger.redeem(number, decomposed, record=False).verdict == "met_exactly"
        with raises(InputError, match="same name"):
            ledger.redeem(number, row | decomposed)
        features = [pp.Continuous(feature, 0, 100, step=1) for feature in decomposed]
        ledger.set_current_model(pp.Model.of(NET).with_schema(pp.Schema(features)))
        for given in (row, decomposed):
            assert ledger.redeem(number, given, record=False).met == "met_exactly"


def test_redeem_rejects_half_character_in_cell(ledger):
    number = numbers_of(ledger)[0]
    row = answer_of(ledger.promise(number))
    with raises(InputError, name="income", value="\ud800"):
        ledger.redeem(number, row | {"income": "\ud800"})


def test_numbers_far_out_of_range_get_verdict(lender, ledger):
    number = numbers_of(ledger)[1]
    promise = ledger.promise(number)
    row = answer_of(promise) | {"income": 900_000.0}
    for model in (None, lender.pipe):
        found = ledger.redeem(number, row, model, record=False)
        verdict, missing = expected(promise, row, lender.pipe, lender.wanted)
        same(found, verdict, missing)
        assert found.unmet[0].shortfall == -700_000.0


def test_levels_and_flags(tmp_path):
    """Ordered levels, numbers that are labels, and categories whose first has no column."""
    schema = pp.Schema(
        [
            pp.Ordinal("grade", ["C", "B", "A"]),
            pp.Binary("cosigner", label="has a cosigner"),
            pp.Ordinal("rooms", [1, 2, 4]),
            pp.Continuous("debt", 0, 50, step=1, unit="% of income"),
        ]
    )
    people = pd.DataFrame(
        {
            "grade": ["C", "A", "A", "B"],
            "cosigner": [0, 1, 1, 1],
            "rooms": [1, 4, 4, 2],
            "debt": [40, 5, 9, 2],
        }
    )
    net = pp.Network([([[1.0, 0.7, 0.3, -1.0]], [-0.9])])
    result = pp.Proplace(net, 0.01, schema=schema, k=3).fit(people).explain(people[:1])
    ledger = pp.Ledger(tmp_path / "promises.db")
    result = changed(result, guaranteed_ranges={})
    (number,) = ledger.issue(result, ids=["anna"]).ids
    answer = answer_of(ledger.promise(number))
    seen = set()
    for row in itertools.product("CBA", (0, 1), (1, 2, 4), range(0, 51, 5)):
        cells = dict(zip(("grade", "cosigner", "rooms", "debt"), row, strict=True))
        levels = (
            {"C": 0.0, "B": 0.5, "A": 1.0}[row[0]],
            float(row[1]),
            (row[2] - 1) / 3,
            row[3] / 50,
        )
        accepted = levels[0] + 0.7 * levels[1] + 0.3 * levels[2] - levels[3] - 0.9 >= 0.0
        found = ledger.redeem(number, cells, record=False)
        wrong = {name for name in cells if cells[name] != answer[name]}
        assert {one.feature for one in found.unmet} == wrong
        assert found.accepted == accepted or found.borderline
        assert found.met == (None if wrong else "met_exactly")
        seen.add(found.verdict)
    assert {"accepted_anyway", "not_met"} <= seen
    cells = answer | {"grade": "C", "cosigner": False, "debt": answer["debt"] + 2}
    words = str(ledger.redeem(number, cells, record=False))
    assert f"grade is “C”, promised is “{answer['grade']}”" in words
    assert "2 percentage points too much" in words
    flags = ledger.redeem(number, answer | {"cosigner": bool(answer["cosigner"])}, record=False)
    assert flags.verdict == "met_exactly"


# -- which model -----------------------------------------------------------------------------------


def test_current_model_decides(lender, ledger):
    number = numbers_of(ledger)[0]
    row = answer_of(ledger.promise(number))
    ask = lambda model=None: ledger.redeem(number, row, model, record=False).verdict  # noqa: E731
    assert ask() == "met_exactly"
    ledger.set_current_model(lender.accepting(), note="spring")
    entry = ledger.set_current_model(lender.refusing(), note="autumn")
    assert (entry.kind, entry.facts["note"], entry.promise) == ("model_set", "autumn", None)
    assert ask() == "broken"
    assert ask(lender.pipe) == "met_exactly"  # given here, it goes before
    ledger.set_current_model(lender.pipe)
    assert ask() == "met_exactly"
    assert ledger.verify().valid


def test_adopted_model_is_one_that_was_given(lender, ledger):
    """A stored copy of a retrained pipeline with its own scalers predicts like the pipeline."""
    other = deciding(applicants(300, 7), seed=3)
    ledger.set_current_model(other)
    rows = applicants(20, 9)
    number = numbers_of(ledger)[0]
    promise = ledger.promise(number)
    seen = set()
    for _, row in rows.iterrows():
        found = ledger.redeem(number, row, record=False)
        verdict, missing = expected(promise, dict(row), other, lender.wanted)
        same(found, verdict, missing)
        seen.add(verdict)
    assert seen == {"accepted_anyway", "not_met"}


def test_networks_take_rows_of_promise(lender, ledger):
    number = numbers_of(ledger)[0]
    row = answer_of(ledger.promise(number))
    for pipe, verdict in [(lender.pipe, "met_exactly"), (lender.refusing(), "broken")]:
        net = pp.Model.of(pipe).network
        found = ledger.redeem(number, row, net, record=False)
        assert (found.verdict, found.label) == (
            verdict,
            "granted" if verdict == "met_exactly" else "refused",
        )
        ledger.set_current_model(net)
        assert ledger.redeem(number, row, record=False).verdict == verdict


def test_models_that_do_not_fit_are_refused(lender, ledger, tmp_path):
    number = numbers_of(ledger)[0]
    row = answer_of(ledger.promise(number))
    with raises(InputError, name="model", match="2 columns"):
        ledger.redeem(number, row, pp.Network([([[1.0, 1.0]], [0.0])]))
    labels = lender.pipe.predict(lender.frame) == lender.wanted
    other = copy.deepcopy(lender.pipe)
    other[-1].set_params(max_iter=1000, alpha=10.0)
    other.fit(lender.frame, np.where(labels, "good", "bad"))
    with raises(TargetError, name="model", value="granted"):
        ledger.redeem(number, row, other)
    with raises(LedgerError, name="model"):
        pp.Ledger(tmp_path / "new.db").set_current_model(pp.Network([([[1.0, 1.0]], [0.0])]))


def test_torch_module_predicts_by_itself(tmp_path):
    torch = pytest.importorskip("torch")
    schema, people = INCOME_DEBT, TRAINING

    def module(bias):
        layer = torch.nn.Linear(2, 1)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[2.0, -1.0]]))
            layer.bias.fill_(bias)
        return torch.nn.Sequential(layer)

    first = module(-0.4)
    result = pp.Proplace(first, 0.02, schema=schema, k=3).fit(people).explain(people[:1])
    ledger = pp.Ledger(tmp_path / "promises.db")
    (number,) = ledger.issue(result, ids=["anna"]).ids
    row = answer_of(ledger.promise(number))
    for bias, verdict in [
        (-0.4, "met_exactly"),
        (-0.39, "met_exactly"),
        (-9.0, "broken"),
        (9.0, "met_exactly"),
    ]:
        other = module(bias)
        with torch.no_grad():
            said = other(torch.tensor(schema.encode(pd.DataFrame([row])), dtype=torch.float32))
        assert (float(said) >= 0.0) == (verdict == "met_exactly")
        assert ledger.redeem(number, row, other, record=False).verdict == verdict


def test_model_with_named_columns_needs_schema(tmp_path):
    """A network with a schema made the promise, and a classifier of plain numbers follows it."""
    from sklearn.linear_model import LogisticRegression

    schema, people = INCOME_DEBT, TRAINING
    net = pp.Network([([[2.0, -1.0]], [-0.4])])
    result = pp.Proplace(net, 0.02, schema=schema, k=3).fit(people).explain(people[:1])
    ledger = pp.Ledger(tmp_path / "promises.db")
    (number,) = ledger.issue(result, ids=["anna"]).ids
    plain = LogisticRegression().fit(people, [0, 1, 1, 1, 1])
    row = answer_of(ledger.promise(number))
    with raises(InputError, name="model", match="encoded"):
        ledger.redeem(number, row, plain)
    raw = pp.Schema([pp.Continuous(name, scaling="none") for name in ("income", "debt")])
    for cells in (row, row | {"income": 0, "debt": 50}):
        found = ledger.redeem(number, cells, pp.Model.of(plain).with_schema(raw), record=False)
        assert found.accepted == (plain.predict(pd.DataFrame([cells])[["income", "debt"]])[0] == 1)
        rows = schema.encode(pd.DataFrame([cells]))
        twin = pp.Model.of(plain).with_schema(schema)
        found = ledger.redeem(number, cells, twin, record=False)
        assert found.accepted == (
            plain.predict(pd.DataFrame(rows, columns=["income", "debt"]))[0] == 1
        )


def test_original_model_decides(lender, ledger):
    """The present prediction of a pipeline that changed after its import decides."""
    number = numbers_of(ledger)[0]
    row = answer_of(ledger.promise(number))
    pipe = copy.deepcopy(lender.pipe)
    model = pp.Model.of(pipe)
    assert ledger.redeem(number, row, model, record=False).verdict == "met_exactly"
    pipe[-1].intercepts_[-1] = lender.refusing()[-1].intercepts_[-1]
    assert pipe.predict(pd.DataFrame([row]))[0] == lender.other
    assert ledger.redeem(number, row, model, record=False).verdict == "broken"


def test_row_on_boundary_is_borderline(lender, ledger):
    number = numbers_of(ledger)[0]
    row = answer_of(ledger.promise(number))
    model = pp.Model.of(lender.pipe)
    logit = float(model.network.logits(model.encode(pd.DataFrame([row])))[0, 0])
    ledger.set_current_model(tilted(lender.pipe, -logit))
    found = ledger.redeem(number, row, record=False)
    assert found.borderline
    assert "Rounding may decide" in str(found)
    ledger.set_current_model(tilted(lender.pipe, -logit + lender.sign * 0.01))
    found = ledger.redeem(number, row, record=False)
    assert (found.borderline, found.verdict) == (False, "met_exactly")


# -- what can no longer be redeemed ----------------------------------------------------------------


def test_days(lender, tmp_path):
    ledger = pp.Ledger(tmp_path / "promises.db")
    issued = ledger.issue(lender.result, ids=ids(lender), expires="2999-12-30")
    number = issued.ids[0]
    row = answer_of(ledger.promise(number))
    with raises(LedgerError, name="promise", match="as_of"):
        ledger.redeem(number, row, as_of="2999-12-31")
    with raises(LedgerError, name="promise", match="issued"):
        ledger.redeem(number, row, as_of="2000-01-01")
    assert len(list(ledger.entries(number))) == 1
    found = ledger.redeem(number, row, as_of="2999-12-30")
    assert (found.verdict, found.day) == ("met_exactly", "2999-12-30")
    assert list(ledger.entries(number))[-1].facts["day"] == "2999-12-30"


def test_closed_promises_are_refused_with_reason(lender, ledger):
    numbers = numbers_of(ledger)
    row = answer_of(ledger.promise(numbers[0]))
    ledger.redeem(numbers[0], row)
    with raises(LedgerError, name="promise", match="redeemed"):
        ledger.redeem(numbers[0], row)
    ledger.withdraw(numbers[1], "a mistake")
    with raises(LedgerError, name="promise", match="withdrawn"):
        ledger.redeem(numbers[1], row)
    ledger.erase(ledger.promise(numbers[2]).person)
    with raises(LedgerError, name="promise", match="erased"):
        ledger.redeem(numbers[2], row)
    model = pp.Model.of(lender.pipe).with_schema(APPLICANTS)
    again = pp.Proplace(model, 0.004, k=5).fit(lender.frame)
    one = lender.result[3].index
    result = again.explain(lender.people.loc[[one]], lender.wanted)
    (new,) = ledger.issue(result, ids=[f"person-{one}"], existing="renew").new
    with raises(LedgerError, name="promise", value=numbers[3], match=f"redeem {new}"):
        ledger.redeem(numbers[3], row)
    assert ledger.redeem(new, answer_of(ledger.promise(new))).verdict == "met_exactly"
    with raises(NotInLedgerError, name="promise", value=1):
        ledger.redeem(1, row)
    assert ledger.verify().valid


def test_two_at_once_redeem_it_once(ledger, monkeypatch):
    number = numbers_of(ledger)[0]
    row = answer_of(ledger.promise(number))
    honest = redeem.compare

    def interrupted(*given):
        monkeypatch.undo()
        ledger.redeem(number, row)  # another person, meanwhile
        return honest(*given)

    monkeypatch.setattr("proplace.ledger.ledger.compare", interrupted)
    with raises(LedgerError, name="promise", match="redeemed"):
        ledger.redeem(number, row)
    assert [e.kind for e in list(ledger.entries(number))] == ["issued", "redeemed"]


# -- personal data ---------------------------------------------------------------------------------


def test_attempts_are_outside_of_chain_and_can_be_erased(lender, ledger, tmp_path):
    number = numbers_of(ledger)[0]
    promise = ledger.promise(number)
    row = answer_of(promise) | {"share": 0.8123456789}
    ledger.redeem(number, row, lender.refusing())
    assert not any(
        "8123456789" in e.body or promise.person in e.body for e in list(ledger.entries())
    )
    files = [tmp_path / f"promises.db{end}" for end in ("", "-wal")]
    content = lambda: b"".join(file.read_bytes() for file in files if file.exists())  # noqa: E731
    assert b"8123456789" in content()
    ledger.erase(promise.person)
    assert b"8123456789" not in content()
    assert promise.person.encode() not in content()
    assert len(ledger.attempts(number)) == 0
    assert [e.kind for e in list(ledger.entries(number))] == ["issued", "attempted", "erased"]
    assert len(list(ledger.entries(number))[-1].facts["entries"]) == 2
    assert ledger.verify().valid


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE personal SET facts = replace(facts, 'BROKEN', 'kept') WHERE entry = {entry}",
        "UPDATE personal SET point = x'00' WHERE entry = {entry}",
        "UPDATE personal SET person = 'bob' WHERE entry = {entry}",
        "DELETE FROM personal WHERE entry = {entry}",
        "UPDATE entries SET kind = 'redeemed' WHERE seq = {entry}",
        "UPDATE entries SET body = replace(body, 'broken', 'exact') WHERE seq = {entry}",
    ],
)
def test_tampering_with_presentation_is_found(lender, ledger, tmp_path, change):
    import sqlite3

    number = numbers_of(ledger)[0]
    found = ledger.redeem(number, ledger.promise(number).answer, lender.refusing())
    assert ledger.verify().valid
    ledger.close()
    with sqlite3.connect(tmp_path / "promises.db") as raw:
        for (name,) in raw.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            raw.execute(f"DROP TRIGGER {name}")
        assert raw.execute(change.format(entry=found.entry)).rowcount == 1
    assert any("trigger" not in problem for problem in ledger.verify().problems)
