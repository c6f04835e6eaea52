"""Verdicts of audits against brute force, and what is written down of them."""

from __future__ import annotations

import itertools
from fractions import Fraction as Q

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from proplace.core.errors import LedgerError, OptionError
from proplace.core.guarantee import Member
from support.errors import raises
from support.lenders import last, promise_rows, verdicts
from support.tiers import examples

SHAPES = ([2, 1], [2, 3], [2, 3, 1], [2, 2, 2, 3], [2, 3, 2, 2, 1], [2, 2, 2, 2, 2, 1])


def network(sizes, seed, *, bias=True):
    """A random network with zero weights and a dead neuron."""
    rng = np.random.default_rng(seed)
    layers = []
    for a, b in itertools.pairwise(sizes):
        W = rng.normal(size=(b, a)) * (rng.random((b, a)) > 0.15)
        layers.append((W, rng.normal(size=b) * 0.5 if bias else None))
    if len(sizes) > 2 and bias:
        layers[0][1][0] = -9.0
    return pp.Network(layers)


def exactly_inside(net, other, delta):
    """Test in exact rationals if every parameter lies within delta."""
    pairs = zip(net.layers, other.layers, strict=True)
    return all(
        abs(Q(float(q)) - Q(float(p))) <= Q(delta)
        for a, b in pairs
        for mine, theirs in ((a.W, b.W), (a.bias, b.bias))
        for p, q in zip(mine.ravel(), theirs.ravel(), strict=True)
    )


def dense(low, high, steps=41):
    """Points of a box: a grid with its corners."""
    return np.stack(np.meshgrid(*(np.linspace(a, b, steps) for a, b in zip(low, high, strict=True))),
                    axis=-1).reshape(-1, len(low))  # fmt: skip


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_verdicts_on_boxes_are_those_of_brute_force(ledger, sizes, bias):
    """Points, boxes of one and of two sides, every class, signed inputs."""
    old, new = network(sizes, 1, bias=bias), network(sizes, 2, bias=bias)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 2)) * 1.5
    reach = rng.random((40, 2)) * rng.choice([0.0, 0.6], size=(40, 2))
    box = (rows - reach, rows + reach)
    seen_verdicts = set()
    for target in range(new.classes):
        with pp.Ledger(ledger.name + str(target)) as book:
            numbers = promise_rows(book, old, pp.Shifts.of(old, 0.01), rows, target, box=box)
            audit = book.audit(new)
            found = verdicts(audit)
            for n, number in enumerate(numbers):
                points = dense(box[0][n], box[1][n])
                least = new.margin(points, target).min()
                refused = (new.predict(points) != target).any()
                if least == 0.0 and new.predict(rows[n])[0] == target and reach[n].any():
                    assert found[number] in ("undecided", "broken")  # a tie in the box
                    continue
                assert found[number] == ("broken" if refused else "holds"), (n, least)
                seen_verdicts.add(found[number])
                if not refused:
                    assert audit.verdicts.margin[n] <= least + 1e-9
                here = new.predict(rows[n])[0] == target
                assert (audit.verdicts.note[n] == 1) == (refused and here)
    assert len(seen_verdicts) == 2


@examples(12)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0, np.nextafter(1.0, 2.0), 1.5]))
def test_proved_is_in_set_exactly(tmp_path_factory, seed, share):
    """Also on its edge and one float beyond it."""
    net = network([2, 2, 1], seed)
    rng = np.random.default_rng(seed)
    delta = 2.0**-4
    layers = [
        tuple(part + share * delta * rng.choice([-1.0, 1.0], size=part.shape) for part in pair)
        for pair in ((layer.W, layer.b) for layer in net.layers)
    ]
    new = pp.Network(layers)
    rows = rng.normal(size=(12, 2))
    rows = rows[(net.predict(rows) == 1) & (np.abs(new.margin(rows)) > 1e-6)]
    with pp.Ledger(tmp_path_factory.mktemp("book") / "p.db") as book:
        numbers = promise_rows(book, net, pp.Shifts.of(net, delta), rows)
        audit = book.audit(new)
        inside = exactly_inside(net, new, delta)
        for number, good in zip(numbers, new.predict(rows) == 1, strict=True):
            assert (verdicts(audit)[number] == "proved") == (inside and good)
            # Rows that were never proved: what the model refuses is an alarm, and never proved.
            assert (number in audit.alarms) == (inside and not good)


