r"""A challenge set: 200 problems with proved answers, and a scorer for the answers of any method.

    python benchmarks/challenge.py make [--out benchmarks/challenge.zip]
    python benchmarks/challenge.py check [--archive benchmarks/challenge.zip]
    python benchmarks/challenge.py score answers.json [--archive benchmarks/challenge.zip]

Each problem has a network, a radius delta around all of its parameters and a target class, and asks for

- the *worst-case margin* of a row: the smallest margin of the target over all shifted networks;
- the *nearest robust point*: the point of the convex hull of a person and 20 vertices that is nearest to
  the person in mean absolute difference and has a worst-case margin of at least 0.01.

``docs/challenge.md`` describes the files and the scores. ``check`` verifies the proofs of the archive in
rational arithmetic: the pre-activations of the worst shift prove the upper end of a margin, a
certificate proves its lower end, and another one proves that the nearest point is robust. The lower
bound on the distance comes from branch and bound; the archive has no proof of it.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import time
import warnings
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
)
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import minmax_scale

import proplace as pp
import referees
from proplace.certification import Certificate, certify
from proplace.core.distances import L1
from proplace.core.guarantee import Guarantee, Member
from proplace.region.pieces import ConvexPiece
from proplace.search import tree
from proplace.search.problem import SearchProblem

ARCHIVE = Path(__file__).with_name("challenge.zip")
MARGIN = 0.01  # of the nearest point
VERTICES = 20
EACH = 20  # problems of a network
TOLERANCE = 1e-6  # of margins, relative to margins of at least 1, and of distances from the hull
NEAR = 1e-6  # how far below the required margin the scorer still accepts a point
LIMIT = 60.0  # seconds of one search
LARGEST = 40_000  # bytes of a certificate

NETWORKS = (
    ("cancer", (20, 20)),
    ("cancer", (10, 10, 10)),
    ("cancer", (50,)),
    ("wine", (20, 20)),
    ("iris", (8, 8, 8, 8)),
    ("diabetes", (30, 30)),
    ("diabetes", (15, 15, 15)),
    ("synthetic", (20, 20)),
    ("synthetic", (50, 50)),
    ("digits", (20, 20)),
)


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rows scaled to [0, 1], rounded to three decimals, and classes."""
    if name == "synthetic":
        X, y = make_classification(800, 20, n_informative=8, flip_y=0.1, random_state=0)
    elif name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
        y = (y > np.median(y)).astype(int)
    else:
        load = {
            "cancer": load_breast_cancer,
            "wine": load_wine,
            "iris": load_iris,
            "digits": load_digits,
        }[name]
        X, y = load(return_X_y=True)
    rows, index = np.unique(minmax_scale(X).round(3), axis=0, return_index=True)
    return rows, y[index]


@dataclass(frozen=True, eq=False)
class Challenge:
    """The problems of an archive, its networks, tables, solutions and certificates."""

    path: Path

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The content of every file of the archive."""
        with zipfile.ZipFile(self.path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    @cached_property
    def problems(self) -> list[dict]:
        """The problems in their order."""
        return json.loads(self.files["problems.json"])

    @cached_property
    def solutions(self) -> dict[str, dict]:
        """The solution of each problem."""
        return json.loads(self.files["solutions.json"])

    @cached_property
    def networks(self) -> dict[str, tuple[pp.Network, np.ndarray]]:
        """Each network with the rows of its table."""
        names = {problem["network"] for problem in self.problems}
        return {name: read_network(self.files[f"networks/{name}.npz"]) for name in names}

    def vertices(self, problem: dict) -> np.ndarray:
        """Return the corners of the hull, the person first."""
        rows = self.networks[problem["network"]][1]
        return np.vstack([problem["person"], rows[problem["vertices"]]])


def read_network(content: bytes) -> tuple[pp.Network, np.ndarray]:
    """Return the network and the rows of an npz file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        count = sum(name.startswith("W") for name in file)
        return pp.Network([(file[f"W{i}"], file[f"b{i}"]) for i in range(count)]), file["rows"]


# -- make ------------------------------------------------------------------------------------------


def trained(name: str, widths: tuple[int, ...]) -> tuple[pp.Network, np.ndarray]:
    """Train a network; parameters are rounded to five decimals, so that its file is small."""
    rows, y = table(name)
    model = MLPClassifier(widths, max_iter=200, learning_rate_init=0.01, alpha=1e-3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows, y)
    layers = pp.Model.of(model).network.layers
    return pp.Network([(layer.W.round(5), layer.bias.round(5)) for layer in layers]), rows


