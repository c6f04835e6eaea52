"""A certificate is accepted only for a margin that gives the class: one table for every checker."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest

import proplace as pp
from commands import run
from proplace.certification import FixedPredictionSearch, Space, digest
from proplace.core.errors import OptionError
from support.errors import raises
from two_checkers import NO_NODE, NODE, Case, javascript_verdicts, python_verdict

NET = pp.Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
ACCEPTED, REFUSED = [1.0, 0.0], [0.0, 1.0]
CLAIM = {"format": "proplace-certificate-1", "network": digest(NET), "target": 1}
ROBUST = {"tighten": False, "lower": [], "upper": [], "trees": [[{}]], "verdict": "robust"}
SAME = [{"W": layer.W.tolist(), "b": layer.b.tolist()} for layer in NET.layers]
BROKEN = {"shifted": SAME, "verdict": "not robust"}
DELTA, BOX = {"delta": [[0.0, 0.0]] * 2}, pp.Shifts(NET, NET)

HUGE = ("1e308", "1.7976931348623157e308", "1e309", str(2**1024))
ODD = ("NaN", "Infinity", "-Infinity", '"0"', "null", "true", "[]")


def claims():
    """Accepted or not, what is claimed, the input, and its margin as it stands in the file.

    Without any shift the margin is 1.25 at the accepted input and -1.75 at the refused one.
    """
    for margin in ("0", "-0.0", "0.0", "5e-324", "1.25"):
        yield True, ROBUST, ACCEPTED, margin
    for margin in ("-5e-324", "-0.5", "-1", "-1000", "-1e308", "1.2500000000000003", *HUGE, *ODD):
        yield False, ROBUST, ACCEPTED, margin
    for margin in ("-1000", "-1.75", "-5e-324", "-1e308", "0", "-0.0", "1.25", *HUGE, *ODD):
        yield False, ROBUST, REFUSED, margin
    for margin in ("0", "-0.0", "-1.7499999999999998", "5e-324", "1000", *HUGE[:2]):
        yield True, BROKEN, REFUSED, margin
    for margin in ("-1.75", "-1000", "-1e308", *HUGE[2:], *ODD):
        yield False, BROKEN, REFUSED, margin


def points():
    for good, proof, x, margin in claims():
        for named in (False, True):
            kind = {"format": "proplace-certificate-2", "shifts": BOX.digest} if named else DELTA
            facts = CLAIM | proof | {"input": x, "margin": "here"} | kind
            text = json.dumps(facts).replace('"here"', margin)
            boxes = (BOX,) if named else ()
            yield good, Case(f"{proof['verdict']} {margin}", text.encode(), (NET,), boxes)


def boxes_of_inputs():
    """The table at a box of one point. A network without hidden layers needs no multipliers there."""
    net = pp.Network([([[2.0, -1.0]], [-0.75])])
    for good, proof, x, margin in claims():
        if proof is ROBUST:
            facts = CLAIM | proof | {"delta": [[0.0, 0.0]], "network": digest(net), "input": x}
            facts |= {"format": "proplace-certificate-3", "low": x, "high": x, "margin": "here"}
            facts |= {"lower": [[1.0] * 4], "upper": [[1.0] * 4]}
            text = json.dumps(facts).replace('"here"', margin)
            yield good, Case(f"box {margin}", text.encode(), (net,))


def bundles():
    for good, case in points():
        if b'"not robust"' not in case.text:
            text = b'{"format":"proplace-bundle-1","certificates":[' + case.text + b"]}"
            yield good, dataclasses.replace(case, kind=f"bundle {case.kind}", text=text)


def fixed_predictions():
    """Leaves of a fixed prediction need a margin above 0: a tie may count as acceptance."""
    net = pp.Network([([[1.0, -1.0]], [-0.5])])
    space = Space.of(np.array([0.0, 0.5]), np.array([0.75, 0.5]))
    refusal = FixedPredictionSearch(net, pp.Shifts.of(net, 0.0), target=1)
    facts = refusal.certificate(refusal.prove([space])).facts
    leaf = facts["trees"][0][0]["certificate"]
    for good, margin in (
        (True, "0.25"), (True, "5e-324"), (False, "0.25000000000000006"), (False, "0"),
        (False, "-0.0"), (False, "-5e-324"), (False, "-1000"), (False, "-1e308"),
        *((False, margin) for margin in (*HUGE, *ODD)),
    ):  # fmt: skip
        leaf["margin"] = "here"
        text = json.dumps(facts).replace('"here"', margin)
        yield good, Case(f"fixed {margin}", text.encode(), (net,))


TABLE = [*points(), *boxes_of_inputs(), *bundles(), *fixed_predictions()]


def test_python_checker_accepts_by_margin():
    assert [(case.kind, python_verdict(case)[0]) for _, case in TABLE] == [
        (case.kind, good) for good, case in TABLE
    ]


@pytest.mark.skipif(NODE is None, reason=NO_NODE)
def test_page_checker_accepts_by_margin_in_same_words(tmp_path):
    cases = [case for _, case in TABLE]
    for (good, case), (theirs, reason) in zip(
        TABLE, javascript_verdicts(cases, tmp_path), strict=True
    ):
        assert theirs == good, (case.kind, reason)
        if good:
            assert reason == python_verdict(case)[1], case.kind


def test_documents_accept_by_margin():
    for good, case in TABLE:
        (net,), shifts = case.networks, (case.boxes or (None,))[0]
        try:
            facts = json.loads(case.text)
            if case.kind.startswith("bundle"):
                parts = map(pp.Certificate.of, facts["certificates"])
                found = pp.certification.CertificateBundle.of(parts).check(
                    [(net, shifts or pp.Shifts.of(net, 0.0))]
                )
            elif case.kind.startswith("fixed"):
                found = pp.certification.FixedPrediction(case.text.decode()).check(net, shifts)
            else:
                found = pp.Certificate(case.text.decode()).check(net, shifts)
        except ValueError:  # canonical JSON holds neither NaN nor an infinity
            assert not good
            continue
        assert found.accepted == good, (case.kind, found.reason)


def test_command_accepts_by_margin(tmp_path):
    """Check every file of a folder in one call, and in one call for each network and shift set."""
    groups = {}
    for n, (good, case) in enumerate(TABLE):
        key = (id(case.networks[0]), len(case.boxes))
        groups.setdefault(key, []).append((f"{n:04}.json", good, case))
    for n, cases in enumerate(groups.values()):
        folder = tmp_path / str(n)
        (folder / "proofs").mkdir(parents=True)
        case = cases[0][2]
        case.networks[0].save(folder / "net.npz")
        words = ["check", folder / "proofs", "--model", folder / "net.npz", "--json"]
        if case.boxes:
            case.boxes[0].save(folder / "box.npz")
            words += ["--delta", folder / "box.npz"]
        for name, _, one in cases:
            (folder / "proofs" / name).write_bytes(one.text)
        done = run(*words)
        assert done.returncode == 1
        entries = done.json["certificates"]
        assert [entry["accepted"] for entry in entries if not case.boxes] == [
            good for _, good, _ in cases if not case.boxes
        ]
        for entry, (_, good, one) in zip(entries, cases, strict=True):
            refuted = '"not robust"' in one.text.decode()  # demands what only robust rows meet
            assert entry["accepted"] == (good and not (case.boxes and refuted)), one.kind


def test_no_accepted_statement_gives_class_that_network_does_not():
    """Every accepted statement "gives class" is compared with the network itself."""
    said = 0
    for _, case in TABLE:
        accepted, reason = python_verdict(case)
        match = re.search(r"every network .* gives class (\d)", reason)
        if accepted and match:
            facts = json.loads(case.text)
            facts = facts.get("certificates", [facts])[0]
            assert case.networks[0].predict(facts["input"])[0] == int(match[1]), case.kind
            said += 1
    assert said >= 20


@pytest.mark.parametrize("margin", [-5e-324, -0.5, -1e308])
def test_certify_writes_no_certificate_of_negative_margin(margin):
    assert pp.certify(NET, [ACCEPTED], 0.01, margin=margin).robust.all()
    with raises(OptionError, name="margin", value=margin):
        pp.certify(NET, [ACCEPTED], 0.01, margin=margin, certificates=True)


def test_certify_writes_certificates_of_zero_margin():
    report = pp.certify(NET, [ACCEPTED, REFUSED], 0.01, margin=-0.0, certificates=True)
    assert [one.check(NET).accepted for one in report.certificates] == [True, True]
    assert math.copysign(1.0, report.certificates[0].facts["margin"]) == -1.0
