"""Immutable features, directions and ranges of one call of ``explain``, without a schema."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import proplace as pp
from proplace.core.errors import DraftWarning, OptionError
from proplace.region import neighbours
from support.lenders import applicants, deciding

FRAME = applicants(300, 0)
PIPE = deciding(FRAME)
REFUSED = FRAME[PIPE.predict(FRAME) == "refused"].iloc[:12]
NET = pp.Network([(np.eye(3), np.zeros(3)), ([[1.0, 1.0, 1.0]], [-1.5])])
ROWS = np.array([[x, y, z] for x in (0.0, 0.4, 0.9) for y in (0.1, 0.8) for z in (0.0, 1.0)])
PERSON = np.array([[0.2, 0.3, 0.1]])


@pytest.fixture(scope="module")
def explainer():
    return pp.Proplace(PIPE, 0.003, k=6).fit(FRAME)


def bare(**options):
    return pp.Proplace(NET, 0.01, k=8, **options).fit(ROWS)


def respects(e, *, immutable=(), increasing=(), decreasing=(), ranges=None):
    """True if a counterfactual satisfies the request. A person's own value is always legal."""
    before, after = e.original, e.counterfactual
    good = all(after[n] == before[n] for n in immutable)
    good &= all(after[n] >= before[n] for n in increasing)
    good &= all(after[n] <= before[n] for n in decreasing)
    for n, (low, high) in (ranges or {}).items():
        if after[n] != before[n]:
            good &= (low is None or after[n] >= low) and (high is None or after[n] <= high)
    return bool(good)


# -- pipelines -------------------------------------------------------------------------------------


WISHES = st.fixed_dictionaries(
    {},
    optional={
        "immutable": st.lists(st.sampled_from(["age", "share", "job", "member"]), unique=True),
        "increasing": st.sampled_from([[], ["age"], ["income"], ["age", "member"]]),
        "decreasing": st.sampled_from([[], ["share"]]),
        "ranges": st.sampled_from(
            [{}, {"income": (20_000, 110_000)}, {"share": (None, 0.7)}, {"age": (20, None)}]
        ),
    },
)


@settings(max_examples=12)
@given(wishes=WISHES, data=st.data())
def test_counterfactual_satisfies_request(explainer, wishes, data):
    people = REFUSED.iloc[[data.draw(st.integers(0, len(REFUSED) - 1))]]
    for e in explainer.explain(people, "granted", **wishes):
        if e.found:
            assert respects(e, **wishes)
            assert PIPE.predict(e.counterfactual.to_frame().T)[0] == "granted"


def test_request_equals_same_words_in_schema(explainer):
    drafted = {f.name: f for f in explainer.schema_.features}
    said = {
        "age": replace(drafted["age"], immutable=True),
        "income": replace(drafted["income"], direction="increasing"),
    }
    schema = pp.Schema([said.get(name, feature) for name, feature in drafted.items()])
    there = pp.Proplace(PIPE, 0.003, k=6, schema=schema).fit(FRAME).explain(REFUSED, "granted")
    here = explainer.explain(REFUSED, "granted", immutable=["age"], increasing=["income"])
    assert [e.status for e in here] == [e.status for e in there]
    assert np.array_equal(
        here.encoded_counterfactuals, there.encoded_counterfactuals, equal_nan=True
    )


@pytest.mark.filterwarnings("always::proplace.core.errors.DraftWarning")
def test_age_that_request_leaves_free_is_pointed_out_once_per_fit():
    explainer = pp.Proplace(PIPE, 0.003, k=6).fit(FRAME)
    with pytest.warns(DraftWarning, match="may lower 'age', .* Add it to increasing or ") as caught:
        explainer.explain(REFUSED[:1], "granted")
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(REFUSED[:1], "granted")
        explainer.fit(FRAME).explain(REFUSED[:1], "granted", increasing=["age"])
        pp.Proplace(PIPE, 0.003, k=6, schema=explainer.schema_).fit(FRAME).explain(
            REFUSED[:1], "granted"
        )


def test_wider_range_leaves_counterfactual_unchanged(explainer):
    plain = explainer.explain(REFUSED, "granted")
    wide = explainer.explain(REFUSED, "granted", ranges={"income": (0, 10_000_000)})
    assert [e.status for e in wide] == [e.status for e in plain]
    assert np.array_equal(
        wide.encoded_counterfactuals, plain.encoded_counterfactuals, equal_nan=True
    )


