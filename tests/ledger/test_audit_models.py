"""Audits of real models of scikit-learn, torch and ONNX, compared with their own predictions."""

from __future__ import annotations

import copy
import functools
import itertools
from fractions import Fraction as Q

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp
from proplace.loaders.align import in_coordinates_of, rounding_in_coordinates_of
from refits import GRADES, JOBS, SHAPES, fitted, people, retrained
from support.lenders import setting_of, verdicts, write

TABLE, DECIDED = people(200, 0)
LATER, DECIDED_LATER = people(200, 1)
DELTA = 2.0**-6


@functools.cache
def first(shape):
    """The current pipeline, which must not be changed."""
    return fitted(SHAPES[shape](), TABLE, DECIDED)


@functools.cache
def second(shape, sizes=(6,)):
    """A pipeline that was trained a year later, which must not be changed."""
    return fitted(SHAPES[shape](), LATER, DECIDED_LATER, sizes=sizes)


def accepted(pipe, table=LATER, count=60):
    """Rows that a pipeline accepts."""
    return table[pipe.predict(table) == "yes"].iloc[:count].reset_index(drop=True)


def promise(ledger, source, rows, delta=DELTA, *, tolerance=0.0):
    """Promise some rows of a table, and all that miss their numbers by a tolerance (encoded)."""
    model = pp.Model.of(source)
    points = model.encode(rows)
    reach = tolerance * np.array([column.kind != "binary" for column in model.schema.columns])
    box = (points - reach, points + reach) if tolerance else None
    answers = rows.astype(object).to_dict("records")
    setting = setting_of(model, pp.Shifts.of(model.network, delta))
    return write(ledger, setting, answers, points, 1, box=box)


def refitted(pipe, factor=1.3, offset=0.2, nudge=0.0):
    """A pipeline whose scaler was fitted otherwise, with weights that make up for it but for a nudge.

    In exact arithmetic the weights of the numbers, in the old coordinates, are off by ``nudge``.
    """
    new = copy.deepcopy(pipe)
    scaler = new[0].named_transformers_["standardscaler"]
    old_mean, old_scale = scaler.mean_.copy(), scaler.scale_.copy()
    scaler.mean_, scaler.scale_ = old_mean + offset * old_scale, old_scale * factor
    scaler.var_ = scaler.scale_**2
    mlp = new[-1]
    first = mlp.coefs_[0][:2] + nudge
    mlp.coefs_[0][:2] = first * factor
    mlp.intercepts_[0] = mlp.intercepts_[0] + offset * first.sum(axis=0)
    return new


# -- scalers and encoders that were fitted again ---------------------------------------------------


def test_scaler_that_was_fitted_again_changes_nothing_by_itself(ledger):
    """Weights that make up for it are the old ones in the coordinates of the promises."""
    pipe = first("standard")
    promise(ledger, pipe, accepted(pipe))
    for nudge, proved in ((0.0, True), (0.99 * DELTA, True), (1.01 * DELTA, False)):
        audit = ledger.audit(refitted(pipe, nudge=nudge))
        assert bool(audit.groups[0].inside) == proved
        assert (audit.counts["proved"] > 0) == proved


def test_network_within_rounding_of_set_is_not_proved(ledger):
    """A nudge within rounding of delta: the parameters that were computed may lie on either side."""
    pipe = first("standard")
    promise(ledger, pipe, accepted(pipe))
    audit = ledger.audit(refitted(pipe, nudge=DELTA * (1 - 1e-14)))
    assert audit.groups[0].inside == ""
    assert audit.counts["proved"] == 0


@pytest.mark.parametrize("old", SHAPES)
@pytest.mark.parametrize("new", SHAPES)
def test_rounding_of_coordinates_is_bounded(old, new):
    """In exact rationals, at rows of the table: the model, and the network in other coordinates."""
    base = pp.Model.of(first(old))
    other = pp.Model.of(second(new))
    if old == "robust, ordinal" != new:
        return
    net = in_coordinates_of(base, other)
    W, b = rounding_in_coordinates_of(base, other)
    assert W.max() < 1e-8
    assert b.max() < 1e-6
    rows = TABLE.iloc[:10]
    mine, theirs = base.encode(rows), other.encode(rows)
    # Codes are floats. They stand for the cells, whose numbers are exact here.
    for x, y in zip(mine, theirs, strict=True):
        ours, real = first_layer(net, x), first_layer(other.network, y)
        room = [
            sum(Q(float(w)) * abs(Q(float(v))) for w, v in zip(row, x, strict=True)) + Q(float(c))
            for row, c in zip(W, b, strict=True)
        ]
        assert all(abs(p - q) <= r for p, q, r in zip(ours, real, room, strict=True))