def chosen_delta(net: pp.Network, rows: np.ndarray) -> float:
    """Return a delta at which about 40% of the rows keep their class, with two digits."""
    classes = net.predict(rows)

    def share(delta: float) -> float:
        kept = [
            certify(net, rows[classes == c], delta, int(c), margin=MARGIN).robust.sum()
            for c in np.unique(classes)
        ]
        return sum(kept) / len(rows)

    low, high = 1e-5, 1.0
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if share(middle) >= 0.4 else (low, middle)
    return float(f"{low:.2g}")


def question(name: str, net: pp.Network, rows: np.ndarray, delta: float, rng) -> dict | None:
    """Draw a problem: a row to judge, a person, and the robust rows nearest to that person."""
    target = int(rng.integers(net.classes))
    robust = np.flatnonzero(certify(net, rows, delta, target, margin=2.0 * MARGIN).robust)
    refused = np.flatnonzero(net.predict(rows) != target)
    if len(robust) < VERTICES or not len(refused):
        return None
    person = rows[rng.choice(refused)]
    near = robust[np.argsort(np.abs(rows[robust] - person).mean(axis=1), kind="stable")]
    start, end = rows[rng.choice(refused)], rows[rng.choice(robust)]
    row = (start + rng.uniform(0.2, 1.0) * (end - start)).round(4)
    return {
        "network": name,
        "delta": delta,
        "target": target,
        "row": row.tolist(),
        "person": person.tolist(),
        "vertices": near[:VERTICES].tolist(),
    }


def solution(problem: dict, net: pp.Network, vertices: np.ndarray) -> tuple[dict, dict] | None:
    """Return the solution of a problem and its certificates; None if one is missing or long."""
    delta, target = problem["delta"], problem["target"]
    row, person = np.array(problem["row"]), np.array(problem["person"])
    lower, upper, worst = referees.ours(as_compared(problem, net))
    lifted, lift = with_lift(net, target, lower)
    wanted = lower + lift - 1e-9 * max(1.0, abs(lower))
    low_proof = certify(lifted, row[None], delta, target, margin=wanted, certificates=True)
    point, distance, bound = nearest(net, delta, target, person, vertices)
    if point is None:
        return None
    proof = certify(net, point[None], delta, target, margin=MARGIN, certificates=True)
    certificates = {"margin": low_proof.certificates[0], "nearest": proof.certificates[0]}
    if any(
        one is None or one.verdict != "robust" or len(one.text) > LARGEST
        for one in certificates.values()
    ):
        return None
    found = {
        "margin": [wanted - lift, upper],
        "preactivations": [z.tolist() for z in preactivations(worst, row)],
        "distance": [bound, distance],
        "point": point.tolist(),
    }
    return found, certificates


def as_compared(problem: dict, net: pp.Network) -> referees.Problem:
    """Return the first question of a problem as the comparison of methods takes it."""
    middle = [(np.array(layer.W), np.array(layer.bias)) for layer in net.layers]
    d = problem["delta"]
    low, high = ([(W + s * d, b + s * d) for W, b in middle] for s in (-1.0, 1.0))
    row = np.array(problem["row"])
    return referees.Problem("", middle, low, high, row, problem["target"], d)


def with_lift(net: pp.Network, target: int, margin: float) -> tuple[pp.Network, float]:
    """Return a network whose margins are larger by a constant, so that certificates can be written.

    The constant is what the output bias really gained, and no rounding error remains.
    """
    if margin >= 0.0:
        return net, 0.0
    (*rest, (W, b)) = [(layer.W, layer.bias.copy()) for layer in net.layers]
    sign = -1.0 if net.outputs == 1 and target == 0 else 1.0
    index = target if net.outputs > 1 else 0
    b[index] += sign * 2.0 ** math.ceil(math.log2(1.0 - margin))
    gained = sign * (b[index] - net.layers[-1].bias[index])
    return pp.Network([*rest, (W, b)]), float(gained)


def preactivations(layers: list, row: np.ndarray) -> list[np.ndarray]:
    """Return the pre-activations of every layer."""
    found, h = [], row
    for W, b in layers:
        found.append(W @ h + b)
        h = np.maximum(found[-1], 0.0)
    return found


