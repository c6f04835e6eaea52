"""``Explanation.to_dict``: one JSON document that claims no more than is proved."""

from __future__ import annotations

import json

import pytest

import proplace as pp
from support.lenders import INCOME_DEBT, NET, TRAINING, answers, refused

WORDING = pp.Wording("the loan", ["refused", "approved"])


@pytest.mark.parametrize("options", [{}, {"prefer": "sparse"}, {"count": 2}], ids=str)
def test_document_is_json_and_repeats_explanation(options):
    explainer = pp.Proplace(NET, 0.01, schema=INCOME_DEBT, k=3).fit(TRAINING)
    for e in explainer.explain(refused(3), **options):
        found = e.to_dict(WORDING)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert (found["status"], found["rank"], found["target"]) == (e.status, e.rank, 1)
        assert found["sentence"] == e.describe(WORDING).sentence
        assert found["outcome"] == "approved"
        assert found["certificate"] == e.certificate.digest
        for claim, known in zip(found["claims"], e.claims, strict=True):
            assert (claim["name"], claim["goal"], claim["low"]) == (
                known.name,
                known.goal,
                known.low,
            )
            assert (claim["from"], claim["to"]) == (known.before, known.after)


def test_document_is_guaranteed_only_for_more_than_one_network():
    (sure,), (alone,) = answers(1), answers(1, delta=0.0)
    assert sure.to_dict()["guaranteed"]
    assert alone.to_dict()["certified"]
    assert not alone.to_dict()["guaranteed"]


def test_document_without_counterfactual_has_its_reason_and_no_figures():
    (none,) = answers(1, delta=0.5)
    found = none.to_dict()
    assert not found["found"]
    assert found["reason"] == none.reason
    assert (found["claims"], found["distance"], found["guaranteed"]) == ([], None, False)
