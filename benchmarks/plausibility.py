"""Plausibility of sparse and restricted counterfactuals, judged by people that nothing was fitted on.

    python benchmarks/plausibility.py [--people 60] [--seed 11 ...] [--size 2x20] [--limit 10]
                                      [--data gmc ...] [--part sparse ...] [--against /path/to/old/src]
    python benchmarks/plausibility.py --table

Models: StandardScaler, one-hot columns and a network, trained on 60% of a table (at most 8,000 rows).
Delta leaves 40% of the accepted training rows robust. The people are refused rows that training did
not see. The schema is drafted from the training rows, with or without its steps.

Parts: *sparse* (nearest, nearest and typical, sparse, and ``prefer="few"`` of 0.2), *steps* (the same
with steps; on gmc also at most two changes), and *immutable* (random numbers, 4 draws for each count
up to half of the numbers, and *real*: age, race, sex, country; default options, without steps).

The judge does not use the package. It takes the cells of a counterfactual, puts numbers in units of
their range in the training rows and words into 0/1 columns, and measures the mean absolute difference.
Its reference are distinct accepted rows that neither training nor the explainer saw, at most 5,000.
Three measures come from scikit-learn: LOF(10), LOF(30) and the distance to the 5th neighbour. Each row
of the reference is scored without itself, a counterfactual against all of them. A row is *beyond* a
measure if it exceeds the 95% quantile of the reference. A row is *beyond* all together if the largest
of its three ranks among the reference exceeds the 95% quantile of these largest ranks, so that 5% of
held-out people are beyond it, as 5% are beyond LOF(10). Columns:

- *people*; *answered*; *typical*: share of counterfactuals that the package calls typical;
- *changed*: median and mean number of cells that differ from the person's; *at most 3 / 5*;
- *distance*: median; *LOF(10)*: mean; *LOF > 1.5*: share;
- *beyond: LOF(10)* and *three*: share of counterfactuals beyond LOF(10), and beyond the three measures
  together; *typical, three*: the second share among those that the package calls typical;
- *extreme*: share that move a number beyond its 1% or 99% quantile over the training rows;
- *CPU*: processor seconds, median and 90% quantile, with the certificate and without ``fit``.

Every finished cell is appended to ``--out`` (JSON lines). The same command continues an interrupted
run; ``--table`` prints the tables from the file, over all seeds in it. Every counterfactual is checked:
the pipeline accepts its cells, and its certificate passes.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from sklearn.neighbors import LocalOutlierFactor

from child import OWN_SOURCE, commit_of, run
from common import OwnModel, machine, own_model, widths_of
from own_models import append, quantile, saved, share

DATA = ("cancer", "heloc-repaired", "gmc", "compas", "adult")
PAPER = DATA[1:]  # the data sets of the paper, for which the targets of sparse answers hold
PARTS = ("sparse", "steps", "immutable")
REAL = ("age", "race", "sex", "native-country")
COUNTS, DRAWS = (1, 2, 3, 5), 4
SHARE = 0.6  # of a table, for training
REFERENCE = 5_000  # rows of the judge, at most
BEYOND = 0.95  # quantile of held-out people
MOST, CHANGES, SECONDS = 0.05, 4, 0.3  # targets: share beyond it, median changes, median CPU
NEAREST, TYPICAL, SPARSE, TWO = "nearest", "nearest, typical", "sparse", "sparse, at most 2"
WISHES = {
    NEAREST: {},
    TYPICAL: {"typical": True},
    SPARSE: {"prefer": "sparse"},
    TWO: {"prefer": "sparse", "max_changes": 2},
}


# -- the judge -----------------------------------------------------------------------------------


class Judge:
    """Accepted people that nothing was fitted on, and how unusual a row is among them."""

    def __init__(self, model: OwnModel) -> None:
        train = model.train
        self.numbers = [name for name in train if is_numeric_dtype(train[name])]
        self.words = [name for name in train if name not in self.numbers]
        self.range = np.ptp(train[self.numbers].to_numpy(dtype=float), axis=0)
        self.range[self.range == 0.0] = 1.0
        self.values = {name: sorted(train[name].unique()) for name in self.words}
        self.ends = train[self.numbers].quantile([0.01, 0.99])
        rows = np.unique(self.encoded(model.accepted), axis=0)
        rows = np.random.default_rng(0).permutation(rows)[:REFERENCE]
        self.lof = [
            LocalOutlierFactor(k, metric="manhattan", novelty=True).fit(rows) for k in (10, 30)
        ]
        self.own = np.column_stack(
            [
                *(-lof.negative_outlier_factor_ for lof in self.lof),
                self.lof[0].kneighbors(n_neighbors=5)[0][:, 4],
            ]
        )
        self.limits = np.quantile(self.own, BEYOND, axis=0)
        self.ordered = np.sort(self.own, axis=0)
        self.limit = np.quantile(self.ranks(self.own), BEYOND)

    def encoded(self, frame: pd.DataFrame) -> np.ndarray:
        """Return rows whose mean absolute difference is the distance."""
        parts = [frame[self.numbers].to_numpy(dtype=float) / self.range]
        for name in self.words:
            cells = frame[name].to_numpy(dtype=object)
            parts.append(
                np.array([[cell == value for value in self.values[name]] for cell in cells])
            )
        rows = np.hstack([part.reshape(len(frame), -1).astype(float) for part in parts])
        return rows / rows.shape[1]

    def measures(self, rows: np.ndarray) -> np.ndarray:
        """Return the three measures of encoded rows, one column each."""
        lofs = [-lof.score_samples(rows) for lof in self.lof]
        return np.column_stack([*lofs, self.lof[0].kneighbors(rows, 5)[0][:, 4]])

    def ranks(self, measures: np.ndarray) -> np.ndarray:
        """Return the largest share of the reference that is below a row, over the measures."""
        pairs = zip(self.ordered.T, measures.T, strict=True)
        shares = [np.searchsorted(*pair) / len(self.ordered) for pair in pairs]
        return np.max(shares, axis=0)

    def judged(self, people: pd.DataFrame, records: list[dict]) -> list[dict]:
        """Return records with the figures of their counterfactuals."""
        return [
            self.figures(people.iloc[i : i + 1], record) if "cells" in record else record
            for i, record in enumerate(records)
        ]

    def figures(self, person: pd.DataFrame, record: dict) -> dict:
        """Return a record with the figures of its counterfactual."""
        answer = pd.DataFrame([record["cells"]], columns=person.columns)
        changed = [name for name in person if answer[name].iloc[0] != person[name].iloc[0]]
        moved = [name for name in changed if name in self.numbers]
        extreme = {name: float(answer[name].iloc[0]) for name in moved if self.beyond(answer, name)}
        both = self.encoded(person), self.encoded(answer)
        measures = self.measures(both[1])
        return record | {
            "changed": len(changed),
            "distance": float(np.abs(both[0] - both[1]).sum()),
            "measures": measures[0].tolist(),
            "rank": float(self.ranks(measures)[0]),
            "lof beyond": bool(measures[0, 0] > self.limits[0]),
            "beyond": bool(self.ranks(measures)[0] > self.limit),
            "extreme": extreme,
        }

    def beyond(self, answer: pd.DataFrame, name: str) -> bool:
        """Test whether the number of an answer is beyond the quantiles of the training rows."""
        low, high = self.ends[name]
        return not low <= float(answer[name].iloc[0]) <= high


# -- measuring -----------------------------------------------------------------------------------


def ways_of(part: str, model: OwnModel, people: int, seed: int) -> list[dict]:
    """Return the ways in which people are explained in a part: name, options and positions."""
    everybody = list(range(people))
    if part != "immutable":
        names = [
            NEAREST,
            TYPICAL,
            SPARSE,
            *([TWO] if (model.name, part) == ("gmc", "steps") else []),
        ]
        shared = {"steps": part == "steps", "immutable": [], "rows": everybody}
        return [{"name": name, "wishes": WISHES[name], **shared} for name in names]
    rng = np.random.default_rng(seed)
    numbers = [name for name in model.train if is_numeric_dtype(model.train[name])]
    ways = []
    for count in COUNTS:
        for draw in range(DRAWS if count <= len(numbers) / 2 else 0):
            chosen = sorted(rng.choice(numbers, count, replace=False).tolist())
            ways.append((str(count), chosen, everybody[draw::DRAWS]))
    real = [name for name in REAL if name in model.train]
    ways += [("real", real, everybody)] * bool(real)
    return [
        {"name": name, "wishes": {}, "steps": False, "immutable": immutable, "rows": rows}
        for name, immutable, rows in ways
    ]


def measure(
    part: str, model: OwnModel, judge: Judge, seed: int, options: argparse.Namespace
) -> dict:
    """Measure one cell in child processes: this checkout, and the other one if it is given."""
    people = model.refused[: options.people + 1]  # the last person warms up
    ways = ways_of(part, model, len(people) - 1, seed)
    shared = {
        "pipeline": model.pipeline,
        "train": model.train,
        "people": people,
        "delta": model.delta,
        "limit": options.limit,
    }
    record = {"delta": model.delta}
    record["now"] = named(run("ask", ways=ways, **shared), ways, people, judge)
    if options.against:
        fewer = [way for way in ways if way["name"] in (SPARSE, TWO) or part == "immutable"]
        found = run("ask", options.against, ways=fewer, **shared)
        record["against"] = named(found, fewer, people, judge)
    return record


def named(found: dict, ways: list[dict], people: pd.DataFrame, judge: Judge) -> dict:
    """Return the judged records under the names of the ways."""
    records: dict[str, list[dict]] = {}
    for way, answers in zip(ways, found["records"], strict=True):
        judged = judge.judged(people.iloc[way["rows"]], answers)
        records.setdefault(way["name"], []).extend(judged)
    return {"version": found["version"], "records": records}


def measure_all(options: argparse.Namespace) -> None:
    """Measure the chosen cells that are not yet in the file."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = [record["key"] for record in saved(options.out)]
    for seed, data, size in itertools.product(options.seed, options.data, options.size):
        keys = [key_of(part, data, size, seed, options) for part in options.part]
        keys = [key for key in keys if key not in done]
        if not keys:
            continue
        model = own_model(data, "standard", widths_of(size), seed, share=SHARE)
        judge = Judge(model)
        for key in keys:
            record = measure(key["part"], model, judge, seed, options)
            append(options.out, {"key": key, "machine": machine(), **record})


