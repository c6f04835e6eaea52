"""Renewals: for which networks new answers are proved, and what a stop in the middle leaves."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

import proplace as pp
import small_promises as small
from proplace.apps.serve import renewals
from proplace.apps.serve.config import config_of
from proplace.apps.serve.models import engine_of as read_engine
from proplace.core.errors import OptionError
from proplace.promises.renewing import Renewal
from served import settings, write_files

STRICT = pp.Network([(layer.W, layer.b - 0.25) for layer in small.NET.layers])  # breaks promises


@pytest.fixture
def lender(tmp_path):
    """A ledger with broken promises of two last days, and the audit that found them."""
    write_files(tmp_path)
    place = str(tmp_path / "promises.db")
    with pp.Ledger(place) as ledger:
        for n, day in enumerate(("2999-01-01", "2999-01-02")):
            ledger.issue(small.answers(1, n), ids=[f"c{n}"], expires=day)
        audit = ledger.audit(ledger.described(STRICT))
        assert len(audit.broken) == 2
        yield tmp_path, place, ledger, audit.number


def engine_of(folder, **more):
    facts = settings(folder)
    served = facts["models"]["lender"]
    served.update(more)
    if "shifts" in more:
        del served["delta"]
    return read_engine("lender", config_of(facts).models["lender"])


def asked(ledger, audit, seen=()):
    return {"audit": audit, "seen": list(seen), "after": ledger.head.entries}


def answers(ledger):
    """Open promises, whose points lie in which sets."""
    return [ledger.promise(n) for n in ledger.promises(state="open").index]


@pytest.mark.parametrize("holds", [True, False], ids=["in the set", "beside the set"])
def test_a_set_of_ones_own_is_kept_or_moved_along(lender, holds):
    """What is promised is proved for a set that holds the new network, as wide as the old one."""
    folder, place, ledger, audit = lender
    old = pp.Shifts.hull([small.NET, small.LATER, *([STRICT] if holds else [])])
    old.save(folder / "shifts.npz")
    engine = engine_of(folder, shifts=folder / "shifts.npz")
    found = renewals.renewed(engine, place, asked(ledger, audit), "anna", 10.0)
    assert len(found["digests"]) == 2
    done = renewals.renewed(engine, place, asked(ledger, audit, found["digests"]), "anna", 10.0)
    assert len(done["issued"]) == 2
    for promise in answers(ledger):
        (models,) = promise.terms.sets
        assert models.shifts.contains(models.net)
        assert promise.certificate.check(models.net, models.shifts).accepted
        assert holds == (models.shifts.digest == old.digest)
        for mine, theirs in zip(models.shifts.layers, old.layers, strict=True):
            wide = theirs.high.W - theirs.low.W
            assert pytest.approx(wide, abs=1e-12) == mine.high.W - mine.low.W


def test_a_set_of_other_networks_is_refused_with_what_to_do(lender):
    folder, *_ = lender
    pp.Shifts.hull([small.NET, small.LATER]).save(folder / "shifts.npz")
    engine = engine_of(folder, shifts=folder / "shifts.npz")
    other = pp.Network([([[1.0, 2.0]], [0.0])])
    with pytest.raises(OptionError, match="name both as model and shifts in the configuration"):
        renewals.set_around(engine, other)


@pytest.mark.parametrize("batches", [1, 2])
def test_a_renewal_that_was_stopped_ends_with_what_it_issued(lender, monkeypatch, batches):
    """The process dies after one of two transactions, or after both and before it could say so."""
    folder, place, ledger, audit = lender
    engine = engine_of(folder)
    seen = renewals.renewed(engine, place, asked(ledger, audit), "anna", 10.0)["digests"]
    question = asked(ledger, audit, seen)
    issue = Renewal.issue

    def killed(renewal):
        issue(Renewal(renewal.audit, renewal._batches[:batches]))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Renewal, "issue", killed)
        with pytest.raises(KeyboardInterrupt):
            renewals.renewed(engine, place, question, "anna", 10.0)
    before = {promise.id for promise in answers(ledger)}
    done = renewals.renewed(engine, place, question, "anna", 10.0)
    now = {promise.id: promise for promise in answers(ledger)}
    assert done["issued"] == sorted(now)
    assert len(before & set(now)) == batches
    assert sorted(p.certificate.digest for p in now.values()) == sorted(seen)
    assert sorted(p.person for p in now.values()) == ["c0", "c1"]
    assert done["digests"] == sorted(seen)


def test_what_was_not_seen_is_not_issued(lender):
    folder, place, ledger, audit = lender
    engine = engine_of(folder)
    seen = renewals.renewed(engine, place, asked(ledger, audit), "anna", 10.0)["digests"]
    for wrong in (seen[:1], [*seen, seen[0]], ["0" * 64]):
        with pytest.raises(OptionError, match="not those that were seen"):
            renewals.renewed(engine, place, asked(ledger, audit, wrong), "anna", 10.0)
    assert sorted(ledger.promises()["state"]) == ["open", "open"]