def test_second_request_tests_no_training_row_again(monkeypatch):
    explainer = pp.Proplace(PIPE, 0.003, k=6).fit(FRAME)
    explainer.explain(REFUSED[:2], "granted")
    fitted, made, tested = explainer.schema_, [], []
    prove = neighbours.prove

    def counting(guarantee, rows, *given, **options):
        tested.append(len(rows))
        return prove(guarantee, rows, *given, **options)

    monkeypatch.setattr(neighbours, "prove", counting)
    monkeypatch.setattr(pp.Proplace, "fit_rows", lambda *_: made.append("fit"))
    first = explainer.explain(REFUSED[:2], "granted", immutable=["age", "job"])
    second = explainer.explain(REFUSED[:2], "granted", ranges={"income": (0, 90_000)})
    assert not made
    assert all(count < len(FRAME) for count in tested)
    assert explainer.schema_ is fitted  # the explainer itself does not store the request
    assert all(respects(e, immutable=["age", "job"]) for e in first if e.found)
    assert all(respects(e, ranges={"income": (0, 90_000)}) for e in second if e.found)


@pytest.mark.slow
def test_workers_and_streams_use_same_request(explainer):
    asked = {"immutable": ["age"], "ranges": {"income": (0, 120_000)}}
    here = explainer.explain(REFUSED, "granted", **asked)
    there = pp.Proplace(PIPE, 0.003, k=6, n_jobs=2).fit(FRAME).explain(REFUSED, "granted", **asked)
    request = explainer.request("granted", **asked)
    streamed = [e for part in explainer.stream([REFUSED], request) for e in part]
    assert np.array_equal(
        here.encoded_counterfactuals, there.encoded_counterfactuals, equal_nan=True
    )
    for mine, other in zip(here, streamed, strict=True):
        assert np.array_equal(mine.encoded_counterfactual, other.encoded_counterfactual)


def test_setting_contains_declared_ranges(explainer):
    plain, asked = (
        explainer.explain(REFUSED[:1], "granted", ranges=ranges)[0].setting.schema.declared
        for ranges in ({}, {"income": (0, 90_000), "age": (18, None)})
    )
    assert plain == {"job", "member"}
    assert asked == {"income", "job", "member"}  # half a range is not declared


# -- networks and modules --------------------------------------------------------------------------


def test_network_takes_names_of_its_columns():
    (e,) = bare().explain(PERSON, immutable=["x1"], increasing=["x2"], ranges={"x0": (0.0, 0.5)})
    assert e.found
    assert e.counterfactual["x1"] == 0.3
    assert e.counterfactual["x2"] >= 0.1
    assert 0.0 <= e.counterfactual["x0"] <= 0.5


def test_network_takes_names_of_table():
    frame = pd.DataFrame(ROWS, columns=["rent", "age", "owner"])
    explainer, person = pp.Proplace(NET, 0.01, k=8).fit(frame), frame.iloc[[6]]  # 0.4, 0.8, 0
    (e,) = explainer.explain(
        person, immutable=["age"], decreasing=["owner"], ranges={"rent": (0, 2)}
    )
    assert respects(e, immutable=["age"], decreasing=["owner"], ranges={"rent": (0, 2)})
    with pytest.raises(OptionError, match="did you mean 'rent'"):
        explainer.explain(person, immutable=["rentt"])


@pytest.mark.parametrize("kind", ["int64", "float64", "object", "bool"])
def test_tables_of_every_kind_are_restricted(kind):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"flag": rng.integers(0, 2, 60), "score": rng.integers(0, 9, 60), "debt": rng.random(60)}
    )
    if kind == "bool":
        frame["flag"] = frame["flag"].astype(bool)
    elif kind == "object":
        frame = frame.astype(object)
    else:
        frame[["flag", "score"]] = frame[["flag", "score"]].astype(kind)
    net = pp.Network([([[1.0, 0.5, -1.0]], [0.0]), ([[1.0]], [-2.0])])
    explainer = pp.Proplace(net, 0.001, k=5).fit(frame)
    people = frame[explainer.explain(frame).to_frame()["status"].to_numpy() != "already_valid"][:3]
    for e in explainer.explain(people, immutable=["flag"], ranges={"score": (0, 7)}):
        assert e.found
        assert respects(e, immutable=["flag"], ranges={"score": (0, 7)})


