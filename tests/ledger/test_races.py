"""Two processes on one ledger, step by step and with kills: a sample of ``python tests/races.py``."""

from __future__ import annotations

import pytest

import proplace as pp
import races
from proplace.ledger import ledger as ledgers
from support.lenders import LATER, NET, answers

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_ledger_keeps_its_invariants_under_interleavings_and_kills(place, seed):
    orders, counts = races.race(place, 30, seed)
    assert len(orders) > 20
    assert {name for name, outcome in counts if outcome == "done"} >= {"issue", "redeem", "erase"}
    assert any(outcome == "killed" for _, outcome in counts)


def test_checker_detects_promise_of_another_model(ledger, monkeypatch):
    monkeypatch.setattr(ledgers, "check_current", lambda *_: None)
    ledger.issue(answers(1), ["person-0"])
    races.check(ledger.name, {})
    ledger.set_current_model(LATER)
    ledger.issue(answers(1, 1), ["person-1"])
    with pytest.raises(AssertionError, match="another model"):
        races.check(ledger.name, {})


def test_checker_detects_lost_promise(ledger, result):
    numbers = ledger.issue(result, ["a", "b", "c"]).ids
    races.check(ledger.name, dict(zip(numbers, "abc", strict=True)))
    with pytest.raises(AssertionError, match="lost"):
        races.check(ledger.name, {numbers[-1] + 1: "d"})


def test_checker_detects_bytes_of_erased_people(ledger, result, tmp_path):
    ledger.issue(result, ["a", "b", "carla"])
    ledger.set_current_model(pp.Model.of(NET), note="for carla")
    ledger.erase("carla")
    with pytest.raises(AssertionError, match="carla is in"):
        races.check_bytes(tmp_path / "promises.db", ["carla"])
