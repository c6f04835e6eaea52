"""The checker of verify.html gives the verdicts of checker.py, and the same words for what is proved."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from proplace.certification import certify, checker
from support.tiers import quick, thorough
from two_checkers import (
    NO_NODE,
    NODE,
    Case,
    all_cases,
    demand_cases,
    differences,
    javascript_verdicts,
    python_verdict,
    stated_case,
    stated_changes,
)

pytestmark = pytest.mark.skipif(NODE is None, reason=NO_NODE)


@pytest.mark.parametrize(("seed", "changes"), quick(1, [(0, 6), (0, 25), (1, 25)]))
def test_both_checkers_agree(seed, changes, tmp_path):
    bad, count = differences([*all_cases(seed, changes)], tmp_path)
    assert not bad, bad[0]
    assert count[True] > 50
    assert count[False] > 20 * changes


def test_both_checkers_demand_same(tmp_path):
    """Of true certificates what is proved, the next double above and below it, and other things."""
    cases = [*demand_cases(np.random.default_rng(5))]
    bad, count = differences(cases, tmp_path)
    assert not bad, bad[0]
    assert min(count[True], count[False]) > 150


@pytest.mark.parametrize("number", thorough(12, 60))
def test_both_checkers_redo_same_encodings(number, tmp_path):
    """Statements in original units with their values, words or encodings changed."""
    rng, cases = np.random.default_rng(7), []
    for _ in range(number):
        case = stated_case(rng)
        cases += [case, *stated_changes(case, rng, 60)]
    bad, count = differences(cases, tmp_path)
    assert not bad, bad[0]
    assert min(count[True], count[False]) > 16 * number


LOW, HIGH = [0.2, 0.0, 0.0, 1.0, 0.25], [0.6, 0.43, 0.0, 1.0, 0.25]
NAMED = {"missing": False}
STATEMENT = {
    "subject": "The loan",
    "outcomes": ["refused", "approved"],
    "features": [
        NAMED
        | {"name": "Age", "unit": ["year", "years"], "offset": 0.0, "scale": 100.0, "end": ""}
        | {"today": 40.0, "value": 40.0, "low": 20.0, "high": 60.0},
        NAMED
        | {"name": "Balance", "unit": ["% of the limit"] * 2, "offset": 0.0, "scale": 100.0}
        | {"today": 90.0, "value": 43.0, "low": 0.0, "high": 43.0, "end": "low"},
        NAMED
        | {"name": "Job", "labels": ["cook", "clerk"], "first": 0}
        | {"today": "cook", "value": "clerk"},
        NAMED
        | {"name": "Grade", "labels": ["C", "B"], "numbers": [1.0, 2.0], "offset": 1.0}
        | {"scale": 4.0, "today": "C", "value": "B"},
    ],
}
TAMPERED = {  # by the number of the feature: fields, and the words of the sentence if it is accepted
    "value": (1, {"value": 44.0}, None),
    "low": (0, {"low": 19.0}, None),
    "high": (1, {"high": 44.0}, None),
    "label": (2, {"value": "cook"}, None),
    "order of labels": (2, {"labels": ["clerk", "cook"]}, None),
    "columns": (2, {"first": 1}, None),
    "label without a column": (2, {"labels": ["clerk"], "today": "clerk", "first": 1}, None),
    "level": (3, {"value": "C"}, None),
    "numbers of levels": (3, {"numbers": [1.0, 3.0]}, None),
    "offset": (1, {"offset": 1.0}, None),
    "scale": (0, {"scale": 99.0}, None),
    "kind": (3, {"first": 0}, None),
    "sentence": (1, {"sentence": "The loan: approved."}, None),
    "end": (1, {"end": "high"}, "0% of the limit or more (up to 43% of the limit)"),
    "unit": (1, {"unit": ["dollars"] * 2}, "Balance: 43 dollars or less"),
    "name": (1, {"name": "Debt"}, "Debt: 43% of the limit or less"),
    "today": (1, {"today": 50.0}, "(today: 50% of the limit)"),
    "missing": (0, {"today": 30.0, "missing": True}, "(today: missing, the model uses 30 years)"),
    "name of a label": (2, {"labels": ["cook", "chef"], "value": "chef"}, "Job: chef (today: cook)"),
    "encoding and value": (1, {"value": 53.0, "low": 10.0, "high": 53.0, "offset": 10.0}, "53%"),
}  # fmt: skip


def test_tampered_statement_is_rejected_or_another_file(tmp_path):
    """No proof covers words and the choice of units, so the digest in the letter must."""
    net = pp.Network([([[1.0, -1.0, 1.0, 1.0, 1.0]], [0.0])])
    x = [0.4, 0.43, 0.0, 1.0, 0.25]
    found = certify(net, [x], 0.01, 1, box=([LOW], [HIGH]), certificates=True)
    text = pp.certification.CertificateBundle.of(found.certificates, STATEMENT).text
    own = Case("own", text.encode(), (net,))
    words = "The loan: approved with Balance: 43% of the limit or less (down to 0% of the limit)"
    cases, expected = [own], [words]
    for kind, (number, fields, shown) in TAMPERED.items():
        facts = json.loads(text)
        facts["statement"]["features"][number] |= fields
        cases.append(own.changed(kind, json.dumps(facts)))
        expected.append(shown)
    digest = checker.Demand(digest=hashlib.sha256(text.encode()).hexdigest())
    for both in zip(map(python_verdict, cases), javascript_verdicts(cases, tmp_path), strict=True):
        shown = expected.pop(0)
        for good, line in both:
            assert good == (shown is not None), (both, shown)
            assert not good or shown in line, (line, shown)
        assert both[0] == both[1] or shown is None
    demanded = [replace(case, demand=digest) for case in cases]
    for verdicts in (map(python_verdict, demanded), javascript_verdicts(demanded, tmp_path)):
        assert [good for good, _ in verdicts] == [True] + [False] * len(TAMPERED)