def key_of(part: str, data: str, size: str, seed: int, options: argparse.Namespace) -> dict:
    """Return the fields that decide whether a saved cell answers this command."""
    return {
        "part": part,
        "data": data,
        "size": size,
        "seed": seed,
        "people": options.people,
        "limit": options.limit,
        "against": commit_of(options.against) if options.against else None,
        "commit": commit_of(),
    }


# -- tables --------------------------------------------------------------------------------------

Row = tuple[str, str, str]
"""The cell (data, size), the way and the version of a row."""

HEAD = (
    "model | way | version | people | answered | typical | changed | at most 3 / 5 | distance | "
    "LOF(10) | LOF > 1.5 | beyond: LOF(10) | three | typical, three | extreme | CPU"
)
TITLES = {
    "sparse": "Sparse, without steps",
    "steps": "Sparse, with drafted steps",
    "immutable": "Immutable features",
}
WALK_HEAD = "model | steps | people | atypical nearest | repaired | distance: median / 90%"


def figures_of(records: list[dict]) -> dict:
    """Return the figures of a row of a table."""
    found = [record for record in records if "measures" in record]
    changed = np.array([record["changed"] for record in found])
    measures = np.array([record["measures"] for record in found]).reshape(len(found), 3)
    return {
        "people": len(records),
        "answered": len(found) / len(records),
        "typical": [record["typical"] for record in found if record["typical"] is not None],
        "changed": changed,
        "distance": np.array([record["distance"] for record in found]),
        "lof": measures[:, 0],
        "lof beyond": np.array([record["lof beyond"] for record in found]),
        "beyond": np.array([record["beyond"] for record in found]),
        "typical beyond": [record["beyond"] for record in found if record["typical"]],
        "extreme": [bool(record["extreme"]) for record in found],
        "cpu": np.array([record["cpu"] for record in records]),
    }


