"""From a source and a table to answers, in Python and on the command line, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

import proplace as pp
from commands import run
from proplace.certification import checker, parameters, parameters_of_shifts

DELTA, K, PEOPLE, SHIFTS = 0.003, 5, 6, 8


@dataclass(frozen=True)
class Walk:
    """Counts of one walk: people, counterfactuals, and those that each oracle accepted.

    ``held`` counts answers times models whose parameters all moved by up to delta, ``moved`` how many
    of these there were (0: the source cannot be moved).
    """

    people: int
    answers: int
    accepted: int
    proofs: int
    held: int
    moved: int

    @property
    def perfect(self):
        """True if every person has a counterfactual that every oracle accepts."""
        same = self.people == self.answers == self.accepted == self.proofs
        return same and self.held == self.moved


def in_python(source, folder):
    """Explain the first people whom the source refuses, and predict the results by the source."""
    del folder
    people = source.people.iloc[:PEOPLE]
    explainer = pp.Proplace(source.given, DELTA, k=K, schema=source.schema).fit(source.table)
    found = [e for e in explainer.explain(people, source.wanted) if e.found]
    answers = people.loc[[e.index for e in found]].copy()
    for name in found[0].counterfactual.index:
        answers[name] = [e.counterfactual[name] for e in found]
    proofs = [e.certificate.to_json().encode() for e in found]
    return counted(source, source.given, people, answers, proofs)


def on_the_command_line(source, folder):
    """Do the same with files alone: nothing but the command reads the model."""
    people = source.people.iloc[:PEOPLE]
    folder.mkdir()
    source.table.to_csv(folder / "train.csv", index=False)
    named = people.assign(customer=[f"c{i}" for i in range(len(people))])
    named.to_csv(folder / "people.csv", index=False)
    words = [
        "--model",
        source.file,
        "--train",
        folder / "train.csv",
        "--delta",
        DELTA,
        "explainer.k:",
        K,
    ]
    if source.schema is not None:
        source.schema.write(folder / "schema.yaml")
        words += ["--schema", folder / "schema.yaml"]
    else:
        words += [word for name in unused_columns(source) for word in ("--drop", name)]
    out = folder / "out"
    question = ["--target", source.wanted, "--id", "customer", "--out", out]
    done = run("explain", *words, "--input", folder / "people.csv", *question)
    assert done.returncode == 0, done.stderr
    results = pd.read_csv(out / "results.csv", keep_default_na=False)
    found = results[results.status.isin(["optimal", "feasible"])]
    answers = people.reset_index(drop=True).loc[found.row].copy()
    for name in answers.columns.intersection(found.columns):
        number = source.table[name].dtype.kind in "if"
        answers[name] = found[name].astype(float if number else str).to_numpy()
    checked = run("check", out / "certificates", "--model", source.file, "--delta", DELTA)
    assert checked.returncode == 0, checked.stdout
    proofs = [path.read_bytes() for path in sorted((out / "certificates").glob("*.json"))]
    return counted(source, source.file, people, answers, proofs)


def unused_columns(source):
    """Columns of the table that the model ignores."""
    model = pp.Model.of(source.file)
    return [name for name in source.table.columns if name not in model.schema.by_name]


def counted(source, given, people, answers, proofs):
    """Predict the counterfactuals by the framework, and check the certificates exactly."""
    accepted = int((source.labels(answers) == source.wanted).sum())
    model = pp.Model.of(given)
    network = parameters(model.network)
    box = pp.Shifts.of(model.network, DELTA)
    demand, ends = checker.Demand(delta=DELTA, margin=0.0), None
    if box.radii is None:  # batch norm is folded in
        demand = checker.Demand(margin=0.0, shifts=box.digest)
        ends = parameters_of_shifts(box)
    good = sum(checker.check(proof, network, demand, ends).accepted for proof in proofs)
    held = moved = 0
    if source.moved is not None:
        rng = np.random.default_rng(0)
        for _ in range(SHIFTS):
            said = source.moved(rng, DELTA)(answers)
            held, moved = held + int((said == source.wanted).sum()), moved + len(answers)
    if source.put is not None:  # and the worst shift of each answer, in the framework itself
        for i in range(len(answers)):
            worst = pp.worst_case(model, answers.iloc[[i]], DELTA, source.wanted).network
            said = source.put([(layer.W, layer.b) for layer in worst.layers])(answers.iloc[[i]])
            held, moved = held + int((said == source.wanted).sum()), moved + 1
    return Walk(len(people), len(answers), accepted, good, held, moved)


WAYS = {"Python": in_python, "command line": on_the_command_line}
