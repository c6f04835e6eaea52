"""A certificate is checked against a whole guarantee."""

import dataclasses

import numpy as np
import pytest

import proplace as pp
from proplace.certification import certify, prove
from proplace.core.guarantee import Guarantee, Member

NET = pp.Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
OTHER = pp.Network([([[1.0, -1.0], [0.5, 1.5]], [0.0, -1.0]), ([[1.0, -2.0]], [0.5])])
ROW = np.array([[1.0, 0.0]])
ONE = Member(NET, pp.Shifts.of(NET, 0.05))
TWO = Member(OTHER, pp.Shifts.of(OTHER, 0.02))


def proof(*members):
    return prove(Guarantee(members), ROW, 1).proof(0)


@pytest.mark.parametrize("members", [(ONE,), (ONE, TWO)])
def test_proof_of_guarantee_is_accepted(members):
    verdict = proof(*members).check(Guarantee(members))
    assert verdict.accepted, verdict.reason


def test_certificate_of_one_member_is_not_one_of_both():
    verdict = proof(ONE).check(Guarantee((ONE, TWO)))
    assert not verdict.accepted
    assert "another network" in verdict.reason


def test_certificate_of_smaller_delta_is_rejected():
    wider = dataclasses.replace(ONE, shifts=pp.Shifts.of(NET, 0.06))
    verdict = proof(ONE).check(Guarantee((wider,)))
    assert not verdict.accepted
    assert "cover the shift set" in verdict.reason


def test_certificate_that_row_is_not_robust_is_rejected():
    (found,) = certify(NET, [[0.0, 1.0]], ONE.shifts, certificates=True).certificates
    assert found.check(NET).accepted
    verdict = found.check(Guarantee((ONE,)))
    assert not verdict.accepted
    assert "does not prove that the input is robust" in verdict.reason


@pytest.mark.parametrize("members", [(ONE,), (ONE, TWO)])
def test_certificate_of_point_alone_bears_no_tolerance(members):
    tolerance = np.full((2, 2), 0.01)
    wide = [dataclasses.replace(one, tolerance=tolerance) for one in members]
    assert not proof(*members).check(Guarantee(tuple(wide))).accepted
    verdict = proof(*wide).check(Guarantee(tuple(wide)))
    assert verdict.accepted, verdict.reason
    assert proof(*wide).check(Guarantee(members)).accepted


def test_proof_of_fixed_prediction_is_about_one_member():
    net = pp.Network([([[1.0, -1.0]], [-0.5])])
    refusing = Member(net, pp.Shifts.of(net, 0.05))
    search = pp.certification.FixedPredictionSearch(net, refusing.shifts, target=1)
    space = pp.certification.Space.of(np.array([0.0, 0.5]), np.array([0.75, 0.5]))
    found = search.certificate(search.prove([space]))
    assert found.check(Guarantee((ONE, refusing)), spaces=[space]).accepted
    assert not found.check(Guarantee((ONE, TWO)), spaces=[space]).accepted