def test_any_of_promised_sets_will_do(ledger):
    """Also a network of another architecture, because the shape alone decides nothing."""
    net, other = network([2, 3, 1], 3), network([2, 2, 2, 1], 4)
    rows = np.array([[2.0, 1.0], [0.5, -0.5]])
    good = rows[(net.predict(rows) == 1) & (other.predict(rows) == 1)]
    rows = good if len(good) else rows
    sets = [Member(other, pp.Shifts.of(other, 0.125), "last year")]
    promise_rows(ledger, net, pp.Shifts.of(net, 0.01), rows, others=sets)
    moved = other.with_layers((layer.W + 0.125, layer.b) for layer in other.layers)
    audit = ledger.audit(moved)
    assert audit.groups[0].inside == "last year"
    beyond = other.with_layers((layer.W + 0.126, layer.b) for layer in other.layers)
    assert ledger.audit(beyond).groups[0].inside == ""


def test_box_of_intervals_counts_as_it_is(ledger):
    """Around no centre, with frozen parameters."""
    low, high = pp.Network([([[1.0, -1.0]], [0.0])]), pp.Network([([[1.5, -1.0]], [0.25])])
    promise_rows(ledger, low, pp.Shifts(low, high), np.array([[1.0, 0.5]]))
    inside = pp.Network([([[1.25, -1.0]], [0.25])])
    frozen = pp.Network([([[1.25, -1.0 + 2.0**-40]], [0.25])])
    assert ledger.audit(inside).counts["proved"] == 1
    assert ledger.audit(frozen).counts["holds"] == 1


def test_ties_go_to_class_that_network_gives(ledger):
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    rows = np.array([[0.5, 0.5]])
    other = pp.Network([([[9.0, 9.0]], [0.0])])
    far = pp.Shifts(other, other)
    for target, verdict in ((1, "holds"), (0, "broken")):
        with pp.Ledger(ledger.name + str(target)) as book:
            promise_rows(book, net, far, rows, target)
            assert list(verdicts(book.audit(net)).values()) == [verdict]


def test_model_in_float32_must_clear_its_rounding(ledger):
    """A box accepted in real numbers alone is undecided, and so is a point without an original model."""
    old = pp.Network([([[9.0, 0.0]], [0.0])])
    rows = np.array([[1.0, 1.0], [1.0, 1.0 + 2e-8], [1.0, 2.0], [1.0, 2.0]])
    low = np.array([[1.0, 1.0], [1.0, 1.0 + 2e-8], [1.0, 1.0 + 2e-8], [1.0, 1.5]])
    box = (low, rows + np.array([[0.0, 0.0], [0.0, 1e-8], [0.0, 0.0], [0.0, 0.5]]))
    promise_rows(ledger, old, pp.Shifts.of(old, 0.0), rows, box=box)
    for precision, wanted in (
        ("float64", ["holds"] * 4),
        ("float32", ["undecided"] * 3 + ["holds"]),
    ):
        new = pp.Network([([[-1.0, 1.0]], [0.0])], precision=precision)
        audit = ledger.audit(new)
        assert list(verdicts(audit).values()) == wanted
        assert audit.passes() == (precision == "float64")


