"""Retrained models after the current scalers, compared with the pipelines themselves."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as Q

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logit
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

import proplace as pp
from proplace.core.errors import InputError
from proplace.loaders.align import (
    in_coordinates_of,
    recoded,
    rounding_in_coordinates_of,
    taking_rows_of,
)
from refits import GRADES, SHAPES, fitted, people, retrained
from support.tiers import examples

TABLE, DECIDED = people(200, 0)
LATER, DECIDED_LATER = people(150, 1)
FRESH, _ = people(60, 2)


@pytest.mark.parametrize("new", SHAPES)
@pytest.mark.parametrize("old", SHAPES)
def test_logits_are_those_of_retrained_pipeline(old, new):
    """Whatever scalers and encoders stand in front of either."""
    base = pp.Model.of(fitted(SHAPES[old](), TABLE, DECIDED))
    pipe = fitted(SHAPES[new](), LATER, DECIDED_LATER)
    if new == "robust, ordinal" != old:
        # One number for three levels. One-hot columns can express it, but not the reverse.
        assert in_coordinates_of(base, pp.Model.of(pipe)).inputs == base.network.inputs
    if old == "robust, ordinal" != new:
        with pytest.raises(InputError, match="levels of column 'grade' have other distances"):
            in_coordinates_of(base, pp.Model.of(pipe))
        return
    net = in_coordinates_of(base, pp.Model.of(pipe))
    found = net.logits(base.encode(FRESH))[:, 0]
    np.testing.assert_allclose(found, logit(pipe.predict_proba(FRESH)[:, 1]), atol=1e-6)
    assert net.input_transform.parts.keys() == base.network.input_transform.parts.keys()
    if old == new:
        assert np.isfinite(base.network.distance(net))


@pytest.mark.parametrize("new", SHAPES)
@pytest.mark.parametrize("old", SHAPES)
def test_another_model_on_rows_in_use_is_pipeline_itself(old, new):
    """With equal trained layers: only the input transform shows the origin of the rows."""
    base = pp.Model.of(fitted(SHAPES[old](), TABLE, DECIDED))
    pipe = fitted(SHAPES[new](), LATER, DECIDED_LATER)
    own = pp.Model.of(pipe)
    if old == "robust, ordinal" != new:
        with pytest.raises(InputError, match="levels of column 'grade' have other distances"):
            taking_rows_of(base, own)
        return
    other = taking_rows_of(base, own)
    found = other.network.logits(base.encode(FRESH))[:, 0]
    np.testing.assert_allclose(found, logit(pipe.predict_proba(FRESH)[:, 1]), atol=1e-8)
    for mine, theirs in zip(other.network.layers, own.network.layers, strict=True):
        assert mine is theirs or mine.W.tobytes() == theirs.W.tobytes()
    other.check_agreement(FRESH)
    assert list(other.predict_original(FRESH)) == list(pipe.predict(FRESH))
    # float32 margins are those of the deployed model, from the table's own numbers
    mine, theirs = (
        np.asarray(model.margins(pp.Shifts.of(model.network, 0.01), model.encode(FRESH), "float32"))
        for model in (other, own)
    )
    assert (mine >= theirs * (1.0 - 1e-9)).all()
    assert (mine <= 60.0 * theirs).all()


def test_another_model_on_rows_in_use_exactly():
    """Each entry of the composed scale and shift is the exact one to a few units in the last place."""
    base, own = (
        pp.Model.of(make_pipeline(StandardScaler(), LogisticRegression()).fit(*data))
        for data in (
            (TABLE[["age", "income"]], DECIDED),
            (LATER[["age", "income"]], DECIDED_LATER),
        )
    )
    other = taking_rows_of(base, own).network
    for j, (mine, theirs) in enumerate(zip(base.schema.features, own.schema.features, strict=True)):
        offsets, scales = (
            [Q(getattr(f, part)) for f in (mine, theirs)] for part in ("offset", "scale")
        )
        scale, shift = scales[0] / scales[1], (offsets[0] - offsets[1]) / scales[1]
        assert abs(Q(other.scale[j]) - scale) <= Q(2.0**-51) * abs(scale)
        size = (abs(offsets[0]) + abs(offsets[1])) / abs(scales[1])
        assert abs(Q(other.shift[j]) - shift) <= Q(2.0**-51) * size


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_another_model_behind_its_own_input_transform(matrix, swapped):
    """A scaler and a matrix inside of the network itself, behind the recoding of its rows."""
    rng = np.random.default_rng(5)
    parts = {"scale": rng.uniform(0.5, 2.0, 2), "shift": rng.normal(size=2)}
    if matrix:
        parts |= {"matrix": rng.normal(size=(3, 2)), "offset": rng.normal(size=3)}
    net = pp.Network([(rng.normal(size=(1, 3 if matrix else 2)), [0.3])], **parts)
    names = ["b", "a"] if swapped else ["a", "b"]
    features = [pp.Continuous(name, 0, 9, scaling=(2.0 + i, 3.0)) for i, name in enumerate(names)]
    own = replace(
        pp.Model.of(net), schema=pp.Schema(features), has_column_names=True, has_preprocessing=True
    )
    mine = pp.Schema([pp.Continuous(name, 0, 9, scaling=(1.0, 5.0)) for name in "ab"])
    base = replace(own, schema=mine, network=pp.Network([([[1.0, 1.0]], [0.0])]))
    table = pd.DataFrame(rng.uniform(0.0, 9.0, (20, 2)), columns=["a", "b"])
    other = taking_rows_of(base, own).network
    found = other.logits(base.encode(table))
    np.testing.assert_allclose(found, net.logits(own.encode(table)), atol=1e-12)
    assert ("matrix" in other.input_transform.parts) == (matrix or swapped)


def test_another_model_that_was_fitted_on_same_rows_is_taken_as_it_is():
    pipe = fitted(SHAPES["standard"](), TABLE, DECIDED)
    base = pp.Model.of(pipe)
    own = pp.Model.of(
        make_pipeline(pipe[0], fitted(SHAPES["standard"](), LATER, DECIDED_LATER)[-1])
    )
    assert taking_rows_of(base, own).network is own.network


def test_nothing_is_computed_where_nothing_was_fitted_again():
    pipe = fitted(SHAPES["standard"](), TABLE, DECIDED)
    base = pp.Model.of(pipe)
    again = make_pipeline(pipe[0], fitted(SHAPES["standard"](), LATER, DECIDED_LATER)[-1])
    other = pp.Model.of(again)
    assert in_coordinates_of(base, other) is other.network


def test_same_function_behind_another_scaler_did_not_move():
    """Twice the scale and twice the weights: the parameters behind the scaler in use are the same."""
    scaler = StandardScaler().fit(TABLE[["age", "income"]])
    last = LogisticRegression().fit(scaler.transform(TABLE[["age", "income"]]), DECIDED)
    other, moved = StandardScaler().fit(LATER[["age", "income"]]), LogisticRegression()
    moved.classes_ = last.classes_
    moved.coef_ = last.coef_ * other.scale_ / scaler.scale_
    moved.intercept_ = last.intercept_ + last.coef_ @ ((other.mean_ - scaler.mean_) / scaler.scale_)
    base, new = (pp.Model.of(make_pipeline(*p)) for p in ((scaler, last), (other, moved)))
    assert np.abs(base.network.layers[0].W - new.network.layers[0].W).max() > 1e-3
    assert base.network.distance(in_coordinates_of(base, new)) < 1e-12


@pytest.mark.parametrize("shape", SHAPES)
def test_within_delta_behind_one_scaler_every_certified_row_stays_accepted(shape):
    """The theorem: the retrained pipeline itself gives each such row its class."""
    pipe = fitted(SHAPES[shape](), TABLE, DECIDED)
    base = pp.Model.of(pipe)
    sample = pd.concat([TABLE, LATER.iloc[:5].assign(age=71)])  # beyond the range so far
    again = retrained(pipe, SHAPES[shape](), sample, [*DECIDED, *DECIDED_LATER[:5]], epochs=1)
    change = base.network.distance(in_coordinates_of(base, pp.Model.of(again)))
    count = 0
    for target in ("yes", "no"):
        robust = pp.certify(base, TABLE, change, target).robust
        assert (again.predict(TABLE[robust]) == target).all()
        count += robust.sum()
    assert count > 20
    assert base.network.distance(pp.Model.of(again).network) != change


@examples(40)
@given(st.data())
def test_any_input_maps(data):
    """Networks with scalers and matrices of their own, against their own logits."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    n, h = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))

    def network(mixed):
        parts = {}
        if data.draw(st.booleans()):
            parts["scale"] = rng.uniform(0.2, 3.0, n) * rng.choice([-1.0, 1.0], n)
        if data.draw(st.booleans()):
            parts["shift"] = rng.normal(size=n)
        width = n
        if mixed:
            width = data.draw(st.integers(1, 4))
            parts["matrix"] = rng.normal(size=(width, n))
        layers = [(rng.normal(size=(h, width)), rng.normal(size=h)), (np.ones((1, h)), [0.1])]
        return pp.Network(layers, **parts)

    base, other = network(mixed=False), network(mixed=data.draw(st.booleans()))
    expressed = in_coordinates_of(pp.Model.of(base), pp.Model.of(other))
    X = rng.normal(size=(20, n)) * 3.0
    np.testing.assert_allclose(expressed.logits(X), other.logits(X), atol=1e-9, rtol=1e-9)


