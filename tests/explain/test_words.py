"""Sentences: every kind of feature, every status, and no promise that is not proved."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.core.distances import L1
from proplace.core.errors import OptionError
from support.errors import raises
from support.lenders import setting_of

LOAN = pp.Wording("the loan", ["refused", "approved"], "applicant")

SCHEMA = pp.Schema(
    [
        pp.Continuous("debt", 0, 100, step=1, unit="% of income", label="obligations"),
        pp.Continuous("down", 0, 1e6, step=500, unit="dollars", label="the down payment"),
        pp.Ordinal("grade", ["C", "B", "A"], label="credit grade"),
        pp.Categorical("job", ["cook", "clerk"]),
        pp.Binary("cosigner", label="has a cosigner"),
    ]
)
NET = pp.Network([(np.zeros((1, SCHEMA.width)), [1.0])])


def setting(delta=0.02, net=NET):
    model = pp.Model.of(net).with_schema(SCHEMA)
    return setting_of(model, pp.Shifts.of(net, delta), distance=L1(np.ones(SCHEMA.width)))


def explanation(status="optimal", delta=0.02, **changes):
    original = pd.Series(
        {"debt": 38, "down": 0, "grade": "C", "job": "cook", "cosigner": 0}, dtype=object
    )
    other = original.copy()
    for name, value in changes.items():
        other[name] = value
    proved = {"margin": 0.01, "setting": setting(delta)}
    return pp.Explanation(
        status,
        "",
        index=7,
        target=1,
        original=original,
        counterfactual=other,
        distance=0.2,
        bound=0.2,
        **proved,
    )


def test_two_changes_in_original_units():
    words = explanation(debt=31, down=12_000).describe(LOAN)
    assert (
        str(words)
        == words.sentence
        == (
            "The loan would have been approved with obligations of 31% of income (today: 38%) and the "
            "down payment of 12,000 dollars (today: 0). This is proved for every model whose "
            "weights and biases each differ from the current model by at most 0.02."
        )
    )


def test_every_kind_of_feature():
    (sentence, *_) = str(explanation(cosigner=1).describe()).splitlines()
    assert "with the answer yes to “has a cosigner” (today: no)." in sentence
    words = explanation(debt=1, down=500, grade="A", job="clerk", cosigner=1).describe(LOAN)
    assert (
        "with obligations of 1% of income (today: 38%), the down payment of 500 dollars (today: 0), "
        "credit grade “A” (today: “C”), job “clerk” (today: “cook”) and the answer yes to “has a "
        "cosigner” (today: no)."
    ) in words.sentence
    assert words.table().to_dict("index") == {
        "obligations": {
            "from": "38% of income",
            "to": "1% of income",
            "change": "37 percentage points lower",
        },
        "the down payment": {
            "from": "0 dollars",
            "to": "500 dollars",
            "change": "500 dollars higher",
        },
        "credit grade": {"from": "C", "to": "A", "change": ""},
        "job": {"from": "cook", "to": "clerk", "change": ""},
        "has a cosigner": {"from": "no", "to": "yes", "change": ""},
    }
    assert words.person == (
        ("obligations", "38% of income"),
        ("the down payment", "0 dollars"),
        ("credit grade", "C"),
        ("job", "cook"),
        ("has a cosigner", "no"),
    )


def many(count):
    """An answer that changes each of some numbers, the later ones by more."""
    names = [f"n{i}" for i in range(count)]
    schema = pp.Schema([pp.Continuous(name, 0, 100, step=1) for name in names])
    net = pp.Network([(np.zeros((1, count)), [1.0])])
    x, point = np.zeros(count), (1 + np.arange(count)) / 100
    model = pp.Model.of(net).with_schema(schema)
    about = setting_of(model, pp.Shifts.of(net, 0.02), distance=L1(np.ones(count)))
    before, after = (schema.decode(row[None]).iloc[0].astype(object) for row in (x, point))
    e = pp.Explanation(
        "optimal",
        "",
        index=7,
        target=1,
        original=before,
        counterfactual=after,
        distance=0.2,
        bound=0.2,
        margin=0.01,
        setting=about,
    )
    return replace(e, encoded_original=x, encoded_counterfactual=point)


def test_many_changes_are_counted_and_listed():
    words = many(12).describe(LOAN)
    assert words.sentence == (
        "The loan would have been approved with 12 changes together; the largest are n11 of 12 "
        "(today: 0), n10 of 11 (today: 0) and n9 of 10 (today: 0). This is proved for every model "
        "whose weights and biases each differ from the current model by at most 0.02."
    )
    listed = str(words).splitlines()
    assert listed[0] == words.sentence
    assert listed[1:] == [f"- n{i}: {i + 1} instead of 0" for i in reversed(range(12))]
    assert len(words.claims) == len(words.table()) == 12  # in the order of the table
    assert [c.name for c in words.claims] == [f"n{i}" for i in range(12)]
    assert str(many(5).describe(LOAN)) == many(5).describe(LOAN).sentence
    assert "with n0 of 1 (today: 0), n1 of 2 (today: 0)" in many(5).describe(LOAN).sentence
    assert (
        "would also have been approved with 12 changes"
        in replace(many(12), rank=1).describe(LOAN).sentence
    )


@pytest.mark.parametrize(
    ("wording", "start"),
    [
        (None, "The outcome would have been class 1 with"),
        (pp.Wording("the loan"), "The loan would have been class 1 with"),
        (pp.Wording("loans", {1: "granted"}), "Loans would have been granted with"),
        (pp.Wording("the loan", {0: "refused"}), "The loan would have been class 1 with"),
        (pp.Wording("ärger", ["", "no"]), "Ärger would have been no with"),
    ],
)
def test_names_can_be_set(wording, start):
    assert explanation(debt=3).describe(wording).sentence.startswith(start)


def test_braces_in_names_are_only_text():
    wording = pp.Wording("{subject}", ["", "{0}"])
    e = replace(explanation(debt=3), status="no_robust_neighbour", reason="{reason}")
    assert e.describe(wording).sentence.endswith(
        "after which {subject} would provably be {0}: {reason}."
    )


def test_one_text_for_all_classes_is_refused():
    with raises(OptionError, name="outcomes", value="approved"):
        explanation(debt=3).describe(pp.Wording(outcomes="approved"))


@pytest.mark.parametrize(
    ("outcomes", "classes", "word"),
    [
        ({"yes": "approved", "no": "refused"}, ("no", "yes"), "approved"),
        ({"yes": "approved", "no": "refused"}, ("yes", "no"), "refused"),
        ({"no": "refused"}, ("no", "yes"), "yes"),
        (["refused", "approved"], (0, 1), "approved"),
        (["refused", "approved"], (False, True), "approved"),
        (["refused", "approved"], ("refused", "approved"), "approved"),
        ({2: "b"}, (1, 2), "b"),
        ({True: "approved"}, (False, True), "approved"),
    ],
)
def test_outcomes_go_by_label_of_class(outcomes, classes, word):
    assert pp.Wording("it", outcomes).outcome(1, classes) == word


@pytest.mark.parametrize(
    ("outcomes", "classes", "value"),
    [
        (["refused", "approved"], ("approved", "refused"), ["refused", "approved"]),
        (["refused", "approved"], ("no", "yes"), ["refused", "approved"]),
        (["refused", "approved"], (1, 2), ["refused", "approved"]),
        (["a", "b", "c"], (0, 1), ["a", "b", "c"]),
        (["a"], (0, 1), ["a"]),
        ({"approve": "granted"}, ("approved", "refused"), "approve"),
        ({1: "granted"}, ("approved", "refused"), 1),
    ],
)
def test_outcomes_that_may_stand_for_another_class_are_rejected(outcomes, classes, value):
    with raises(OptionError, name="outcomes", value=value):
        pp.Wording("it", outcomes).outcome(1, classes)


def test_no_promise_without_proof():
    for e in (
        replace(explanation(debt=3), setting=None),
        replace(explanation(debt=3), margin=np.nan),
        replace(explanation(debt=3), margin=-0.1),
        replace(explanation(debt=3), status="valid"),
    ):
        assert "every model" not in str(e.describe(LOAN))
        assert "It is not proved that this lasts" in str(e.describe(LOAN))
    today = str(explanation(delta=0.0, debt=3).describe(LOAN))
    assert "every model" not in today
    assert "for the current model only" in today


def test_without_setting_names_are_those_of_columns():
    words = replace(explanation(debt=31, job="clerk"), setting=None).describe(LOAN)
    assert "with debt of 31 (today: 38) and job “clerk” (today: “cook”)." in words.sentence


def test_radii_per_layer():
    layers = pp.Network([(np.zeros((2, SCHEMA.width)), None), (np.ones((1, 2)), [1.0])])
    uneven = replace(explanation(debt=3), setting=setting([(0.1, 0.0), (0.2, 0.2)], layers))
    assert "by at most what is set for their layer." in str(uneven.describe(LOAN))
    even = replace(explanation(debt=3), setting=setting(0.1, layers))  # no bias in the first layer
    assert "from the current model by at most 0.1." in str(even.describe(LOAN))
    frozen = replace(explanation(debt=3), setting=setting([(0.1, 0.0), (0.1, 0.0)], layers))
    assert "by at most what is set for their layer." in str(
        frozen.describe(LOAN)
    )  # not every parameter


def test_search_that_ended_early_reports_how_near():
    early = replace(explanation(debt=3), status="feasible", distance=0.2, bound=0.15)
    assert str(early.describe()).endswith(
        "but in the searched region none is more than 25% nearer."
    )
    nearly = replace(early, bound=0.1999)
    assert str(nearly.describe()).endswith(
        "but in the searched region none is more than 1% nearer."
    )
    unknown = replace(early, bound=0.0)
    assert str(unknown.describe()).endswith(
        "from the current model by at most 0.02. A nearer counterfactual may exist."
    )


def test_sparse_answer_reports_that_fewer_changes_may_be_possible():
    known = {"status": "feasible", "distance": 0.2, "bound": np.nan}
    sparse = str(replace(explanation(debt=3, down=500), **known).describe())
    assert "with 2 changes: obligations" in sparse
    assert sparse.endswith(" Fewer changes may be possible.")
    one = str(replace(explanation(debt=3), **known).describe())
    assert "with one change: obligations" in one
    assert "Fewer" not in one


@pytest.mark.parametrize(
    ("plausibility", "said"),
    [
        (0.42, " These values are typical of accepted people (plausibility 42%)."),
        (0.1, " These values are typical of accepted people (plausibility 10%)."),
        (0.0999, " These values are unusual among accepted people (plausibility 9%)."),
        (0.0, " These values are unusual among accepted people (plausibility 0%)."),
    ],
)
def test_sentence_states_plausibility_of_answer(plausibility, said):
    sentence = str(replace(explanation(debt=3), plausibility=plausibility).describe())
    assert sentence.endswith(said)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (
            "no_robust_neighbour",
            "No change was found after which the loan would provably be approved: w.",
        ),
        (
            "infeasible_rules",
            "Within the limits of this person, no change was found after which the loan would "
            "provably be approved: w.",
        ),
        (
            "not_found",
            "No change was found after which the loan would provably be approved: w.",
        ),
        ("bad_input", "This row could not be explained: w."),
        ("solver_error", "This row could not be explained: w."),
    ],
)
def test_no_answer_states_why(status, sentence):
    e = pp.Explanation(status, "w", index=0, target=1, setting=setting())
    assert e.describe(LOAN).sentence == sentence
    assert e.describe(LOAN).claims == ()
    assert len(e.describe(LOAN).table()) == 0


def test_people_who_need_no_change():
    e = replace(explanation(), status="already_valid")
    assert e.describe(LOAN).sentence == (
        "The loan would be approved without any change. This is proved for every model whose "
        "weights and biases each differ from the current model by at most 0.02."
    )
    assert "not proved that this lasts" in replace(e, margin=-1.0).describe(LOAN).sentence


def test_counterfactual_with_refuting_certificate_is_not_promised():
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    proofs = pp.certify(net, [[0.9, 0.9], [0.5, 0.51]], 0.05, certificates=True).certificates
    e = replace(explanation(debt=3), certificate=proofs[0])
    assert "This is proved for every model" in str(e.describe(LOAN))
    assert "It is not proved" in str(replace(e, certificate=proofs[1]).describe(LOAN))


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("refused", "approved"), "The outcome would have been approved with"),
        ((3, 7), "The outcome would have been class 7 with"),
        ((False, True), "The outcome would have been class True with"),
        (("no", " "), "The outcome would have been class   with"),
        ((), "The outcome would have been class 1 with"),
    ],
)
def test_class_without_word_is_named_by_label(classes, said):
    e = explanation(debt=3)
    e = replace(e, setting=replace(e.setting, model=replace(e.setting.model, classes=classes)))
    assert str(e.describe()).startswith(said)
    named = {classes[1] if classes else 1: "approved"}
    said = str(e.describe(pp.Wording("the loan", named)))
    assert said.startswith("The loan would have been approved with")