def test_torch_module_is_restricted():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    with torch.no_grad():
        module[2].bias += 0.2 - module(torch.as_tensor(ROWS, dtype=torch.float32)).median()
    explainer = pp.Proplace(module, 0.001, k=8).fit(ROWS)
    refused = ROWS[explainer.net_.predict(ROWS) == 0]
    for e in explainer.explain(refused, immutable=["x0"], increasing=["x1"]):
        if e.found:
            assert respects(e, immutable=["x0"], increasing=["x1"])


def test_declared_ranges_prove_fixed_prediction():
    ends = dict.fromkeys(("x0", "x1", "x2"), (0.0, 0.45))
    assert (
        bare().explain(PERSON, ranges=ends)[0].status == "fixed_prediction"
    )  # 3 times 0.45 is below 1.5
    assert bare().explain(PERSON, ranges=ends | {"x0": (0.0, 0.8)})[0].found
    one = bare().explain(PERSON, ranges={"x0": (0.0, 0.45)}, immutable=["x1", "x2"])[0]
    assert one.status == "fixed_prediction"


def test_half_range_proves_no_fixed_prediction(explainer):
    far = {"income": (None, 15_000), "share": (0.9, None), "age": (None, 25)}
    statuses = {e.status for e in explainer.explain(REFUSED, "granted", ranges=far)}
    assert "fixed_prediction" not in statuses


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"immutable": ["agee"]}, r"immutable: 'agee' is not a feature \(did you mean 'age'"),
        ({"increasing": ["savings"]}, "increasing: 'savings' is not a feature; the features are"),
        (
            {"ranges": {"incom": (0, 1)}},
            r"ranges: 'incom' is not a feature \(did you mean 'income'",
        ),
        ({"immutable": "age"}, r"Write immutable=\['age'\]"),
        ({"decreasing": [3]}, "decreasing must be a list of names"),
        ({"immutable": {"age": True}}, "immutable must be a list of names"),
        ({"increasing": ["age"], "decreasing": ["age"]}, "in increasing and in decreasing"),
        ({"increasing": ["job"]}, "'job' is a category"),
        ({"ranges": {"job": (0, 1)}}, "'job' has the values"),
        ({"ranges": {"income": (9, 3)}}, "lower end below its upper end, not 9 and 3"),
        ({"ranges": {"income": (9, 9)}}, "To keep the value of a feature, make it immutable"),
        ({"ranges": {"income": 9}}, "must be a pair"),
        ({"ranges": {"income": (1, 2, 3)}}, "must be a pair"),
        ({"ranges": {"income": (None, None)}}, "must be a pair"),
        ({"ranges": {"income": ("a", 2)}}, "must have finite numbers, not 'a'"),
        ({"ranges": {"income": (0, float("inf"))}}, "must have finite numbers"),
        ({"ranges": [("income", (0, 1))]}, "ranges must give two ends by feature name"),
        ({"ranges": {"income": (1e9, None)}}, "one end from the training table. Give both"),
        ({"ranges": {"age": (20.2, 20.7)}}, "no two values in steps of 1"),
    ],
)
def test_wrong_wish_is_named(explainer, wishes, words):
    with pytest.raises(OptionError, match=words):
        explainer.explain(REFUSED, "granted", **wishes)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"ranges": {"income": (0, 300)}}, "0 to 300, goes beyond that of the schema, 0 to 100"),
        ({"ranges": {"income": (-1, None)}}, "can only narrow it"),
        ({"decreasing": ["debt"]}, "'debt' is increasing already"),
    ],
)
def test_request_cannot_loosen_schema(wishes, words):
    schema = pp.Schema(
        [
            pp.Continuous("income", 0, 100, step=1),
            pp.Continuous("debt", 0, 50, step=1, direction="increasing"),
        ]
    )
    frame = pd.DataFrame({"income": [20, 60, 80, 90, 95], "debt": [30, 10, 5, 20, 8]})
    net = pp.Network([([[2.0, -1.0], [-1.0, 1.5]], [-0.1, 0.2]), ([[1.5, -0.7]], [-0.45])])
    explainer = pp.Proplace(net, 0.01, schema=schema, k=3).fit(frame)
    person = pd.DataFrame({"income": [10], "debt": [5]})
    with pytest.raises(OptionError, match=words):
        explainer.explain(person, **wishes)
    (e,) = explainer.explain(person, ranges={"income": (15, 70)}, increasing=["debt"])
    assert e.found
    assert 15 <= e.counterfactual["income"] <= 70