def test_matrix_in_front_must_express_new_one():
    numbers = TABLE[["age", "income"]].assign(debt=lambda t: t["age"] * 3.0 + t["income"] % 700)
    later = LATER[["age", "income"]].assign(debt=lambda t: t["age"] * 3.0 + t["income"] % 700)

    def model(rows, decided, count):
        steps = StandardScaler(), PCA(count, random_state=0), LogisticRegression()
        return make_pipeline(*steps).fit(rows, decided)

    pipe = model(numbers, DECIDED, 2)
    base = pp.Model.of(pipe)
    with pytest.raises(InputError, match=r"a matrix before its first layer .PCA.*keep it when"):
        in_coordinates_of(base, pp.Model.of(model(later, DECIDED_LATER, 2)))
    front = make_pipeline(pipe[0], pipe[1])  # the step that the message names
    last = LogisticRegression().fit(front.transform(later), DECIDED_LATER)
    other = pp.Model.of(make_pipeline(pipe[0], pipe[1], last))
    assert in_coordinates_of(base, other) is other.network
    whole = pp.Model.of(model(numbers, DECIDED, 3))  # nothing was left out: it can be turned back
    again = model(later, DECIDED_LATER, 3)
    net = in_coordinates_of(whole, pp.Model.of(again))
    np.testing.assert_allclose(
        net.logits(whole.encode(later))[:, 0], again.decision_function(later), atol=1e-6
    )
    plain = pp.Model.of(make_pipeline(StandardScaler(), LogisticRegression()).fit(numbers, DECIDED))
    net = in_coordinates_of(plain, pp.Model.of(again))
    np.testing.assert_allclose(
        net.logits(plain.encode(later))[:, 0], again.decision_function(later), atol=1e-6
    )