def first_layer(net, x):
    """Pre-activations of the first layer, in exact rationals."""
    scale = np.ones(net.inputs) if net.scale is None else net.scale
    shift = np.zeros(net.inputs) if net.shift is None else net.shift
    u = [Q(float(s)) * Q(float(v)) + Q(float(t)) for s, v, t in zip(scale, x, shift, strict=True)]
    layer = net.layers[0]
    return [
        sum(Q(float(w)) * v for w, v in zip(row, u, strict=True)) + Q(float(c))
        for row, c in zip(layer.W, layer.bias, strict=True)
    ]


@pytest.mark.every(3)
@pytest.mark.parametrize("tolerance", [0.0, 0.05])
@pytest.mark.parametrize("new", SHAPES)
@pytest.mark.parametrize("old", SHAPES)
def test_verdicts_agree_with_new_pipeline(ledger, old, new, tolerance):
    """Retrained from scratch: other scalers, encoders, architecture."""
    pipe = first(old)
    later = second(new, (5, 4))
    rows = accepted(pipe)
    numbers = promise(ledger, pipe, rows, tolerance=tolerance)
    audit = ledger.audit(later)
    found = verdicts(audit)
    compared = not old == "robust, ordinal" != new
    assert audit.groups[0].aligned == compared
    ends = list(corners(pp.Model.of(pipe), rows, tolerance))
    good = np.all([later.predict(end) == "yes" for end in ends], axis=0)
    for number, fine, here in zip(numbers, good, later.predict(rows) == "yes", strict=True):
        if not fine:
            assert found[number] == "broken"
        elif not tolerance:
            assert found[number] == "holds"
        assert here or found[number] == "broken"
    assert audit.counts["holds"]
    assert set(audit.to_frame("holds")["note"]) == {""}
    assert (audit.to_frame("holds")["margin"] > 0.0).all()


def corners(model, rows, tolerance):
    """Rows at the corners of the boxes, in original units."""
    for age in (-1.0, 0.0, 1.0):
        for income in (-1.0, 0.0, 1.0):
            moved = {
                name: rows[name] + sign * tolerance * model.schema.by_name[name].scale * (1 - 1e-12)
                for name, sign in (("age", age), ("income", income))
            }
            yield rows.assign(**moved)


def test_categories_in_another_order_are_same_categories(ledger):
    """One-hot columns in another order, weights with them: the same network."""

    def steps(jobs):
        return [
            (StandardScaler(), ["age", "income"]),
            (OneHotEncoder(categories=[jobs, GRADES]), ["job", "grade"]),
        ]  # fmt: skip

    pipe = fitted(steps(JOBS), TABLE, DECIDED)
    turned = fitted(steps(JOBS[::-1]), TABLE, DECIDED)
    for name in ("coefs_", "intercepts_"):
        setattr(turned[-1], name, [part.copy() for part in getattr(pipe[-1], name)])
    unturned = copy.deepcopy(turned)
    turned[-1].coefs_[0][2:5] = pipe[-1].coefs_[0][2:5][::-1]
    rows = accepted(pipe)
    promise(ledger, pipe, rows)
    assert ledger.audit(turned).counts["proved"] == len(rows)
    audit = ledger.audit(unturned)  # the same numbers, which now mean other jobs
    assert audit.groups[0].inside == ""
    refused = (unturned.predict(rows) != "yes").sum()
    assert (audit.counts["proved"], audit.counts["broken"]) == (0, refused)


def test_classes_in_another_order_match_by_label(ledger):
    pipe = first("standard")
    rows = accepted(pipe)
    promise(ledger, pipe, rows)
    three = np.where(DECIDED_LATER == "yes", "yes", np.where(LATER["age"] > 40, "alas", "no"))
    later = fitted(SHAPES["standard"](), LATER, three)
    audit = ledger.audit(later)
    said = later.predict(rows)
    assert ["broken" if one != "yes" else "holds" for one in said] == list(verdicts(audit).values())