def line(row: Row, records: list[dict]) -> str:
    """Return the line of one row."""
    f = figures_of(records)
    some = bool(len(f["changed"]))
    cells = [
        *row,
        str(f["people"]),
        f"{f['answered']:.0%}",
        share(f["typical"]),
        f"{np.median(f['changed']):g}, {f['changed'].mean():.1f}" if some else "-",
        f"{share(f['changed'] <= 3)} / {share(f['changed'] <= 5)}",
        f"{np.median(f['distance']):.3f}" if some else "-",
        f"{f['lof'].mean():.2f}" if some else "-",
        share(f["lof"] > 1.5),
        share(f["lof beyond"]),
        share(f["beyond"]),
        share(f["typical beyond"]),
        share(f["extreme"]),
        f"{quantile(f['cpu'], 0.5):.2g} / {quantile(f['cpu'], 0.9):.2g}",
    ]
    return f"| {' | '.join(cells)} |"


def pooled(records: list[dict], part: str) -> dict[Row, list[dict]]:
    """Return the people of each row of a table, over all seeds."""
    rows: dict[Row, list[dict]] = {}
    for record in records:
        if record["key"]["part"] != part:
            continue
        cell = f"{record['key']['data']} {record['key']['size']}"
        for version in ("now", "against"):
            for way, people in record.get(version, {"records": {}})["records"].items():
                row = (cell, way, "now" if version == "now" else record[version]["version"])
                rows.setdefault(row, []).extend(people)
    return rows