def test_layer_without_bias_takes_no_offset():
    base = pp.Model.of(pp.Network([([[1.0]], None), ([[1.0]], [0.0])]))
    moved = pp.Model.of(pp.Network([([[1.0]], None), ([[1.0]], [0.0])], shift=[0.5]))
    with pytest.raises(InputError, match="current first layer has no bias"):
        in_coordinates_of(base, moved)
    scaled = pp.Model.of(pp.Network([([[1.0]], None), ([[1.0]], [0.0])], scale=[2.0]))
    assert in_coordinates_of(base, scaled).layers[0].W.tolist() == [[2.0]]
    assert in_coordinates_of(base, scaled).layers[0].b is None


def test_column_that_is_not_seen():
    base = pp.Model.of(pp.Network([([[1.0, 1.0]], [0.0])], scale=[0.0, -1.0]))
    for weight, fine in ((1.0, False), (0.0, True)):
        other = pp.Model.of(pp.Network([([[weight, 1.0]], [0.0])]))
        if fine:
            assert in_coordinates_of(base, other).layers[0].W.tolist() == [[0.0, -1.0]]
        else:
            with pytest.raises(InputError, match="multiplies column 'x0' by 0"):
                in_coordinates_of(base, other)


def test_categories_in_another_order_and_new_ones():
    base_pipe = fitted(SHAPES["standard"](), TABLE, DECIDED)
    more = pd.concat([LATER, LATER.iloc[:20].assign(job="pilot")], ignore_index=True)
    decided = [*DECIDED_LATER, *DECIDED_LATER[:20]]
    encoder = OneHotEncoder(categories=[["smith", "pilot", "cook", "clerk"], GRADES])
    steps = [(MinMaxScaler(), ["income", "age"]), (encoder, ["job", "grade"])]
    pipe = fitted(steps, more, decided)
    base = pp.Model.of(base_pipe)
    net = in_coordinates_of(base, pp.Model.of(pipe))
    found = net.logits(base.encode(FRESH))[:, 0]
    np.testing.assert_allclose(found, logit(pipe.predict_proba(FRESH)[:, 1]), atol=1e-6)
    wider = pp.Model.of(pipe)
    with pytest.raises(InputError, match=r"lacks 'pilot' of column 'job'.*categories="):
        in_coordinates_of(wider, base)