# -- other columns ---------------------------------------------------------------------------------


def test_model_of_fewer_columns_is_evaluated(ledger):
    pipe = first("standard")
    rows = accepted(pipe)
    promise(ledger, pipe, rows)
    steps = [(StandardScaler(), ["income", "age"])]
    later = fitted(steps, LATER, DECIDED_LATER)
    said = later.predict(rows) == "yes"
    assert list(verdicts(ledger.audit(later)).values()) == [
        "holds" if s else "broken" for s in said
    ]


def test_model_of_more_columns_is_undecided(ledger):
    pipe = first("standard")
    promise(ledger, pipe, accepted(pipe, count=5))
    more = LATER.assign(region=np.arange(len(LATER)) % 7)
    steps = [*SHAPES["standard"](), (StandardScaler(), ["region"])]
    audit = ledger.audit(fitted(steps, more, DECIDED_LATER))
    assert audit.counts["undecided"] == 5
    assert "region" in str(audit)
    assert not audit.passes("broken")


def test_unknown_labels_are_undecided(ledger):
    """The others are predicted one by one."""
    pipe = first("standard")
    rows = accepted(pipe)
    numbers = promise(ledger, pipe, rows)
    known = LATER["job"] != "smith"
    later = fitted(SHAPES["standard"](), LATER[known], DECIDED_LATER[known])
    audit = ledger.audit(later)
    found = verdicts(audit)
    assert audit.counts["undecided"] == (rows["job"] == "smith").sum() > 0
    for number, (n, row) in zip(numbers, rows.iterrows(), strict=True):
        if row["job"] != "smith":
            said = later.predict(rows.loc[[n]])[0] == "yes"
            assert found[number] == ("holds" if said else "broken")


# -- the original model decides ---------------------------------------------------------------------


def test_refusal_of_accepted_point_is_alarm(ledger):
    """An original model that changed after its import."""
    pipe = first("standard")
    rows = accepted(pipe)
    promise(ledger, pipe, rows)
    changed = copy.deepcopy(pipe)
    read = pp.Model.of(changed)
    changed[-1].intercepts_[-1] = changed[-1].intercepts_[-1] - 1e3
    audit = ledger.audit(read)
    assert audit.counts["broken"] == len(audit.alarms) == len(rows)
    assert "ALARM" in str(audit)
    assert audit.groups[0].inside  # and yet nothing is called proved
    assert not audit.passes("broken")


def test_acceptance_of_refused_point_is_alarm(ledger):
    pipe = first("standard")
    rows = accepted(pipe, count=10)
    promise(ledger, pipe, rows)
    changed = refitted(pipe, nudge=2 * DELTA)
    changed[-1].intercepts_[-1] = changed[-1].intercepts_[-1] - 1e3
    read = pp.Model.of(changed)
    changed[-1].intercepts_[-1] = changed[-1].intercepts_[-1] + 1e3
    audit = ledger.audit(read)
    assert audit.counts["broken"] == len(audit.alarms) > 0


# -- other frameworks ------------------------------------------------------------------------------