def test_coarser_model_in_set_is_proved_only_beyond_its_rounding(ledger):
    net = pp.Network([([[1.0, -1.0]], [0.0])])
    rows = np.array([[1.0, 0.5], [1.0, 1.0 - 1e-9]])
    promise_rows(ledger, net, pp.Shifts.of(net, 0.0), rows)
    coarse = pp.Network([([[1.0, -1.0]], [0.0])], precision="float32")
    assert list(verdicts(ledger.audit(net)).values()) == ["proved", "proved"]
    assert list(verdicts(ledger.audit(coarse)).values()) == ["proved", "undecided"]


# -- what is written down --------------------------------------------------------------------------


def three(ledger, **options):
    """Three promises that a new network proves, keeps and breaks, and the audit."""
    net = pp.Network([([[1.0, 0.0]], [0.0])])
    rows = np.array([[3.0, 0.0], [1.0, 1.0], [1.0, -4.0]])
    numbers = promise_rows(ledger, net, pp.Shifts.of(net, 0.25), rows)
    new = pp.Network([([[1.0, 0.5]], [0.0])])
    return numbers, ledger.audit(new, **options)


def test_audit_is_recorded_with_model_counts_and_verdicts(ledger):
    numbers, audit = three(ledger)
    assert audit.counts == {"proved": 0, "holds": 2, "broken": 1, "undecided": 0}
    assert audit.broken == (numbers[2],)
    entry = list(ledger.entries())[-1]
    assert (entry.kind, entry.seq) == ("audited", audit.number)
    assert last(ledger)["counts"] == audit.counts
    found = ledger.verdicts(audit.number)[["verdict", "margin"]]
    assert list(found.itertuples(name=None)) == [
        (numbers[0], "holds", 3.0),
        (numbers[1], "holds", 1.5),
        (numbers[2], "broken", -1.0),
    ]
    assert ledger.verify().valid
    with ledger._database.read() as connection:
        kinds = connection.exec_driver_sql(
            f"SELECT kind FROM documents WHERE digest = '{last(ledger)['model']}'"
        ).all()
    assert kinds == [("model",)]


def test_alarms_are_recorded(ledger):
    """The network lies in the promised set, but refuses a promise that was proved for it."""
    net = pp.Network([([[1.0, 0.0]], [0.0])])
    promise_rows(ledger, net, pp.Shifts.of(net, 0.25), np.array([[-3.0, 0.0], [3.0, 0.0]]))
    audit = ledger.audit(net)
    assert len(audit.alarms) == last(ledger)["alarms"] == 1


def test_audits_on_both_databases(place):
    """More promises than one part of a stream, of two terms, while another one writes."""
    near, far = pp.Network([([[1.0, 0.0]], [0.0])]), pp.Network([([[0.0, 1.0]], [0.0])])
    rows = np.random.default_rng(0).normal(size=(700, 2))
    with pp.Ledger(place) as ledger, pp.Ledger(place) as other:
        numbers = promise_rows(ledger, near, pp.Shifts.of(near, 0.25), rows)
        numbers += promise_rows(other, far, pp.Shifts.of(far, 0.25), rows)
        new = pp.Network([([[1.0, 0.5]], [0.0])])
        audit = ledger.audit(new)
        good = np.tile(new.predict(rows) == 1, 2)
        assert audit.ids.tolist() == numbers
        assert [one == "holds" for one in verdicts(audit).values()] == good.tolist()
        assert other.verify(ledger.head).valid
        assert len(other.verdicts(audit.number)) == len(numbers)


def test_audit_that_is_not_recorded_writes_nothing(ledger):
    numbers, _ = three(ledger)
    head = ledger.head
    again = ledger.audit(pp.Network([([[1.0, 0.5]], [0.0])]), record=False)
    assert (ledger.head, again.number, again.broken) == (head, None, (numbers[2],))


def test_audit_evaluates_open_promises_alone(ledger):
    numbers, _ = three(ledger)
    ledger.withdraw(numbers[0], "a test")
    ledger.erase("person 1")
    assert ledger.audit(pp.Network([([[1.0, 0.5]], [0.0])])).ids.tolist() == [numbers[2]]
    assert ledger.verify().valid


