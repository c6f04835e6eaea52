"""Time, size and memory of a ledger with many promises.

``python benchmarks/ledger.py [--promises 1000000] [--postgresql | --place PLACE]``

One certified counterfactual is issued to 2,000 people, with words and checks, and then written for all
others in transactions of 10,000, so that the figures are those of the ledger. Then promises are listed,
two networks are audited, the ledger is verified, and a person is erased. Default: a temporary file.
``--postgresql`` starts a server of its own. ``--place postgresql://...`` must be an empty database.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

import proplace as pp
from proplace.explain.results import Explanations
from proplace.ledger.issue import draft, issue_drafts

PART = 10_000
FEW = 2_000


def answer() -> Explanations:
    """Return a certified counterfactual of one person."""
    schema = pp.Schema(
        [pp.Continuous(f"feature_{n}", 0, 100, step=1) for n in range(10)],
    )
    frame = pd.DataFrame({name: [10 * n % 100 for n in range(1, 30)] for name in schema.by_name})
    net = pp.Network([([[1.0] * 10, [-0.5] * 10], [0.0, 0.1]), ([[1.0, -1.0]], [-3.0])])
    return pp.Proplace(net, 0.01, schema=schema, k=3).fit(frame).explain(frame[:1])


def memory() -> float:
    """Return the largest memory of the process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(what: str, action: object, per: int = 0) -> object:
    """Call a function and print its time."""
    start = time.perf_counter()
    found = action()  # type: ignore[operator]
    took = time.perf_counter() - start
    rate = f", {per / took:,.0f} a second" if per else ""
    print(f"{what:36s} {took:9.3f} s{rate}; memory so far {memory():,.0f} MB", flush=True)
    return found


def issue(ledger: pp.Ledger, one: Explanations, count: int) -> None:
    """Issue a counterfactual to many people, as users do."""
    many = Explanations(list(one) * count, provenance=one.provenance)
    ledger.issue(many, [f"first-{n}" for n in range(count)], expires="2999-12-31")


def fill(ledger: pp.Ledger, one: Explanations, count: int) -> None:
    """Write the same promise to many people, without sentences and checks."""
    (number,) = ledger.issue(one, ["somebody"]).ids
    first = draft(one[0], "somebody", ledger.promise(number).terms.digest, None, check=False)
    for start in range(0, count, PART):
        with ledger._database.write() as writer:
            people = [f"customer-{n:09d}" for n in range(start, min(start + PART, count))]
            drafts = [first._replace(person=person) for person in people]
            issue_drafts(writer, drafts, "2999-12-31", "refuse", label=1, replaces=None)


def changed(one: Explanations, by: float) -> pp.Network:
    """Return the network of a counterfactual with every bias moved."""
    net = one[0].setting.current.network
    return net.with_layers((layer.W, layer.bias + by) for layer in net.layers)


def last_verdicts(ledger: pp.Ledger) -> object:
    """Return a page of the verdicts of the latest audit."""
    (*_, audit) = ledger.entries(kinds=["audited"])
    return ledger.verdicts(audit.seq, ["broken"], size=50)


def measure(place: str, count: int) -> None:
    """Print all figures."""
    one = answer()
    ledger = pp.Ledger(place)
    print(f"{count:,} promises; memory at the start {memory():,.0f} MB")
    timed("issue, with words and checks", lambda: issue(ledger, one, FEW), FEW)
    timed("write all of them", lambda: fill(ledger, one, count), count)
    if "://" not in place:
        size = Path(place).stat().st_size
        print(f"{'file':36s} {size / 1e6:9.0f} MB, {size / count:,.0f} bytes a promise")
    head = str(ledger.head)
    timed("open it", lambda: pp.Ledger(place).close())
    timed("list the first page", ledger.page)
    timed("list the open promises of a page", lambda: ledger.page(state="open", before=count // 2))
    timed("list people by a part of an id", lambda: ledger.page(person=f"{count // 2:09d}"))
    timed("look up a person", lambda: ledger.promises(person=f"customer-{count // 2:09d}"))
    inside, outside = changed(one, 0.001), changed(one, 0.02)
    timed("audit a network of the shift set", lambda: ledger.audit(inside), count)
    timed("audit another network", lambda: ledger.audit(outside), count)
    timed("list broken promises of an audit", lambda: last_verdicts(ledger))
    verified = timed("verify", lambda: ledger.verify(head), count)
    timed("issue to one more person", lambda: ledger.issue(one, ["somebody else"]))
    timed("erase a person", lambda: ledger.erase(f"customer-{count // 3:09d}"))
    print(verified)
    ledger.close()


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--promises", type=int, default=1_000_000)
    parser.add_argument("--place")
    parser.add_argument("--postgresql", action="store_true")
    given = parser.parse_args()
    if given.postgresql:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        import postgresql  # noqa: PLC0415

        with postgresql.running() as server:
            measure(server.new(), given.promises)
        return
    if given.place:
        measure(given.place, given.promises)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(str(Path(folder) / "promises.db"), given.promises)


if __name__ == "__main__":
    main()
