"""A model in service is in the ledger: after a go, and adopted."""

from __future__ import annotations

import pytest

import proplace as pp
import small_promises as small
from proplace.core.errors import LedgerError, NotInLedger


@pytest.fixture
def ledger(tmp_path):
    with pp.Ledger(tmp_path / "promises.db", actor="anna") as found:
        found.issue(small.answers(1), ids=["c0"])
        yield found


def test_only_the_last_decision_counts(ledger):
    number = ledger.audit(ledger.described(small.LATER)).number
    assert ledger.decision(number) is None
    for go in (False, True, False):
        before = ledger.head
        if ledger.decision(number) is not True:
            with pytest.raises(LedgerError, match="not a go"):
                ledger.put_in_service(number, "loans")
            assert ledger.head == before
        ledger.decide(number, go=go)
        assert ledger.decision(number) is go
    with pytest.raises(LedgerError, match="not a go"):
        ledger.put_in_service(number, "loans")
    for asked in (ledger.decision, lambda n: ledger.put_in_service(n, "loans")):
        with pytest.raises(NotInLedger):
            asked(1)


def test_what_is_in_service_decides_when_people_come_back(ledger):
    """A later go for another model is not yet in service."""
    first, second = (ledger.audit(ledger.described(net)).number for net in (small.LATER, small.NET))
    ledger.decide(first, go=True)
    ledger.decide(second, go=True)
    entry = ledger.put_in_service(first, "loans")
    assert entry.facts["by"] == "anna"
    adopted = [e.facts["model"] for e in ledger.entries(kinds=("adopted",))]
    assert adopted[-1] == entry.facts["model"] == adopted[0] != adopted[1]
    ledger.put_in_service(first, "loans")
    assert len(list(ledger.entries(kinds=("adopted",)))) == 3
    assert ledger.verify().good