def nearest(net, delta, target, person, vertices) -> tuple[np.ndarray | None, float, float]:
    """Return the nearest robust point, its distance, and a lower bound on any such distance.

    The search asks for slightly more than the margin, so that its point passes the test. Its bound would
    then hold for fewer points, so the bound is taken from a second search at a lower margin.
    """
    slack = 1e-7
    piece = ConvexPiece(
        vertices,
        np.full(len(person), -np.inf),
        np.full(len(person), np.inf),
        np.zeros((0, len(person))),
        np.zeros(0),
        np.zeros(0),
    )
    found = []
    for margin in (MARGIN, MARGIN - slack):
        member = Member(net, pp.Shifts.of(net, delta), margin=margin)
        distance = L1(np.full(len(person), 1.0 / len(person)))
        problem = SearchProblem(Guarantee((member,)), target, person, distance, slack)
        found.append(tree.solve(problem, piece, deadline=time.monotonic() + LIMIT))
    if any(outcome.status != "optimal" for outcome in found):
        return None, math.inf, 0.0
    point = found[0].point
    return point, float(np.abs(point - person).mean()), found[1].lower


def make(path: Path, each: int = EACH, networks=NETWORKS) -> None:
    """Make the archive."""
    problems, solutions, files = [], {}, {}
    for number, (data, widths) in enumerate(networks):
        name = f"{data}-{len(widths)}x{widths[0]}"
        net, rows = trained(data, widths)
        delta = chosen_delta(net, rows)
        arrays = {"rows": rows}
        for i, layer in enumerate(net.layers):
            arrays |= {f"W{i}": layer.W, f"b{i}": layer.bias}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        files[f"networks/{name}.npz"] = buffer.getvalue()
        rng, count, tries = np.random.default_rng([0, number]), 0, 0
        while count < each and tries < 10 * each:
            tries += 1
            problem = question(name, net, rows, delta, rng)
            if problem is None:
                continue
            vertices = np.vstack([problem["person"], rows[problem["vertices"]]])
            solved = solution(problem, net, vertices)
            if solved is None:
                continue
            key = f"{name}-{count:02}"
            problems.append({"id": key} | problem)
            solutions[key], certificates = solved
            for kind, proof in certificates.items():
                files[f"certificates/{key}-{kind}.json"] = proof.text.encode() + b"\n"
            count += 1
        print(f"{name}: delta {delta:g}, {count} problems of {tries} tries", flush=True)
    files["problems.json"] = json.dumps(problems, indent=0).encode()
    files["solutions.json"] = json.dumps(solutions, indent=0).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)
    print(f"{path}: {len(problems)} problems, {path.stat().st_size:,} bytes")


# -- check -----------------------------------------------------------------------------------------


def wrong_proofs(challenge: Challenge, problems: list[dict]) -> list[str]:
    """Verify the solutions of some problems in exact arithmetic, and return all faults."""
    faults = []
    for problem in problems:
        key, target, delta = problem["id"], problem["target"], problem["delta"]
        found, net = challenge.solutions[key], challenge.networks[problem["network"]][0]
        lower, upper = found["margin"]
        compared = as_compared(problem, net)
        worst = referees.network_of(compared, [np.array(z) for z in found["preactivations"]])
        attained = float(referees.exact_margin(compared, worst)[0])
        if not lower <= upper <= lower + 1e-8 * max(1.0, abs(lower)):
            faults.append(f"{key}: the ends of the margin are {lower!r} and {upper!r}")
        if attained > upper + referees.ROUNDING * max(1.0, abs(upper)):
            faults.append(f"{key}: the worst shift has a margin of {attained!r}, not {upper!r}")
        lifted, lift = with_lift(net, target, lower)
        parts = (("margin", lifted, lower + lift, problem["row"]),)
        parts += (("nearest", net, MARGIN, found["point"]),)
        for kind, network, margin, x in parts:
            proof = Certificate(challenge.files[f"certificates/{key}-{kind}.json"].decode().strip())
            verdict = proof.check(network)
            proved = verdict.statement
            radii = [(delta, delta)] * len(net.layers)
            if not (
                verdict.accepted
                and proof.verdict == "robust"
                and proved.target == target
                and proved.input == x
                and proved.margin >= margin - 1e-12
                and all(
                    tuple(pair) >= wanted for pair, wanted in zip(proved.delta, radii, strict=True)
                )
            ):
                faults.append(f"{key}: the certificate of {kind} proves {verdict.reason}")
        answer = judge(challenge, problem, {"margin": upper, "point": found["point"]})
        if answer.margin != "exact" or answer.share < 1.0 - TOLERANCE:
            faults.append(f"{key}: the solution scores {answer}")
    return faults