def columns(names, **types):
    steps = [(StandardScaler(), names)]
    steps += [(OneHotEncoder(), [name]) for name in types]
    return pp.Model.of(fitted(steps, TABLE, DECIDED))


def test_models_without_common_coordinates_are_rejected_with_reason():
    base = columns(["age"])
    with pytest.raises(InputError, match="takes 'income', which the current model does not"):
        in_coordinates_of(base, columns(["age", "income"]))
    fewer = in_coordinates_of(columns(["age", "income"]), base)
    assert not fewer.layers[0].W[:, 1].any()
    other = pp.Model.of(fitted([(StandardScaler(), ["age"])], TABLE, DECIDED == "yes"))
    with pytest.raises(InputError, match=r"has the classes .*Retrain it for the same classes"):
        in_coordinates_of(base, other)
    coded = pp.Model.of(fitted([(OneHotEncoder(), ["age"])], TABLE, DECIDED))
    with pytest.raises(InputError, match="'age' is a number in the current model and has labels"):
        in_coordinates_of(base, coded)
    levels = [
        pp.Model.of(fitted([(OrdinalEncoder(categories=[order]), ["grade"])], TABLE, DECIDED))
        for order in (GRADES, ["B", "C", "A"], GRADES[::-1])
    ]
    with pytest.raises(InputError, match="levels of column 'grade' have other distances"):
        in_coordinates_of(*levels[:2])
    turned = in_coordinates_of(levels[0], levels[2])
    rows = levels[0].encode(FRESH)
    expected = levels[2].network.logits(levels[2].encode(FRESH))
    np.testing.assert_allclose(turned.logits(rows), expected, atol=1e-9)


# -- rounding, in rational numbers ---------------------------------------------------------------


def described(features, net):
    return replace(
        pp.Model.of(net), schema=pp.Schema(features), has_column_names=True, has_preprocessing=True
    )


def test_recoded_boxes_contain_exact_ones():
    """Both ends are rounded outwards."""
    rng = np.random.default_rng(3)
    net = pp.Network([([[1.0, 1.0]], [0.0])])
    for _ in range(20):
        mine, theirs = (
            [
                pp.Continuous(name, -1e6, 1e6, scaling=(rng.normal() * 10, rng.uniform(0.1, 7.0)))
                for name in names
            ]
            for names in ("ab", "ba")
        )
        low = rng.normal(size=(50, 2))
        high = low + rng.uniform(0.1, 2.0, size=low.shape)
        ends = recoded(described(mine, net), described(theirs, net), low, high)
        for j, new in enumerate(theirs):
            own = mine[1 - j]
            for rows, found, outside in ((low, ends[0], 1), (high, ends[1], -1)):
                for value, end in zip(rows[:, 1 - j], found[:, j], strict=True):
                    cell = Q(own.offset) + Q(own.scale) * Q(value)
                    exact = (cell - Q(new.offset)) / Q(new.scale)
                    assert 0 <= outside * (exact - Q(end)) < Q(1e-9)


def test_rounding_of_recoding_that_was_solved_for():
    """The second level is off by 1e-10 of the levels in use, more than rounding does to a sum."""
    grades = ["A", "B", "C"]
    mine = pp.Ordinal("grade", grades, values=[0.0, 1.0, 2.0], scaling=(0.0, 1.0))
    theirs = pp.Ordinal("grade", grades, values=[0.0, 2.0 + 1e-10, 4.0], scaling=(0.0, 1.0))
    net = pp.Network([([[3.0], [-5.0]], [0.25, 0.5]), ([[1.0, 1.0]], [0.0])])
    base, other = described([mine], net), described([theirs], net)
    first = in_coordinates_of(base, other).layers[0]
    W, b = rounding_in_coordinates_of(base, other)
    for own, new in zip(mine.numbers, theirs.numbers, strict=True):
        for k, layer in enumerate(zip(net.layers[0].W, net.layers[0].b, strict=True)):
            exact = Q(float(layer[0][0])) * Q(new) + Q(float(layer[1]))
            found = Q(float(first.W[k, 0])) * Q(own) + Q(float(first.b[k]))
            bound = Q(float(W[k, 0])) * Q(own) + Q(float(b[k]))
            assert abs(found - exact) <= bound
    assert b.max() < 1e-8
