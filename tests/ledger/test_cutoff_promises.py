"""Promises of a model with a cut-off: audits, redemption, repair and training keep to it."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import DeltaError, InputError
from proplace.loaders.cutoffs import Threshold
from proplace.retrain.sklearn import SklearnParameters
from support.errors import raises
from support.lenders import open_promises

pytest.importorskip("sqlalchemy")

COLUMNS = ["age", "income", "debt"]
LABEL, P, DAY = "approved", 0.7, "2999-12-31"
CUTOFF = {LABEL: P}


def table(seed=0, n=300):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(rng.normal(size=(n, 3)) * [10, 2, 1] + [40, 0, 5], columns=COLUMNS)


def decided(frame):
    noise = np.random.default_rng(7).normal(size=len(frame))
    good = (frame.age - 40) / 10 + frame.income - frame.debt + 5 + noise > 0.5
    return np.where(good, LABEL, "refused")


def fitted(kind="mlp"):
    mlp = MLPClassifier((6,), max_iter=300, random_state=0)
    clf = mlp if kind == "mlp" else LogisticRegression()
    return make_pipeline(StandardScaler(), clf).fit(table(), decided(table()))


def chance(pipe, frame):
    return pipe.predict_proba(frame[COLUMNS])[:, list(pipe.classes_).index(LABEL)]


def with_bias(pipe, change):
    """A copy that is more (or less) sure of the other class by so much, in logits."""
    twin = copy.deepcopy(pipe)
    clf = twin[-1]
    (clf.intercepts_[-1] if hasattr(clf, "coefs_") else clf.intercept_)[:] += change
    return twin


def answers_of(pipe, delta=0.02, cutoff=CUTOFF, count=4):
    explainer = pp.Proplace(pipe, delta, cutoff=cutoff, k=5).fit(table())
    frame = table(1)
    refused = frame[chance(pipe, frame) < 0.3].head(count)
    return explainer, explainer.explain(refused, target=LABEL)


def numbers_of(ledger):
    return [int(number) for group in open_promises(ledger) for number in group.ids]


def rows_of(answers):
    return pd.DataFrame([e.counterfactual for e in answers if e.found])[COLUMNS]


@pytest.fixture
def book(tmp_path):
    """A ledger with promises of a pipeline with a cut-off."""
    pipe = fitted()
    explainer, answers = answers_of(pipe)
    ledger = pp.Ledger(tmp_path / "p.db")
    ledger.issue(answers, expires=DAY, ids=["a", "b", "c", "d"])
    return ledger, pipe, explainer, answers


def test_audit_requires_promised_probability(book):
    ledger, pipe, _, answers = book
    rows = rows_of(answers)
    seen = set()
    for change in (-0.4, 0.019, 0.2, 0.5, 1.0):
        later = with_bias(pipe, change)
        verdicts = ledger.audit(later, record=False).to_frame()["verdict"].tolist()
        kept = (chance(later, rows) >= P).tolist()
        assert [one in ("proved", "holds") for one in verdicts] == kept
        # Every one of them is still accepted at 0.5: without the cut-off none would be broken.
        assert (chance(later, rows) > 0.5).all()
        seen |= set(verdicts)
    assert seen == {"proved", "holds", "broken"}
    assert set(ledger.audit(with_bias(pipe, 0.019), record=False).to_frame()["verdict"]) == {
        "proved"
    }


def test_audit_takes_cutoff_that_new_model_states(book):
    ledger, pipe, _, answers = book
    later = with_bias(pipe, 0.5)
    for p in (0.5, 0.9):
        found = ledger.audit(pp.Model.of(later, cutoff={LABEL: p}), record=False).to_frame()
        kept = (chance(later, rows_of(answers)) >= p).tolist()
        assert [one != "broken" for one in found["verdict"]] == kept


def test_audit_of_promises_with_several_cutoffs_needs_statement(book):
    ledger, pipe, _, answers = book
    _, others = answers_of(pipe, cutoff={LABEL: 0.8})
    ledger.issue(others, expires=DAY, ids=["e", "f", "g", "h"])
    for ask in (lambda: ledger.audit(pipe), lambda: pp.retrain.repair(pipe, ledger)):
        with raises(InputError, name="cutoff"):
            ask()
    with raises(InputError, name="cutoff"):
        ledger.promised_set(pipe)
    found = ledger.audit(pp.Model.of(pipe, cutoff={LABEL: 0.75})).to_frame()
    rows = pd.concat([rows_of(answers), rows_of(others)])
    assert [one != "broken" for one in found["verdict"]] == (chance(pipe, rows) >= 0.75).tolist()


def test_adopted_model_keeps_cutoff(book):
    ledger, pipe, _, answers = book
    row = rows_of(answers).iloc[0]
    later = with_bias(pipe, chance_gap(pipe, row) + 0.1)
    audit = ledger.audit(later)
    ledger.approve(audit.number)
    for number in numbers_of(ledger):
        found = ledger.redeem(number, row, record=False)
        again = ledger.redeem(number, row, later, record=False)
        assert found.accepted == again.accepted == bool(chance(later, row.to_frame().T)[0] >= P)
        assert not found.accepted


def test_ledger_and_results_store_cutoff(book):
    ledger, pipe, _, answers = book
    promise = ledger.promise(int(numbers_of(ledger)[0]))
    model = promise.terms.model
    assert model.cutoff == CUTOFF
    assert model.network == pp.Model.of(pipe, cutoff=CUTOFF).network
    assert (
        promise.explanation.setting.model.threshold
        == answers[0].setting.model.threshold
        == Threshold(0, P)
    )
    assert ledger.verify()


def test_redeem_requires_promised_probability(book):
    ledger, pipe, _, answers = book
    first = rows_of(answers).iloc[0]
    number = int(numbers_of(ledger)[0])
    worse = with_bias(pipe, chance_gap(pipe, first) + 0.1)
    assert chance(worse, first.to_frame().T)[0] > 0.5
    assert ledger.redeem(number, first, worse, record=False).verdict == "broken"
    assert ledger.redeem(number, first, pipe, record=False).verdict == "met_exactly"


def chance_gap(pipe, row):
    """By how much the logit of a row is above that of the cut-off."""
    p = chance(pipe, row.to_frame().T)[0]
    return np.log(p / (1 - p)) - np.log(P / (1 - P))


# -- parameters that are written back --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "logistic"])
@pytest.mark.parametrize("how", ["answers", "pair"])
def test_repaired_pipeline_reaches_probability(kind, how):
    pipe = fitted(kind)
    _, answers = answers_of(pipe)
    rows, later = rows_of(answers), with_bias(pipe, 0.6)
    assert (chance(later, rows) < P).any()
    assert (chance(later, rows) > 0.5).all()
    if how == "answers":
        found = pp.retrain.repair(later, answers)
    else:
        found = pp.retrain.repair(later, (rows, LABEL), cutoff=CUTOFF)
    assert found.change > 0.0
    mended = found.model
    assert (chance(mended, rows) >= P).all()
    assert pp.Model.of(mended, cutoff=CUTOFF).network == found.network
    # The verdicts of the network and of the pipeline are the same on all rows.
    everybody = table(3)
    own = pp.Model.of(mended, cutoff=CUTOFF).predict(everybody) == LABEL
    clear = np.abs(chance(mended, everybody) - P) > 1e-12
    assert (own == (chance(mended, everybody) >= P))[clear].all()
    assert 20 < own.sum() < 280


def test_repair_of_ledger_has_its_cutoff(book):
    ledger, pipe, _, answers = book
    later = with_bias(pipe, 0.6)
    found = pp.retrain.repair(later, ledger)
    assert found.repaired_promises
    assert (chance(found.model, rows_of(answers)) >= P).all()
    assert set(ledger.audit(found.model, record=False).to_frame()["verdict"]) <= {"proved", "holds"}


def test_repair_in_float32_is_written_back_exactly():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    found = pp.retrain.repair(module, (rows, 1), cutoff=0.9)
    with torch.no_grad():
        P_of = torch.sigmoid(found.model(torch.as_tensor(rows)))[:, 0].numpy()
    assert found.change > 0.0
    assert (P_of >= 0.9).all()
    assert P_of.min() < 0.95  # no more was changed than is needed
    assert found.model[2].bias.dtype == torch.float32
    assert pp.Model.of(found.model, cutoff=0.9).network == found.network


def test_pipeline_refitted_within_promises_reaches_probability(book):
    ledger, pipe, explainer, answers = book
    rows = rows_of(answers)
    turned = np.where(decided(table()) == LABEL, "refused", LABEL)
    boxes = {"ledger": ledger, "set": ledger.promised_set(pipe), "explainer": explainer.shifts_}
    for name, box in boxes.items():
        later = pp.retrain.refit_within(pipe, table(), turned, box, epochs=15)
        assert (chance(later, rows) >= P).all(), name
        moved = [
            np.abs(new - old).max()
            for new, old in zip(
                later[-1].coefs_ + later[-1].intercepts_,
                pipe[-1].coefs_ + pipe[-1].intercepts_,
                strict=True,
            )
        ]
        assert max(moved) <= 0.02 + 1e-12, name  # the bias was not moved by the cut-off
        assert min(moved) > 0.015, name
        assert set(ledger.audit(later, record=False).to_frame()["verdict"]) == {"proved"}


def test_saved_set_keeps_cutoff(book, tmp_path):
    ledger, pipe, _, answers = book
    ledger.promised_set(pipe).save(tmp_path / "s.npz")
    later = pp.retrain.refit_within(
        pipe, table(), decided(table()), pp.Shifts.load(tmp_path / "s.npz")
    )
    assert (chance(later, rows_of(answers)) >= P).all()
    with raises(DeltaError):
        pp.Proplace(pipe, pp.Shifts.load(tmp_path / "s.npz")).fit(table())


def test_torch_module_stays_within_box_with_cutoff():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    with torch.no_grad():
        p = float(torch.softmax(module(torch.as_tensor(rows)), dim=1)[:, 0].quantile(0.6))
    explainer = pp.Proplace(pp.Model.of(module, cutoff={0: p}), 0.01, k=5).fit(rows)
    answers = [e for e in explainer.explain(rows, target=0) if e.status in ("optimal", "feasible")]
    points = torch.as_tensor(
        np.array([e.encoded_counterfactual for e in answers]), dtype=torch.float32
    )
    before = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pp.retrain.stay_within(module, explainer.shifts_, optimizer):
        for _ in range(20):
            optimizer.zero_grad()
            wrong = torch.ones(len(points)).long()
            torch.nn.functional.cross_entropy(module(points), wrong).backward()
            optimizer.step()
    far = max(
        float((a - b).detach().abs().max())
        for a, b in zip(module.parameters(), before.parameters(), strict=True)
    )
    assert 0.009 < far <= 0.01 + 1e-7
    with torch.no_grad():
        chances = torch.softmax(module(points), dim=1)[:, 0]
    assert len(points) > 3
    assert (chances >= p).all()


def test_keras_model_stays_within_box_with_cutoff():
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile("sgd", "binary_crossentropy")
    box = pp.Proplace(pp.Model.of(model, cutoff=0.6), 0.01, k=3).fit(np.eye(3)).shifts_
    before = [np.array(one) for one in model.get_weights()]
    rows = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    model.fit(rows, np.zeros(64), epochs=3, verbose=0, callbacks=[pp.retrain.StayWithin(box)])
    far = [np.abs(new - old).max() for new, old in zip(model.get_weights(), before, strict=True)]
    assert 0.009 < max(far) <= 0.01 + 1e-7
    assert box.contains(pp.Model.of(model, cutoff=0.6).network)


def test_parameters_are_those_of_pipeline():
    pipe = fitted()
    assert SklearnParameters(pipe).get("intercepts_[1]") == pipe[-1].intercepts_[1]