def test_torch_modules(ledger):
    """float32 weights moved within delta, beyond it, and another architecture."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    def module(*sizes):
        parts = []
        for a, b in itertools.pairwise(sizes):
            parts += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        return torch.nn.Sequential(*parts[:-1])  # fmt: skip

    schema = pp.Schema([pp.Continuous("income", 0, 100), pp.Continuous("debt", 0, 50)])
    old = module(2, 4, 1)
    model = pp.Model.of(old).with_schema(schema)
    table = pd.DataFrame(
        np.random.default_rng(0).uniform(0, 50, (40, 2)), columns=["income", "debt"]
    )
    rows = table[model.predict(table) == 1].reset_index(drop=True)
    assert len(rows) > 5
    answers = rows.astype(object).to_dict("records")
    setting = setting_of(model, pp.Shifts.of(model.network, DELTA))
    write(ledger, setting, answers, model.encode(rows))
    near = copy.deepcopy(old)
    with torch.no_grad():
        for part in near.parameters():
            part.add_(DELTA / 2)
    audit = ledger.audit(near)
    assert audit.groups[0].inside == "the current model"
    for new in (near, module(2, 5, 3, 1), module(2, 4, 2)):
        said = new(torch.tensor(model.encode(rows), dtype=torch.float32)).detach().numpy()
        good = said[:, 0] >= 0 if said.shape[1] == 1 else said.argmax(axis=1) == 1
        found = list(verdicts(ledger.audit(new)).values())
        assert [one != "broken" for one in found] == good.tolist()


def test_batch_norm_counts_as_it_was_trained(ledger):
    """Delta refers to the trained weights. A batch norm that moved makes another network."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    old = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 1)
    )
    old(torch.randn(500, 2) * 3)
    old.eval()
    model = pp.Model.of(old)
    rows = np.random.default_rng(0).normal(size=(60, 2))
    rows = rows[model.network.margin(rows) > 1e-4]
    answers = [dict(zip(model.schema.by_name, row.tolist(), strict=True)) for row in rows]
    write(ledger, setting_of(model, pp.Shifts.of(model.network, DELTA)), answers, rows)
    moved, drifted = copy.deepcopy(old), copy.deepcopy(old)
    with torch.no_grad():
        moved[0].weight.add_(0.9 * DELTA)
        drifted[1].running_var.mul_(4.0)
    assert ledger.audit(moved).groups[0].inside
    assert ledger.audit(drifted).groups[0].inside == ""
    for new in (moved, drifted):
        said = new(torch.tensor(rows, dtype=torch.float32)).detach().numpy()[:, 0] >= 0
        kept = [one != "broken" for one in verdicts(ledger.audit(new)).values()]
        assert kept == said.tolist()


def test_onnx_files(ledger, tmp_path):
    """A pipeline and its export in float32, and the export of a retrained one."""
    pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx")
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    pipe = first("standard")
    rows = accepted(pipe)
    numbers = promise(ledger, pipe, rows)
    kinds = {"age": FloatTensorType, "income": FloatTensorType}
    types = [(name, kinds.get(name, StringTensorType)([None, 1])) for name in TABLE.columns]
    later = retrained(pipe, SHAPES["standard"](), LATER, DECIDED_LATER, epochs=60)
    for source in (pipe, later):
        path = tmp_path / "model.onnx"
        path.write_bytes(
            skl2onnx.to_onnx(
                source, initial_types=types, options={"zipmap": False}
            ).SerializeToString()
        )
        audit = ledger.audit(str(path))
        found = verdicts(audit)
        said = source.predict(rows) == "yes"
        for number, good in zip(numbers, said, strict=True):
            assert (found[number] != "broken") == good
        assert audit.model == "model.onnx"
        # The export has the weights of the pipeline, each rounded to float32.
        assert (audit.counts["proved"] == len(rows)) == (source is pipe)


def test_logistic_regression_of_raw_numbers(ledger):
    table = TABLE[["age", "income"]]
    old = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, DECIDED)
    rows = accepted(old, LATER[["age", "income"]])
    promise(ledger, old, rows)
    bare = LogisticRegression(C=1e-4).fit(table, DECIDED)
    said = bare.predict(rows) == "yes"
    assert list(verdicts(ledger.audit(bare)).values()) == ["holds" if s else "broken" for s in said]


def test_corner_that_rounding_decides_is_unknown(ledger):
    """The answer is clearly accepted, and a promised input next to it lies on the boundary."""
    old = pp.Schema(
        [pp.Continuous("income", 0, 8, scaling="none"), pp.Ordinal("grade", ["low", "mid", "high"])]
    )
    new = pp.Schema(
        [
            pp.Continuous("income", 0, 8, scaling="none"),
            pp.Categorical("grade", ["low", "mid", "high"]),
        ]
    )
    base = pp.Model.of(pp.Network([([[1.0, 0.0]], [-1.0])])).with_schema(old)
    for corner, verdict in ((3.5, "holds"), (3.0, "undecided"), (2.5, "broken")):
        with pp.Ledger(ledger.name + str(corner)) as book:
            setting = setting_of(base, pp.Shifts.of(base.network, 0.01))
            points = np.array([[4.0, 0.5]])
            box = (np.array([[corner, 0.5]]), np.array([[4.0, 0.5]]))
            write(book, setting, [{"income": 4.0, "grade": "mid"}], points, box=box)
            net = pp.Network([([[0.1, 0.0, 0.0, 0.0]], [-0.3])], precision="float32")
            audit = book.audit(pp.Model.of(net).with_schema(new))
            assert not audit.groups[0].aligned
            assert list(verdicts(audit).values()) == [verdict]