def test_audit_skips_expired_promises(ledger):
    net = pp.Network([([[1.0, 0.0]], [0.0])])
    rows = np.array([[3.0, 0.0]])
    promise_rows(ledger, net, pp.Shifts.of(net, 0.25), rows, expires="2030-06-30")
    assert len(ledger.audit(net, as_of="2030-06-30")) == 1
    later = ledger.audit(net, as_of="2030-07-01")
    assert len(later) == 0
    assert "no promise is open" in str(later)
    assert later.passes("holds")
    assert ledger.verify().valid


def test_passes_rejects_broken_and_undecided_promises(ledger):
    _, audit = three(ledger)
    assert not audit.passes("broken")
    net = pp.Network([([[1.0, 0.0]], [0.0])])
    assert ledger.audit(net).passes("holds")
    wide = pp.Network([([[2.0, 0.0]], [0.0])])
    assert ledger.audit(wide).passes("broken")
    assert not ledger.audit(wide).passes("holds")
    with raises(OptionError, name="fail_on", value="proved"):
        audit.passes("proved")


def test_frame_and_json_agree(ledger):
    numbers, audit = three(ledger)
    frame, facts = audit.to_frame(), audit.to_dict()
    assert frame.index.tolist() == numbers == [one["promise"] for one in facts["promises"]]
    assert frame["verdict"].tolist() == [one["verdict"] for one in facts["promises"]]
    assert frame["person"].tolist() == ["person 0", "person 1", "person 2"]
    assert facts["promises"][2]["margin"] == -1.0
    assert facts["counts"] == audit.counts
    assert "sentence" not in facts["promises"][0]
    assert audit.to_frame("broken").index.tolist() == [numbers[2]]
    assert audit.verdict(numbers[1]) == "holds"
    with raises(OptionError, name="promise", match="open"):
        audit.verdict(1)


def test_audit_evaluates_promises_by_their_own_terms(ledger):
    """And come back in the order of their numbers."""
    near, far = pp.Network([([[1.0, 0.0]], [0.0])]), pp.Network([([[0.0, 1.0]], [0.0])])
    rows = np.array([[3.0, 1.0]])
    numbers = []
    for _ in range(2):
        for net in (near, far):
            numbers += promise_rows(ledger, net, pp.Shifts.of(net, 0.25), rows)
    audit = ledger.audit(pp.Network([([[1.0, 0.25]], [0.0])]))
    assert audit.ids.tolist() == numbers
    assert list(verdicts(audit).values()) == ["proved", "holds", "proved", "holds"]
    assert len(audit.groups) == 2
    assert ledger.verify().valid


def test_empty_ledger_is_audited(ledger):
    audit = ledger.audit(network([2, 1], 0))
    assert (len(audit), audit.passes("holds")) == (0, True)
    assert audit.to_frame().empty
    assert ledger.verify().valid


def test_network_of_another_width_decides_nothing(ledger):
    three(ledger)
    audit = ledger.audit(network([3, 1], 0))
    assert audit.counts["undecided"] == 3
    assert "takes 3 columns" in str(audit)
    assert not audit.passes("broken")


def test_columns_without_names_are_not_matched_by_chance(ledger):
    """Both call their first columns x1 and x2, and that means nothing."""
    wide = pp.Network([([[1.0, 0.0, 0.0]], [0.0])])
    promise_rows(ledger, wide, pp.Shifts.of(wide, 0.25), np.ones((1, 3)))
    audit = ledger.audit(pp.Network([([[1.0, 0.25]], [0.0])]))
    assert audit.counts["undecided"] == 1
    assert "takes 2 columns" in str(audit)


def test_audit_rejects_invalid_day(ledger):
    with raises(LedgerError, name="day", value="soon"):
        ledger.audit(network([2, 1], 0), as_of="soon")
