"""Attempts to make a ledger prove something false."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sqlite3
import zlib

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

import proplace as pp
from proplace.core.errors import InputError, LedgerError, TamperedError
from support.errors import raises


def numbers(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"income": rng.integers(10, 100, rows), "debt": rng.integers(0, 50, rows)})


def lender():
    table = numbers()
    model = make_pipeline(StandardScaler(), LogisticRegression())
    return table, model.fit(table, (table["income"] - table["debt"] > 30).astype(int))


def promised(ledger, model, table, count=4, target=1, **wishes):
    refused = table[model.predict(table) != target][:count]
    result = pp.Proplace(model, 0.02, k=5).fit(table).explain(refused, target, **wishes)
    return ledger.issue(result, [f"p{n}" for n in range(len(refused))]).ids, result


# -- columns in the order of the source ------------------------------------------------------------


def test_columns_of_arrays_keep_their_order(ledger):
    """A ColumnTransformer puts its columns in another order than the rows that it takes."""
    table = numbers().to_numpy(dtype=float)
    y = (table[:, 0] - table[:, 1] > 30).astype(int)
    steps = make_column_transformer((StandardScaler(), [1]), (MinMaxScaler(), [0]))
    model = make_pipeline(steps, LogisticRegression()).fit(table, y)
    refused = table[model.predict(table) == 0][:3]
    result = pp.Proplace(model, 0.02, k=5).fit(table).explain(refused)
    ids = ledger.issue(result, list("abc")).ids
    assert ledger.audit(model).counts["proved"] == 3
    answer = ledger.promise(ids[0]).answer
    assert ledger.redeem(ids[0], answer, model, record=False).verdict == "met_exactly"
    ledger.set_current_model(model)
    assert ledger.redeem(ids[0], answer).verdict == "met_exactly"
    assert pp.retrain.repair(model, ledger).repaired_promises == ()


def test_model_of_arrays_gets_columns_of_table(ledger):
    table = numbers()
    good = (table["income"] - table["debt"] > 30).astype(int)
    steps = make_column_transformer((StandardScaler(), ["debt"]), (StandardScaler(), ["income"]))
    old = make_pipeline(steps, LogisticRegression()).fit(table, good)
    ids, _ = promised(ledger, old, table)
    new = make_pipeline(StandardScaler(), LogisticRegression()).fit(table.to_numpy(), 1 - good)
    audit = ledger.audit(new)
    for number in ids:
        row = ledger.promise(number).answer[["income", "debt"]].to_numpy(dtype=float)
        assert audit.verdict(number) == ("holds" if new.predict([row])[0] == 1 else "broken")
    assert audit.broken


# -- cells that were missing -----------------------------------------------------------------------


@pytest.mark.parametrize("boxed", [False, True])
def test_imputer_that_was_fitted_again(ledger, boxed):
    rng = np.random.default_rng(0)
    table = numbers().astype(float).assign(age=rng.integers(20, 60, 400).astype(float))
    y = (table["income"] - table["debt"] + 0.5 * (table["age"] - 40) > 30).astype(int)
    table.loc[::7, "age"] = np.nan
    old = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(table, y)
    people = table[(old.predict(table) == 0)]
    people = pd.concat([people[people["age"].isna()][:6], people[people["age"].notna()][:2]])
    tolerance = {"income": 1.0} if boxed else None
    explainer = pp.Proplace(old, 0.02, k=5).fit(table)
    result = explainer.explain(people, immutable=["age"], tolerance=tolerance)
    ids = ledger.issue(result, [f"p{n}" for n in range(len(people))]).ids
    gaps = {n: bool(ledger.promise(n).facts["imputed"]) for n in ids}
    assert sum(gaps.values()) >= 4
    assert ledger.audit(old).counts["proved"] == len(ids)
    for shift in (-15.0, -0.25, 15.0):
        new = copy.deepcopy(old)
        new[0].statistics_ = new[0].statistics_ + np.array([0.0, 0.0, shift])
        audit = ledger.audit(new)
        for number in ids:
            row = ledger.promise(number).answer.to_frame().T.astype(float)
            rows = [row, row.assign(age=np.nan)] if gaps[number] else [row]
            if boxed:
                rows += [one.assign(income=one["income"] + s) for one in rows for s in (-1, 1)]
            good = all(new.predict(one)[0] == 1 for one in rows)
            wanted = "broken" if not good else "holds" if gaps[number] else "proved"
            assert audit.verdict(number) == wanted, (number, shift)
            if not boxed:
                least = min(new.decision_function(one)[0] for one in rows)
                assert audit.to_frame()["margin"][number] == pytest.approx(least, abs=1e-6)
        kept = pp.retrain.repair(new, ledger).model
        for number in ids:
            row = ledger.promise(number).answer.to_frame().T.astype(float)
            assert kept.predict(row)[0] == 1
            assert not gaps[number] or kept.predict(row.assign(age=np.nan))[0] == 1


def test_model_without_imputer_leaves_promises_undecided(ledger):
    table = numbers().astype(float)
    table.loc[::5, "debt"] = np.nan
    y = (table["income"] > 50).astype(int)
    old = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(table, y)
    people = table[(old.predict(table) == 0) & table["debt"].isna()][:3]
    result = pp.Proplace(old, 0.01, k=5).fit(table).explain(people, immutable=["debt"])
    ledger.issue(result, list("abc"))
    new = make_pipeline(StandardScaler(), LogisticRegression()).fit(table.fillna(0.0), y)
    assert ledger.audit(new).counts["undecided"] == 3


# -- boxes in the encoding of another model ---------------------------------------------------------


def test_boxes_are_proved_in_encoding_of_new_model(ledger):
    rng = np.random.default_rng(0)
    table = numbers().astype(float).assign(job=rng.choice(list("abc"), 400))
    left = table["income"] - table["debt"] + 2 * (table["job"] == "b")

    def fitted(encoder, strict):
        steps = make_column_transformer((StandardScaler(), ["income", "debt"]), (encoder, ["job"]))
        return make_pipeline(steps, LogisticRegression(C=100.0)).fit(
            table, (left > strict).astype(int)
        )

    old = fitted(OrdinalEncoder(), 30.0)
    ids, _ = promised(ledger, old, table, 12, 1, tolerance={"income": 5.0, "debt": 5.0})
    off = [{"income": a, "debt": b} for a, b in itertools.product((-5.0, 0.0, 5.0), repeat=2)]
    rows = {n: ledger.promise(n).answer.to_frame().T.infer_objects() for n in ids}
    verdicts = set()
    for strict in (20.0, 34.0):
        new = fitted(OneHotEncoder(), strict)
        audit = ledger.audit(new)
        assert "distances" in str(audit)
        for number, row in rows.items():
            corners = pd.concat([row.assign(**{k: row[k] + by[k] for k in by}) for by in off])
            good = new.predict(corners).all()
            assert audit.verdict(number) == ("holds" if good else "broken")
        assert set(audit.to_frame("holds")["note"]) <= {""}
        verdicts |= set(audit.to_frame()["verdict"])
    assert verdicts == {"holds", "broken"}


# -- renewing --------------------------------------------------------------------------------------


def test_renewed_promise_never_ends_sooner(ledger):
    table, model = lender()
    refused = table[model.predict(table) == 0][:1]
    results = [pp.Proplace(model, d, k=5).fit(table).explain(refused) for d in (0.01, 0.03)]
    for result, day in zip(results, ("2999-01-31", None), strict=True):
        ledger.issue(result, ["ann"], expires=day, existing="add")
    strict = make_pipeline(StandardScaler(), LogisticRegression())
    strict.fit(table, (table["income"] - table["debt"] > 70).astype(int))
    audit = ledger.audit(strict)
    assert len(audit.broken) == 2
    audit.renew(pp.Proplace(strict, 0.005, k=5).fit(table)).issue()
    (expires,) = ledger.promises(state="open")["expires"]
    assert expires is None


def test_renewed_promise_keeps_request_of_broken_one(ledger):
    """Each its own: tolerance, immutable features, ranges."""
    table, model = lender()
    refused = table[model.predict(table) == 0][:3]
    wishes = (
        {"tolerance": {"income": (2.0, 0.0), "debt": (0.0, 1.0)}},
        {"immutable": ["debt"], "tolerance": {"debt": (0.0, 1.0)}},
        {"ranges": {"income": (None, 95)}, "gap": 0.0},
    )
    explainer = pp.Proplace(model, 0.01, k=5).fit(table)
    requests = {}
    for (label, row), asked in zip(refused.iterrows(), wishes, strict=True):
        (number,) = ledger.issue(explainer.explain(row.to_frame().T, **asked), [f"p{label}"]).ids
        requests[f"p{label}"] = ledger.promise(number).terms.request
        assert requests[f"p{label}"] == explainer.request(**asked)
    strict = make_pipeline(StandardScaler(), LogisticRegression())
    strict.fit(table, (table["income"] - table["debt"] > 70).astype(int))
    audit = ledger.audit(strict)
    assert len(audit.broken) == 3
    issued = audit.renew(pp.Proplace(strict, 0.005, k=5).fit(table)).issue()
    assert len(issued.new) == 3
    for number in issued.new:
        promise = ledger.promise(number)
        assert promise.terms.request == requests[promise.person]
        less, more = np.array(
            [promise.terms.request.misses.get(n, (0.0, 0.0)) for n in ("income", "debt")]
        ).T
        own = promise.answer[["income", "debt"]].to_numpy(dtype=float)
        near = [own + np.where(side, more, -less) for side in ([0, 0], [0, 1], [1, 0], [1, 1])]
        assert strict.predict(pd.DataFrame(near, columns=["income", "debt"])).all()


def test_only_promises_of_same_class_give_way(ledger):
    table, model = lender()
    promised(ledger, model, table, 2)
    other = make_pipeline(StandardScaler(), LogisticRegression())
    other.fit(table, np.where(table["income"] > 60, "insured", "not"))
    people = table[other.predict(table) == "not"][:2]
    result = pp.Proplace(other, 0.02, k=5).fit(table).explain(people, "insured")
    ledger.issue(result, ["p0", "p1"])  # not refused: it is about something else
    assert len(ledger.promises(state="open")) == 4
    again = pp.Proplace(other, 0.03, k=5).fit(table).explain(people, "insured")
    ledger.issue(again, ["p0", "p1"], existing="renew")
    frame = ledger.promises(state="open")
    assert sorted(map(str, frame["target"])) == ["1", "1", "insured", "insured"]


def test_person_in_rows_with_same_label(ledger):
    table, model = lender()
    people = table[model.predict(table) == 0][:3].set_axis([0, 0, 0])
    result = pp.Proplace(model, 0.02, k=5).fit(table).explain(people)
    with raises(LedgerError, name="existing", value="refuse", match="several rows"):
        ledger.issue(result, ["x", "x", "x"])


# -- what a certificate proves ---------------------------------------------------------------------


def test_margin_below_rounding_error_is_rejected(ledger):
    schema = pp.Schema([pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)])
    net = pp.Network([([[1.0, -1.0]], [-0.2])])
    people = pd.DataFrame({"a": [0.1, 0.9, 0.8], "b": [0.5, 0.1, 0.2]})
    result = pp.Proplace(net, 0.02, schema=schema, k=2).fit(people).explain(people[:1])
    x = schema.encode(people[:1])[0]
    assert net.predict(x)[0] == 0
    facts = result[0].certificate.facts
    for margin in (-1.0, -5e-324):
        proof = pp.Certificate.of(facts | {"input": x.tolist(), "margin": margin})
        assert not proof.check(net).accepted
        forged = dataclasses.replace(
            result[0], encoded_counterfactual=x, counterfactual=people.iloc[0], certificate=proof
        )
        with raises(LedgerError, match=f"margin of {margin:g}"):
            ledger.issue(pp.Explanations([forged], provenance=result.provenance), ["z"])
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 1))
    rows = np.random.default_rng(0).normal(size=(60, 2))
    low = rows[pp.Model.of(module).network.predict(rows) == 0][:1]
    weak = pp.Proplace(module, 0.02, margin=0.0).fit(rows).explain(low)
    assert weak[0].found
    with raises(LedgerError, match="float32"):
        ledger.issue(weak, ["y"])


def test_ties_inside_box_are_not_kept():
    net = pp.Network([([[1.0]], None), ([[-1.0]], None)])
    box = pp.retrain.Promised(
        ("p",), np.array([[0.5]]), np.array([0]), np.array([[-0.5]]), np.array([[1.5]])
    )
    assert net.predict([[0.5], [-0.2]]).tolist() == [0, 1]
    with raises(InputError, match="'p'"):
        pp.retrain.repair(net, box)


# -- the file --------------------------------------------------------------------------------------


def test_promise_that_is_there_twice_is_found(ledger, tmp_path):
    table, model = lender()
    ids, _ = promised(ledger, model, table, 2)
    head = ledger.head
    ledger.close()
    with sqlite3.connect(tmp_path / "promises.db") as raw:
        raw.executescript(
            f"""CREATE TABLE p2(id BIGINT NOT NULL, terms TEXT NOT NULL, issued TEXT NOT NULL,
                expires TEXT, commitment TEXT NOT NULL);
            INSERT INTO p2 SELECT id, terms, issued, '2000-01-01', commitment FROM promises
                WHERE id = {ids[0]};
            INSERT INTO p2 SELECT * FROM promises;
            DROP TABLE promises; ALTER TABLE p2 RENAME TO promises;"""
        )
    assert not pp.Ledger(tmp_path / "promises.db").verify(head).valid


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE shadow AS SELECT person, facts FROM personal",
        "ALTER TABLE promises ADD COLUMN note TEXT",
        "DROP TRIGGER entries_no_update",
        "DROP INDEX entries_of_promise",
        "CREATE VIEW more AS SELECT * FROM promises",
        "CREATE TRIGGER watch AFTER INSERT ON personal BEGIN SELECT 1; END",
    ],
)
def test_another_layout_is_found(ledger, tmp_path, statement):
    table, model = lender()
    promised(ledger, model, table, 2)
    assert ledger.verify().valid
    ledger.close()
    with sqlite3.connect(tmp_path / "promises.db") as raw:
        raw.execute(statement)
    assert not pp.Ledger(tmp_path / "promises.db").verify().valid


@pytest.mark.parametrize(
    "body", ['{"entries":5}', "null", "[" * 200_000, "[]", '{"entries":{"a":1}}']
)
def test_verify_reports_any_content_of_entry(ledger, tmp_path, body):
    table, model = lender()
    promised(ledger, model, table, 2)
    ledger.erase("p0")
    ledger.close()
    with sqlite3.connect(tmp_path / "promises.db") as raw:
        (trigger,) = raw.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'entries_no_update'"
        ).fetchone()
        raw.execute("DROP TRIGGER entries_no_update")
        raw.execute("UPDATE entries SET body = ? WHERE kind = 'erased'", (body,))
        raw.execute(trigger)
    found = pp.Ledger(tmp_path / "promises.db").verify()
    assert not found.valid
    assert "was changed" in str(found)


def test_certificate_that_swells_is_not_unpacked(ledger, tmp_path):
    table, model = lender()
    ids, _ = promised(ledger, model, table, 1)
    ledger.close()
    with sqlite3.connect(tmp_path / "promises.db") as raw:
        raw.execute("DROP TRIGGER personal_no_update")
        bomb = zlib.compress(b" " * 200_000_000, 9)
        raw.execute("UPDATE personal SET certificate = ? WHERE entry = ?", (bomb, ids[0]))
    with pytest.raises(TamperedError, match="verify"):
        _ = pp.Ledger(tmp_path / "promises.db").promise(ids[0]).certificate


# -- the clock -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", ["0", "99999999999"])
def test_clock_cannot_be_moved(ledger, monkeypatch, epoch):
    """SOURCE_DATE_EPOCH is for pages that are made again, not for what is over."""
    table, model = lender()
    _, result = promised(ledger, model, table, 2)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    ledger.issue(result, ["x0", "x1"], expires="2999-06-30")
    assert len(ledger.promises(state="open")) == 4
    assert ledger.set_current_model(model).time.startswith("20")


def test_audit_evaluates_counterfactual_that_fills_missing_cell(ledger):
    """The cell is no longer missing, so what the new model puts into missing ones does not matter."""
    rng = np.random.default_rng(0)
    table = numbers().astype(float).assign(savings=rng.uniform(0, 60, 400).round(1))
    y = (table["income"] - table["debt"] + 2 * table["savings"] > 80).astype(int)
    table.loc[::7, "savings"] = np.nan
    old = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(table, y)
    people = table[(old.predict(table) == 0) & table["savings"].isna()][:5]
    explainer = pp.Proplace(old, 0.02, k=5).fit(table)
    result = explainer.explain(people, immutable=["income", "debt"], typical=False)
    ids = ledger.issue(result, [f"p{n}" for n in range(len(people))]).ids
    assert len(ids) >= 3
    for number in ids:
        promise = ledger.promise(number)
        assert promise.facts["imputed"] == ["savings"]
        assert promise.answer["savings"] > 0
    new = copy.deepcopy(old)
    new[0].statistics_ = new[0].statistics_ * np.array([1.0, 1.0, 0.5])
    assert ledger.audit(new).counts["proved"] == len(ids)
    assert pp.retrain.repair(new, ledger).change == 0.0
