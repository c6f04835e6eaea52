"""One ledger with promises about several decisions: each has models of its own."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import proplace as pp
import small_promises as small
from commands import call
from proplace.core.errors import LedgerError

WIDE = pp.Schema([pp.Continuous("income", 0, 1000, step=1), pp.Continuous("debt", 0, 50, step=1)])
STRICT = pp.Network([([[2.0, -1.0], [-1.0, 1.5]], [-0.1, 0.2]), ([[1.5, -0.7]], [-0.9])])
LENIENT = pp.Network([([[2.0, -1.0], [-1.0, 1.5]], [-0.1, 0.2]), ([[1.5, -0.7]], [5.0])])
WORDS = pp.Wording("the credit line", ["closed", "opened"], "firm")


def firms(count=2, delta=0.01):
    """Answers of the same network in front of other columns of the same names."""
    table = pd.DataFrame({"income": [200, 600, 800, 900, 950], "debt": [30, 10, 5, 20, 8]})
    explainer = pp.Proplace(small.NET, delta, schema=WIDE, k=3).fit(table)
    return explainer.explain(pd.DataFrame({"income": range(count), "debt": [30] * count}))


@pytest.fixture
def both(tmp_path):
    """A ledger of loans and of firms, with an id that occurs in both; views of each."""
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        loans, firm = ledger.for_purpose("loans"), ledger.for_purpose("firms")
        loans.issue(small.answers(3), ["anna", "ben", "7"])
        firm.issue(firms(), ["acme", "7"], wording=WORDS)
        yield ledger, loans, firm


def test_each_sees_its_own(both):
    ledger, loans, firm = both
    assert ledger.purposes == {"loans", "firms"}
    assert loans.promises()["person"].tolist() == ["anna", "ben", "7"]
    assert firm.promises()["person"].tolist() == ["acme", "7"]
    whole = ledger.promises()
    assert whole["purpose"].tolist() == ["loans"] * 3 + ["firms"] * 2
    assert len(pd.concat(firm.promises_in_parts())) == 2
    assert {ledger.promise(n).terms.purpose for n in firm.promises().index} == {"firms"}
    assert ledger.verify().good


@pytest.mark.parametrize(
    "what",
    [
        lambda ledger: ledger.audit(small.NET),
        lambda ledger: ledger.adopt(small.NET),
        lambda ledger: ledger.described(small.NET),
        lambda ledger: ledger.promised(small.NET),
        lambda ledger: ledger.promised_set(small.NET),
        lambda ledger: list(ledger.open_promises()),
        lambda ledger: pp.repair(small.LATER, ledger),
    ],
)
def test_a_model_is_one_for_one_of_them(both, what):
    ledger, loans, _ = both
    before = ledger.head
    with pytest.raises(LedgerError, match=r"several decisions .*'firms', 'loans'.*--purpose"):
        what(ledger)
    assert ledger.head == before
    what(loans)


def test_an_audit_and_a_decision_are_about_one_purpose(both):
    """A strict model of loans breaks the loans, and says nothing about firms."""
    ledger, loans, firm = both
    audit = loans.audit(loans.described(STRICT))
    assert audit.broken == tuple(loans.promises().index)
    assert audit.purpose == "loans"
    assert firm.audit(small.NET).counts["proved"] == 2
    loans.decide(audit.number, go=True)
    for view, verdict in ((loans, "broken"), (firm, "exact")):
        number = int(view.promises().index[0])
        answer = ledger.promise(number).answer
        assert ledger.redeem(number, answer, record=False).verdict == verdict
    said = {e.kind: e.facts.get("purpose") for e in ledger.history() if e.promise is None}
    assert said["audited"] == "firms"  # the last one
    assert said["decided"] == said["adopted"] == "loans"


def test_a_model_decides_for_its_own_purpose_alone(both):
    ledger, loans, firm = both
    firm.adopt(STRICT)
    for view, verdict in ((firm, "broken"), (loans, "exact")):
        number = int(view.promises().index[0])
        answer = ledger.promise(number).answer
        assert ledger.redeem(number, answer, record=False).verdict == verdict


def test_a_bare_network_is_read_as_its_own_promises_are(both):
    """The range of income is ten times as wide for firms."""
    _, loans, firm = both
    for view, most in ((loans, 100), (firm, 1000)):
        assert view.described(small.NET).schema.by_name["income"].upper == most


def test_the_same_person_may_have_a_promise_of_each(both):
    _, loans, firm = both
    with pytest.raises(LedgerError, match="have an open promise already"):
        loans.issue(small.answers(1, 5, delta=0.005), ["7"])
    renewed = firm.issue(firms(1, 0.005), ["7"], existing="renew").new
    assert loans.promises("7")["state"].tolist() == ["open"]
    assert firm.promises("7")["state"].tolist() == ["renewed", "open"]
    assert firm.promises("7").index[-1] == renewed[0]


def test_renewed_promises_keep_purpose_and_words(both):
    ledger, _, firm = both
    audit = firm.audit(STRICT)
    table = pd.DataFrame({"income": [200, 990, 980, 995], "debt": [30, 1, 0, 2]})
    explainer = pp.Proplace(STRICT, 0.005, schema=WIDE, k=2).fit(table)
    new = audit.renew(explainer).issue().new
    assert len(new) == 2
    for number in new:
        promise = ledger.promise(number)
        assert promise.terms.purpose == "firms"
        assert promise.wording == pp.Wording("the credit line", {0: "closed", 1: "opened"}, "firm")
        assert promise.sentence.startswith("The credit line would have been opened")


def test_one_purpose_needs_no_name(tmp_path):
    with pp.Ledger(tmp_path / "promises.db", purpose="loans") as loans:
        loans.issue(small.answers(2), ["anna", "ben"])
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        audit = ledger.audit(ledger.described(STRICT))
        assert (len(audit.broken), audit.purpose) == (2, "loans")
        ledger.decide(audit.number, go=True)
        number = audit.broken[0]
        assert not ledger.redeem(number, ledger.promise(number).answer, record=False).accepted
    with pp.Ledger(tmp_path / "promises.db", purpose="firms") as other:
        assert len(other.promises()) == 0
        assert len(other.audit(STRICT)) == 0


@pytest.mark.parametrize("purpose", [" loans", "loans\n", "a\x1b[2J"])
def test_a_purpose_is_a_name(tmp_path, purpose):
    with pytest.raises(LedgerError, match="a purpose is a name"):
        pp.Ledger(tmp_path / "promises.db", purpose=purpose)
    assert not (tmp_path / "promises.db").exists()


def test_from_the_shell(both, tmp_path):
    ledger, loans, _ = both
    STRICT.save(tmp_path / "new.npz")
    audit = ("audit", "--ledger", ledger.name, "--model", tmp_path / "new.npz")
    done = call(*audit)
    assert (done.returncode, "--purpose" in done.stderr) == (1, True)
    done = call(*audit, "--purpose", "loans", "--json", "--fail-on", "broken")
    assert done.returncode == 3
    assert json.loads(done.stdout)["counts"]["broken"] == 3
    assert call("ledger", "adopt", ledger.name, *audit[3:]).returncode == 1
    assert call("ledger", "adopt", ledger.name, *audit[3:], "--purpose", "loans").returncode == 0
    listed = call("ledger", "list", ledger.name, "--purpose", "firms", "--json")
    assert [one["person"] for one in json.loads(listed.stdout)] == ["acme", "7"]
    assert "firms" in call("ledger", "list", ledger.name).stdout
    assert len(loans.promises()) == 3
