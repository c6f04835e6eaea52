"""Pages of the table of promises: read by the database, the latest first."""

from __future__ import annotations

import datetime
import time

import numpy as np
import pytest

import proplace as pp
from support.lenders import INCOME_DEBT, NET, STRICT, promise_rows, refused

PEOPLE = ["anna", "Bert", "carl%a"]


@pytest.fixture
def ledger(place, result):
    with pp.Ledger(place) as found:
        found.issue(result, PEOPLE, expires="2999-12-31")
        yield found


def pages(ledger, size, **options):
    """All pages, one after the other."""
    found, before = [], None
    while len(page := ledger.page(size, before=before, **options)):
        found.append(page.index.tolist())
        before = page.index[-1]
    return found


def test_pages_hold_every_promise_once_and_latest_first(ledger):
    numbers = ledger.promises().index.tolist()
    assert pages(ledger, 2) == [numbers[:0:-1], numbers[:1]]
    assert ledger.page().to_dict("index") == ledger.promises()[::-1].to_dict("index")


@pytest.mark.parametrize(
    ("text", "people"),
    [("A", ["carl%a", "anna"]), ("bert", ["Bert"]), ("%", ["carl%a"]), ("_", [])],
)
def test_page_finds_people_by_part_of_their_id(ledger, text, people):
    assert ledger.page(person=text)["person"].tolist() == people


def test_page_of_one_state_is_full(ledger, result):
    first, second, third = ledger.promises().index.tolist()
    ledger.withdraw(first, "a mistake")
    assert pages(ledger, 1, state="open") == [[third], [second]]
    assert pages(ledger, 1, state="withdrawn") == [[first]]
    assert pages(ledger, 1, state="expired") == pages(ledger, 1, state="redeemed") == []
    ledger.erase("Bert")
    assert ledger.page(state="erased")["person"].tolist() == [None]
    ledger.erase("anna")  # whose promise was withdrawn before
    assert pages(ledger, 5, state="erased") == [[second, first]]
    assert pages(ledger, 5, state="withdrawn") == []


def test_promise_of_yesterday_stands_on_page_of_expired_ones(place, monkeypatch):
    with pp.Ledger(place) as ledger:
        rows = INCOME_DEBT.encode(refused(1))
        yesterday = (datetime.date.today() - datetime.timedelta(days=2)).isoformat()
        numbers = promise_rows(ledger, NET, pp.Shifts.of(NET, 0.01), rows, expires=yesterday)
        assert pages(ledger, 5, state="expired") == [numbers]
        assert pages(ledger, 5, state="open") == []


def test_verdicts_of_audit_are_chosen_and_counted_by_database(ledger):
    audit = ledger.audit(STRICT)
    whole = ledger.verdicts(audit.number)
    assert set(whole["verdict"]) == {"broken"}
    assert len(ledger.verdicts(audit.number, ["broken"], size=2)) == 2
    assert ledger.verdicts(audit.number, ["proved", "holds"]).empty
    assert ledger.verdicts(audit.number, ["broken"]).equals(whole)


@pytest.mark.slow
def test_first_page_of_many_promises_is_quick(tmp_path):
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        rows = np.tile(INCOME_DEBT.encode(refused(500)), (200, 1))
        numbers = promise_rows(ledger, NET, pp.Shifts.of(NET, 0.01), rows)
        assert len(numbers) == 100_000
        for options in ({}, {"state": "open"}, {"before": numbers[50_000]}):
            start = time.perf_counter()
            assert len(ledger.page(**options)) == 50
            assert time.perf_counter() - start < 0.2, options