# -- score -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """The verdicts about one answer.

    ``margin`` is exact, low (a sound bound), high (a false claim) or missing; ``point`` is accepted, not
    robust, outside (the hull) or missing; ``share`` is the optimal distance over that of the point.
    """

    margin: str
    point: str
    share: float


def judge(challenge: Challenge, problem: dict, answer: dict) -> Judgement:
    """Compare one answer with the solution."""
    found = challenge.solutions[problem["id"]]
    given, (lower, upper) = answer.get("margin"), found["margin"]
    allowed = TOLERANCE * max(1.0, abs(upper))
    if given is None or not math.isfinite(given):
        margin = "missing"
    elif given > upper + allowed:
        margin = "high"
    else:
        margin = "exact" if given >= lower - allowed else "low"
    if answer.get("point") is None:
        return Judgement(margin, "missing", 0.0)
    net, point = challenge.networks[problem["network"]][0], np.array(answer["point"], dtype=float)
    if point.shape != (net.inputs,) or not np.isfinite(point).all():
        return Judgement(margin, "missing", 0.0)
    if not in_hull(challenge.vertices(problem), point):
        return Judgement(margin, "outside", 0.0)
    least = MARGIN - NEAR
    if not certify(net, point[None], problem["delta"], problem["target"], margin=least).robust[0]:
        return Judgement(margin, "not robust", 0.0)
    distance = float(np.abs(point - problem["person"]).mean())
    return Judgement(margin, "accepted", min(1.0, found["distance"][1] / distance))


def in_hull(vertices: np.ndarray, point: np.ndarray) -> bool:
    """Test if a mixture of the vertices is the point, up to the tolerance in every column."""
    count, columns = vertices.shape
    away = np.ones((columns, 1))
    system = np.block([[vertices.T, -away], [-vertices.T, -away]])
    found = linprog(
        np.append(np.zeros(count), 1.0),
        A_ub=system,
        b_ub=np.concatenate([point, -point]),
        A_eq=np.append(np.ones(count), 0.0)[None],
        b_eq=[1.0],
    )
    return bool(found.success and found.fun <= TOLERANCE)


def score(challenge: Challenge, answers: dict[str, dict], problems: list[dict]) -> str:
    """Return the table of scores, one line per network and one for all."""
    verdicts = {p["id"]: judge(challenge, p, answers.get(p["id"], {})) for p in problems}
    groups: dict[str, list[Judgement]] = {}
    for problem in problems:
        groups.setdefault(problem["network"], []).append(verdicts[problem["id"]])
    groups["all"] = list(verdicts.values())
    lines = [
        "| network | problems | margins: score | low | high | missing | points: score | not robust "
        "| outside | missing |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in groups.items():
        margins = [one.margin for one in group]
        points = [one.point for one in group]
        exact, share = (
            margins.count("exact") / len(group),
            sum(one.share for one in group) / len(group),
        )
        counts = [margins.count(kind) for kind in ("low", "high", "missing")]
        others = [points.count(kind) for kind in ("not robust", "outside", "missing")]
        cells = [name, len(group), f"{exact:.3f}", *counts, f"{share:.3f}", *others]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Make, check or score."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("make", help="make the archive")
    made.add_argument("--out", type=Path, default=ARCHIVE)
    for name, text in (("check", "verify all proofs"), ("score", "score answers")):
        command = commands.add_parser(name, help=text)
        if name == "score":
            command.add_argument("answers", type=Path)
        command.add_argument("--archive", type=Path, default=ARCHIVE)
    options = parser.parse_args()
    if options.command == "make":
        make(options.out)
        return
    challenge = Challenge(options.archive)
    if options.command == "score":
        answers = json.loads(options.answers.read_text(encoding="utf-8"))
        print(score(challenge, answers, challenge.problems))
        return
    faults = wrong_proofs(challenge, challenge.problems)
    print("\n".join([*faults, f"{len(challenge.problems)} problems, {len(faults)} faults"]))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
