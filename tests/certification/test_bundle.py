"""Several certificates about one input, for several networks and boxes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import proplace as pp
from changed_proofs import mutants
from oracles import random_box
from proplace.certification import certificate as documents
from proplace.certification import checker
from proplace.core.errors import CertificateError
from proplace.core.transforms import Fold
from support.errors import raises
from support.problems import dense, raised


def network(rng, *widths, **front):
    return raised(dense(rng, [2, *widths, 1], **front), 1, 8.0)


X = np.array([0.75, -0.5])


def certificate(net, shifts, x=X, target=1, margin=None):
    if margin is None:
        margin = float(pp.certify(net, x, shifts, target, exact_margin=True).lower[0]) - 0.1
    return pp.certify(net, x, shifts, target, margin=margin, certificates=True).certificates[0]


@pytest.fixture(scope="module")
def sets():
    """Other shapes, scalers, radii and boxes: two boxes of one network, one box of two networks."""
    rng = np.random.default_rng(0)
    a, b, c = network(rng, 3), network(rng, 2, 3), network(rng, scale=[2.0, 3.0], shift=[0.0, 1.0])
    twin = a.with_layers([(layer.W * 1.5, layer.b) for layer in a.layers])
    box = random_box(rng, a)
    return [
        (a, box),
        (a, pp.Shifts.of(a, 0.0)),
        (twin, box),
        (b, pp.Shifts.of(b, [(0.1, 0.0), (0.0, 0.2), (0.1, 0.1)])),
        (c, random_box(rng, c)),
    ]


@pytest.fixture(scope="module")
def bundle(sets):
    return pp.certification.CertificateBundle.of(certificate(net, shifts) for net, shifts in sets)


def test_bundle_holds_for_all_of_its_sets(sets, bundle):
    verdict = bundle.check(sets)
    assert verdict.accepted, verdict.reason
    assert len(verdict.parts) == len(sets)
    for (net, shifts), part in zip(sets, verdict.parts, strict=True):
        assert part.accepted
        assert part.statement.network == documents.digest(net)
        assert part.statement.shifts == (shifts.digest if shifts.radii is None else None)
        assert f"network {documents.digest(net)}: {part.reason}" in verdict.reason


def test_sets_without_proof_and_proofs_without_set_are_rejected(sets, bundle):
    for n in range(len(sets)):
        rest = [one for k, one in enumerate(sets) if k != n]
        fewer = pp.certification.CertificateBundle.of(
            c for k, c in enumerate(bundle.certificates) if k != n
        )
        assert fewer.check(rest).accepted
        assert not fewer.check(sets).accepted
        # The remaining sets may still cover the sets of a certificate.
        spoken = documents.digest(sets[n][0]) in {documents.digest(net) for net, _ in rest} and (
            sets[n][1].radii is not None or sets[n][1].digest in {s.digest for _, s in rest}
        )
        assert bundle.check(rest).accepted == spoken


def test_wider_set_than_was_proved_is_not_covered(sets, bundle):
    for n, (net, shifts) in enumerate(sets):
        wide = pp.Shifts.of(net, 0.5) if shifts.is_single_network else shifts.scaled(1.1)
        wider = [(net, wide) if k == n else one for k, one in enumerate(sets)]
        assert not bundle.check(wider).accepted
    narrow = [(net, s if s.radii is None else s.scaled(0.5)) for net, s in sets]
    assert bundle.check(narrow).accepted
    swapped = [(net, sets[1 - k][1] if k < 2 else s) for k, (net, s) in enumerate(sets)]
    assert bundle.check(swapped).accepted  # the same sets in another order


def test_other_inputs_other_classes_and_refutations_do_not_belong_together(sets):
    (a, box), (b, ball) = sets[0], sets[3]
    good = certificate(a, box)
    pairs = [(a, box), (b, ball)]
    assert pp.certification.CertificateBundle.of([good, certificate(b, ball)]).check(pairs).accepted
    mirrored = raised(b, 0, 16.0)
    for other, net, why in (
        (certificate(b, ball, x=X + np.array([0.0, 2.0**-50])), b, "different inputs"),
        (
            certificate(mirrored, pp.Shifts.of(mirrored, ball.radii), target=0),
            mirrored,
            "different inputs or classes",
        ),
        (certificate(b, ball, margin=1e6), b, "must have the verdict robust"),
    ):
        verdict = pp.certification.CertificateBundle.of([good, other]).check(
            [(a, box), (net, ball)]
        )
        assert not verdict.accepted
        assert why in verdict.reason
        assert verdict.statement is None


def test_bundle_is_value_and_file(bundle, sets, tmp_path):
    bundle.save(tmp_path / "bundle.json")
    again = pp.certification.CertificateBundle.load(tmp_path / "bundle.json")
    assert again == bundle
    assert again.digest == bundle.digest
    facts = json.loads(bundle.to_json())
    assert facts["format"] == "proplace-bundle-1"
    assert facts["certificates"] == [c.facts for c in bundle.certificates]
    assert bundle.text == json.dumps(facts, sort_keys=True, separators=(",", ":"))
    (tmp_path / "spaced.json").write_text(json.dumps(facts, indent=3))
    assert pp.certification.CertificateBundle.load(tmp_path / "spaced.json").digest == bundle.digest
    for name, text in (
        ("list", "[]"), ("empty", '{"format":"proplace-bundle-1","certificates":[]}'),
        ("single", bundle.certificates[0].text), ("text", "bundle"),
        ("numbers", '{"format":"proplace-bundle-1","certificates":[1]}'),
        ("more", '{"format":"proplace-bundle-1","certificates":[{}],"more":1}'),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        with raises(CertificateError, name=name):
            pp.certification.CertificateBundle.load(tmp_path / name)
    with raises(CertificateError, name="missing.json"):
        pp.certification.CertificateBundle.load(tmp_path / "missing.json")
    with raises(
        CertificateError, name="bundle.json", match="pp.certification.CertificateBundle.load"
    ):
        pp.Certificate.load(tmp_path / "bundle.json")
    for nothing in ([], [None]):
        with raises(CertificateError, name="certificates"):
            pp.certification.CertificateBundle.of(nothing)
    with raises(CertificateError, name="networks"):
        bundle.check([])


def given(sets):
    boxes = {box.digest: box for _, box in sets if box.radii is None}
    return (
        [documents.parameters(net) for net, _ in sets],
        [documents.parameters_of_shifts(box) for box in boxes.values()],
    )


def test_changed_bundle_is_rejected_or_states_same(sets):
    """Each certificate in it is still checked, and an accepted one is about the same sets."""
    pairs = [sets[0], sets[4]]
    facts = json.loads(
        pp.certification.CertificateBundle.of(certificate(*pair) for pair in pairs).text
    )
    tried = 0
    for path, mutant in mutants(facts):
        tried += 1
        verdict = checker.check_all(json.dumps(mutant), *given(pairs))
        if verdict.accepted:
            assert path[0] == "certificates"
            named = {(p.statement.network, p.statement.shifts) for p in verdict.parts}
            assert named == {(documents.digest(net), box.digest) for net, box in pairs}
            for part, one in zip(verdict.parts, mutant["certificates"], strict=True):
                assert part.statement.input == verdict.parts[0].statement.input
                net, box = next(p for p in pairs if p[1].digest == one["shifts"])
                assert pp.Certificate.of(one).check(net, box).accepted
    assert tried > 100


def test_bundle_is_limited_as_whole(sets, bundle, monkeypatch):
    """The same certificate a thousand times takes a thousand times as long."""
    pair = sets[0]
    one = certificate(*pair)
    work = []
    check = checker._check

    def watched(*arguments):
        found = check(*arguments)
        work.append(found[1])
        return found

    monkeypatch.setattr(checker, "_check", watched)
    many = pp.certification.CertificateBundle.of([one] * 20)
    assert many.check([pair]).accepted
    assert len(set(work)) == 1
    monkeypatch.setattr(checker, "MAX_WORK", work[0] * 6)
    verdict = many.check([pair])
    assert not verdict.accepted
    assert "checking this would take" in verdict.reason
    assert len(verdict.parts) == 12  # one network and one box were given


def test_radii_of_certificate_are_about_folded_weights():
    """A gain of 10: trained weights within 0.3 are folded weights within 3."""
    layers = [(10.0 * np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-5.0])]
    gain = Fold.none(np.eye(2), np.zeros(2)).scaled(10.0 * np.ones(2))
    net, plain = pp.Network(layers, folds=[gain, None]), pp.Network(layers)
    x, shifts = np.array([0.5, 0.5]), pp.Shifts.of(net, 0.3)
    assert not pp.certify(net, x, 0.3).robust[0]
    folded = pp.certify(plain, x, 0.3, certificates=True).certificates[0]
    assert folded.verdict == "robust"
    assert folded.check(net).accepted
    assert not folded.check(net, shifts).accepted
    assert not pp.certification.CertificateBundle.of([folded]).check([(net, shifts)]).accepted
    small = pp.Shifts.of(net, 0.029)  # folded weights within 0.29
    assert pp.certification.CertificateBundle.of([folded]).check([(net, small)]).accepted
