"""One loop over the members of a guarantee says what the tests of each member say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from proplace.certification import Budget, prove
from proplace.core.guarantee import Guarantee, Member
from support.problems import dense, raised


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(1).normal(size=(60, 3))


@pytest.fixture(scope="module")
def guarantee(rows):
    """Three members that disagree about some rows; the first is the widest network."""
    rng = np.random.default_rng(3)
    nets = [raised(dense(rng, [3, width, 1]), 1, 1.0) for width in (6, 4, 3)]
    sets = [pp.Shifts.of(net, delta) for net, delta in zip(nets, (0.02, 0.0, 0.05), strict=True)]
    return Guarantee(
        tuple(
            Member(net, shifts, f"model {n}", 0.01)
            for n, (net, shifts) in enumerate(zip(nets, sets, strict=True))
        )
    )


def by_member(guarantee, rows, **options):
    """The test of every row for every member."""
    return [
        pp.certify(member.network, rows, member.shifts, margin=member.margin, **options)
        for member in guarantee.members
    ]


def test_row_is_robust_if_every_member_accepts_it(guarantee, rows):
    found, each = prove(guarantee, rows, 1), by_member(guarantee, rows)
    robust = np.array([result.robust for result in each])
    np.testing.assert_array_equal(found.robust, robust.all(axis=0))
    first = np.where(robust.all(axis=0), len(robust), robust.argmin(axis=0))
    np.testing.assert_array_equal(found.failed, first)
    assert set(first.tolist()) == {0, 1, 2, 3}
    for i, failed in enumerate(first.tolist()):
        lower = min(float(result.lower[i]) for result in each[: failed + 1])
        assert found.lower[i] == pytest.approx(lower, abs=1e-12)


def test_proof_covers_the_guarantee_or_the_member_that_fails(guarantee, rows):
    found = prove(guarantee, rows, 1)
    for i in range(len(rows)):
        proof = found.proof(i)
        if found.robust[i]:
            assert proof.check(guarantee).accepted
        else:
            member = guarantee.members[found.failed[i]]
            verdict = proof.check(member.network, member.shifts)
            assert verdict.accepted, verdict.reason
            assert verdict.statement.verdict == "not robust"


def test_members_in_another_order_give_the_same_verdict(guarantee, rows):
    cheap = guarantee.cheapest_first()
    assert [member.name for member in cheap.members] == ["model 1", "model 2", "model 0"]
    one, two = (prove(each, rows, 1, certificates=False) for each in (guarantee, cheap))
    np.testing.assert_array_equal(one.robust, two.robust)


def test_slack_is_demanded_on_top_of_every_margin(guarantee, rows):
    asked = guarantee.with_slack(0.1)
    assert [member.margin for member in asked.members] == pytest.approx([0.11] * 3)
    found = prove(asked, rows, 1, certificates=False)
    robust = np.all([result.robust for result in by_member(asked, rows)], axis=0)
    np.testing.assert_array_equal(found.robust, robust)
    assert found.robust.sum() < prove(guarantee, rows, 1).robust.sum()


def test_tolerance_is_the_box_unless_one_is_given(guarantee, rows):
    t = np.array([[0.1, 0.0, 0.05], [0.0, 0.2, 0.05]])
    wide = Guarantee(tuple(replace(member, tolerance=t) for member in guarantee.members))
    found = prove(wide, rows, 1, certificates=False)
    same = prove(guarantee, rows, 1, (rows - t[0], rows + t[1]), certificates=False)
    np.testing.assert_array_equal(found.robust, same.robust)
    exact = prove(wide, rows, 1, (rows, rows), certificates=False)
    np.testing.assert_array_equal(exact.robust, prove(guarantee, rows, 1).robust)
    assert found.robust.sum() < exact.robust.sum()


def test_row_that_no_bound_decides_is_undecided(guarantee, rows):
    found = prove(guarantee, rows, 1, budget=Budget(0, 0), certificates=False)
    sure = prove(guarantee, rows, 1, certificates=False)
    assert not (found.undecided & found.robust).any()
    assert (found.robust <= sure.robust).all()
    assert (found.robust | found.undecided >= sure.robust).all()


def test_no_rows_need_no_member(guarantee):
    found = prove(guarantee, np.zeros((0, 3)), 1)
    assert len(found.robust) == 0
    assert not found.tested