def test_number_that_new_model_encodes_as_category_leaves_box_undecided(ledger):
    old = pp.Schema([pp.Continuous("income", 0, 8), pp.Continuous("rooms", 1, 3, step=1)])
    new = pp.Schema([pp.Continuous("income", 0, 8), pp.Categorical("rooms", [1, 2, 3])])
    base = pp.Model.of(pp.Network([([[1.0, 0.0]], [-0.1])])).with_schema(old)
    setting = setting_of(base, pp.Shifts.of(base.network, 0.01))
    point = old.encode(pd.DataFrame({"income": [4.0], "rooms": [2]}))
    for wide, verdict in (([0.0, 0.0], "holds"), ([0.1, 0.0], "holds"), ([0.0, 0.1], "undecided")):
        with pp.Ledger(f"{ledger.name}{wide}") as book:
            box = (point - wide, point + wide)
            write(book, setting, [{"income": 4.0, "rooms": 2}], point, box=box)
            net = pp.Network([([[1.0, 0.1, 0.2, 0.1]], [-0.2])])
            audit = book.audit(pp.Model.of(net).with_schema(new))
            assert list(verdicts(audit).values()) == [verdict]
            (note,) = audit.to_frame()["note"]
            assert note.startswith("point only" if verdict == "undecided" else "")


def test_margins_of_boxes_are_lower_bounds_in_original_units(ledger):
    """The margin of an MLP over a box, against a dense grid of its own scores."""
    pipe = first("standard")
    rows = accepted(pipe, count=8)
    promise(ledger, pipe, rows, tolerance=0.2)
    later = second("standard")
    audit = ledger.audit(later)
    scale = {n: pp.Model.of(pipe).schema.by_name[n].scale for n in ("age", "income")}
    for n, row in rows.iterrows():
        grid = [
            {
                **row,
                "age": row["age"] + a * scale["age"],
                "income": row["income"] + b * scale["income"],
            }
            for a in np.linspace(-0.2, 0.2, 15)
            for b in np.linspace(-0.2, 0.2, 15)
        ]
        P = later.predict_proba(pd.DataFrame(grid))
        least = np.log(P[:, 1] / P[:, 0]).min()
        if audit.verdicts.verdict[n] == 1:
            assert 0.0 < audit.verdicts.margin[n] <= least + 1e-6
        else:
            assert audit.verdicts.margin[n] < 0.0


def test_renewed_promises_are_proved_and_others_stay(tmp_path):
    """A person with two promises, of which one is broken, keeps the other."""
    pipe = first("standard")
    refused = TABLE[pipe.predict(TABLE) == "no"].iloc[:10]
    result = pp.Proplace(pipe, DELTA, k=5).fit(TABLE).explain(refused, "yes")
    later = second("robust, ordinal")
    with pp.Ledger(tmp_path / "p.db") as ledger:
        ids = [f"p{n // 2}" for n in range(len(result))]
        ledger.issue(result, ids=ids, existing="add", expires="2999-12-31")
        before = ledger.audit(later)
        assert before.counts["broken"]
        assert before.counts["holds"]
        kept = set(before.with_verdict("holds"))
        renewal = before.renew(pp.Proplace(later, DELTA, k=5).fit(LATER))
        assert ledger.head.entries == before.number  # nothing is issued without a request
        frame = renewal.to_frame()
        assert set(frame["person"]) == {
            ids[n] for n in np.flatnonzero(before.verdicts.verdict == 2)
        }
        for line in frame.dropna(subset=["feature"]).itertuples():
            promise = ledger.promise(line.promise)
            assert promise.original[line.feature] == line.was
            assert promise.answer[line.feature] == line.promised
        issued = renewal.issue()
        after = ledger.audit(later)
        assert kept <= set(after.with_verdict("holds"))
        assert set(issued.new) == set(after.with_verdict("proved"))
        assert not after.counts["broken"]
        assert {ledger.promise(n).state for n in before.broken} == {"renewed"}
        assert {ledger.promise(n).expires for n in issued.new} == {"2999-12-31"}
        assert ledger.verify().valid