def walks(records: list[dict]) -> list[str]:
    """Return the lines on nearest counterfactuals that needed a walk to a typical point."""
    lines = []
    for part in ("sparse", "steps"):
        rows = pooled(records, part)
        for (cell, way, version), plain in rows.items():
            if way != NEAREST or (cell, TYPICAL, version) not in rows:
                continue
            pairs = zip(plain, rows[cell, TYPICAL, version], strict=True)
            both = [(a, b) for a, b in pairs if "measures" in a and "measures" in b]
            moved = [(a, b) for a, b in both if not a["typical"]]
            ratios = np.array([b["distance"] / a["distance"] for a, b in moved if b["typical"]])
            spread = f"{quantile(ratios, 0.5):.2f} / {quantile(ratios, 0.9):.2f}"
            cells = [cell, "no" if part == "sparse" else "yes", str(len(both)), str(len(moved))]
            cells += [str(len(ratios)), spread if len(ratios) else "-"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def missed_targets(records: list[dict]) -> list[str]:
    """Return one sentence for every missed target of this checkout."""
    missed = []
    for part in PARTS:
        rows = pooled(records, part)
        others = {row[:2]: people for row, people in rows.items() if row[2] != "now"}
        for row, people in rows.items():
            cell, way, version = row
            if version != "now":
                continue
            f, title = figures_of(people), f"{TITLES[part]}, {cell}, {way}"
            if f["people"] < 60:
                missed.append(f"{title}: {f['people']} people, target 60")
            for name, title_ in (("lof beyond", "LOF(10)"), ("beyond", "the three measures")):
                if way != NEAREST and len(f[name]) and f[name].mean() > MOST:
                    missed.append(f"{title}: {share(f[name])} beyond {title_}, target {MOST:.0%}")
            if way == SPARSE and cell.split()[0] in PAPER:
                middle, spent = np.median(f["changed"]), quantile(f["cpu"], 0.5)
                if middle > CHANGES:
                    missed.append(f"{title}: median of {middle:g} changes, target {CHANGES}")
                if cell.endswith("2x20") and spent > SECONDS:
                    missed.append(f"{title}: median of {spent:.2g} s, target {SECONDS:g} s")
            if row[:2] in others:
                before = figures_of(others[row[:2]])["answered"]
                if f["answered"] < before:
                    missed.append(f"{title}: {f['answered']:.0%} answered, {before:.0%} before")
    return missed


def failed_checks(records: list[dict]) -> tuple[int, list[str]]:
    """Return the number of counterfactuals and a sentence for every failed check of this checkout."""
    count, failed = 0, []
    for part in PARTS:
        for row, people in pooled(records, part).items():
            for i, record in enumerate(people):
                if "measures" not in record:
                    continue
                count += 1
                failed += [
                    f"{', '.join(row)}, person {i}: not {check}"
                    for check in ("accepted", "certified")
                    if not record[check]
                ]
    return count, failed


def print_tables(path: Path) -> None:
    """Print all tables from the file: the last record of every cell."""
    latest = {}
    for record in saved(path):
        latest[tuple(record["key"][name] for name in ("part", "data", "size", "seed"))] = record
    records = sorted(latest.values(), key=lambda record: DATA.index(record["key"]["data"]))
    if not records:
        raise SystemExit(f"{path} holds no finished cell. Run without --table first.")
    for text in sorted({about(record) for record in records}):
        print(text)
    for part, title in TITLES.items():
        rows = pooled(records, part)
        if rows:
            print(f"\n## {title}\n\n| {HEAD} |\n|{'---|' * len(HEAD.split(' | '))}")
            order = {row: i for i, row in enumerate(dict.fromkeys(row[:2] for row in rows))}
            for row in sorted(rows, key=lambda row: (order[row[:2]], row[2])):
                print(line(row, rows[row]))
    lines = walks(records)
    if lines:
        print(f"\n## Nearest counterfactuals made typical\n\n| {WALK_HEAD} |")
        print(f"|{'---|' * len(WALK_HEAD.split(' | '))}", *lines, sep="\n")
    missed = missed_targets(records)
    print(f"\nTargets missed: {len(missed)}", *(f"- {text}" for text in missed), sep="\n")
    count, failed = failed_checks(records)
    print(
        f"\nChecked: {count} counterfactuals (accepted, certificate valid); {len(failed)} failed."
    )
    print(*(f"FAILED: {text}" for text in failed), sep="\n")


def about(record: dict) -> str:
    """Return one line on the commit, the options and the machine of a record."""
    key = record["key"]
    other = f", beside {key['against']}" if key["against"] else ""
    return (
        f"commit {key['commit']}{other}, seed {key['seed']}, {key['people']} people, "
        f"limit {key['limit']:g} s; {record['machine']}"
    )


def main() -> None:
    """Measure the cells and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--people", type=int, default=60, help="people of each seed, default 60")
    parser.add_argument("--seed", type=int, nargs="+", default=[11], help="default 11")
    parser.add_argument("--size", nargs="+", default=["2x20"], help="networks, default 2x20")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per person, default 10")
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--part", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--against", type=Path, help="src folder of another checkout")
    parser.add_argument("--out", type=Path, default=OWN_SOURCE.parent / "build/plausibility.jsonl")
    parser.add_argument("--table", action="store_true", help="print the tables from --out")
    parser.add_argument("--smoke", action="store_true", help="four people of COMPAS")
    options = parser.parse_args()
    if not options.smoke:
        if not options.table:
            measure_all(options)
        print_tables(options.out)
        return
    options.data, options.people, options.size = ["compas"], 4, ["2x10"]
    with tempfile.TemporaryDirectory() as folder:
        options.out = Path(folder) / "cells.jsonl"
        measure_all(options)
        print_tables(options.out)


if __name__ == "__main__":
    main()
