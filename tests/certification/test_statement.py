"""Statements in original units: the checker accepts what the checked box covers, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import proplace as pp
from proplace.certification import CertificateBundle, checker, read_proof
from proplace.certification import certificate as documents
from support.tiers import thorough
from two_checkers import accepted, python_verdict, stated_case, stated_changes


def rounded_code(v, offset, scale):
    """The code of a number, each operation rounded once from its exact result."""
    difference = float(Fraction(v) - Fraction(offset))
    return float(Fraction(difference) / Fraction(scale))


def next_with_another_code(feature, name, beyond):
    """The nearest double, in one direction, that is encoded otherwise."""
    here, scaling = feature[name], (feature["offset"], feature["scale"])
    code, sign = rounded_code(here, *scaling), float(np.sign(beyond))
    near, step = here, 5e-324
    while rounded_code(here + sign * step, *scaling) == code:
        step *= 2.0
    far = here + sign * step
    while (middle := near + (far - near) / 2.0) not in (near, far):
        near, far = (middle, far) if rounded_code(middle, *scaling) == code else (near, middle)
    return far


def covered(facts):
    """Test by exact fractions if the certificate of a bundle covers its statement."""
    (proof,), at = facts["certificates"], 0
    for f in facts["statement"]["features"]:
        if "unit" in f:
            codes = [rounded_code(f[n], f["offset"], f["scale"]) for n in ("low", "value", "high")]
            rows = [codes]
        elif "numbers" in f:
            number = f["numbers"][f["labels"].index(f["value"])]
            rows = [[rounded_code(number, f["offset"], f["scale"])] * 3]
        else:
            rows = [[float(label == f["value"])] * 3 for label in f["labels"][f["first"] :]]
        for low, code, high in rows:
            if at == len(proof["input"]) or code != proof["input"][at]:
                return False
            if not proof["low"][at] <= low <= high <= proof["high"][at]:
                return False
            at += 1
    return at == len(proof["input"])


@pytest.mark.parametrize("number", thorough(25, 100))
def test_changed_statement_is_accepted_only_if_box_covers_it(number):
    rng, count = np.random.default_rng(3), {True: 0, False: 0}
    for _ in range(number):
        case = stated_case(rng)
        assert accepted(case)
        for changed in stated_changes(case, rng, 60):
            good = accepted(changed)
            count[good] += 1
            if good:
                assert covered(json.loads(changed.text)), changed.kind
    assert min(count.values()) > 15 * number


def test_statement_of_next_double_beyond_box_is_rejected():
    rng, tried = np.random.default_rng(4), 0
    for _ in range(100):
        case = stated_case(rng)
        facts = json.loads(case.text)
        for n, feature in enumerate(facts["statement"]["features"]):
            for name, beyond in (("low", -np.inf), ("high", np.inf)) if "unit" in feature else ():
                changed = json.loads(case.text)
                value = next_with_another_code(feature, name, beyond)
                changed["statement"]["features"][n][name] = value
                assert not accepted(case.changed("beyond", json.dumps(changed)))
                tried += 1
    assert tried > 100


def test_words_that_no_proof_covers_are_bound_by_digest():
    """A letter names the digest of its certificate: under it, any change is rejected."""
    rng, words = np.random.default_rng(5), 0
    for _ in range(30):
        case = stated_case(rng)
        demand = checker.Demand(digest=read_proof(case.text).digest)
        own = documents.parameters(case.networks[0])
        assert checker.check_all(case.text, [own], [], demand).accepted
        assert checker.check_all(case.text + b"\n", [own], [], demand).accepted
        for changed in stated_changes(case, rng, 30):
            if changed.text == case.text or json.loads(changed.text) == json.loads(case.text):
                continue
            words += accepted(changed)
            assert not checker.check_all(changed.text, [own], [], demand).accepted
    assert words > 100


def test_sentence_names_changes_ranges_and_rest():
    net = pp.Network([([[1.0, -1.0, 1.0, 1.0]], [0.0])])
    x, low, high = [0.5, 0.43, 0.0, 1.0], [0.4, 0.0, 0.0, 1.0], [0.5, 0.43, 0.0, 1.0]
    report = pp.certification.certify(net, [x], 0.01, 1, box=([low], [high]), certificates=True)
    percent = {"unit": ["% of the limit"] * 2, "offset": 0.0, "scale": 100.0, "missing": False}
    percent["end"] = "low"
    moved = {"today": "cook", "value": "clerk", "missing": False}
    years = {"unit": ["year", "years"], "offset": 0.0, "scale": 80.0, "missing": True}
    statement = {
        "subject": "The loan",
        "outcomes": ["refused", "approved"],
        "features": [
            years
            | {"name": "Age", "today": 40.0, "value": 40.0, "low": 32.0, "high": 40.0, "end": ""},
            percent | {"name": "Balance", "today": 90.0, "value": 43.0, "low": 0.0, "high": 43.0},
            {"name": "Job", "labels": ["cook", "clerk"], "first": 0} | moved,
        ],
    }
    bundle = CertificateBundle.of(report.certificates, statement)
    verdict = bundle.check([(net, pp.Shifts.of(net, 0.01))])
    assert verdict.accepted
    assert verdict.sentence == (
        "The loan: approved with Balance: 43% of the limit or less (down to 0% of the limit) "
        "(today: 90% of the limit); Job: clerk (today: cook). Everything else must stay as stated: "
        "Age: 32 to 40 years."
    )
    assert read_proof(bundle.text.encode()) == bundle


def test_bundle_of_first_format_is_read_and_states_nothing(tmp_path):
    case = stated_case(np.random.default_rng(0))
    bundle = read_proof(case.text)
    plain = CertificateBundle.of(bundle.certificates)
    assert plain.facts["format"] == "proplace-bundle-1"
    plain.save(tmp_path / "old.json")
    assert CertificateBundle.load(tmp_path / "old.json") == plain
    good, line = python_verdict(case.changed("plain", plain.text))
    assert good
    assert line.startswith("network ")


@pytest.mark.parametrize(
    "fields", [{"more": 1}, {"statement": None}, {"format": "proplace-bundle-1"}]
)
def test_bundle_with_other_fields_is_rejected(fields):
    case = stated_case(np.random.default_rng(1))
    facts = json.loads(case.text) | fields
    assert not accepted(case.changed("fields", json.dumps(facts)))


def test_checker_alone_prints_sentence_and_demands_digest(tmp_path):
    case = stated_case(np.random.default_rng(2))
    (tmp_path / "proof.json").write_bytes(case.text + b"\n")
    case.networks[0].save(tmp_path / "net.npz")
    words = [sys.executable, checker.__file__, tmp_path / "proof.json", tmp_path / "net.npz"]
    sentence = checker.check_all(case.text, [documents.parameters(case.networks[0])], []).sentence
    for digest, good in ((read_proof(case.text).digest, True), ("0" * 64, False)):
        done = subprocess.run(
            [*words, "--digest", digest], capture_output=True, text=True, check=False
        )
        assert done.returncode == (0 if good else 1)
        assert done.stdout.startswith(
            f"{sentence}\naccepted: " if good else "rejected: another file"
        )
        assert (
            done.stdout.rstrip().endswith(f"digest with the one in your letter: {digest}") == good
        )
