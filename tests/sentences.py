"""Read sentences back, and compare what they claim with what is true in exact arithmetic.

    PYTHONPATH=tests:src python -m sentences 100000

explains generated people with tiny networks, reads every sentence by its words alone, and prints how
many sentences of each kind there were and how many claim more than was proved. A claim is a set of
inputs and a shift set. It is compared twice: with what was proved, and with the smallest margin over all
its inputs and networks, in rational numbers.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import re
import warnings
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pandas as pd

import proplace as pp

# -- reading ---------------------------------------------------------------------------------------

_NUMBER = r"-?\$?-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?…?"
_SENTENCE = re.compile(
    r"(?P<subject>The loan) would (?P<also>also )?have been (?P<outcome>.+?) with (?P<changes>.+?)\. "
    r"(?P<rest>(?:This is|It is not) .*)",
    re.S,
)
_VALID = re.compile(r"The loan would be (?P<outcome>.+?) without any change\. (?P<rest>.*)", re.S)
_FIXED = re.compile(r"The loan would not be (?P<outcome>.+?) after any change within the declared ")
_PROVED = re.compile(
    r"This is proved for (?P<values>all such values|all these values together)?"
    r"(?: within the declared ranges? \((?P<within>.+?)\))?(?: and for )?every model whose weights and "
    r"biases each differ from the current model by at most (?P<radius>[\d.e-]+?)\.(?: |$)"
)

_SHOWN = re.compile(
    r"This is shown for (?P<values>all such values|all these values together)?"
    r"(?: within the declared ranges? \((?P<within>.+?)\))?(?: and for )?the current model only: "
)
_UNCHANGED = re.compile(r"The same is proved with (?P<ranges>.+?)\.(?: [A-Z]|$)")
_USUAL = re.compile(
    r"(?:With (?P<values>[^:]+?), the person would be|These values are) (?P<word>typical of|unusual "
    r"among) accepted people \(plausibility (?P<share>\d+)%\)\."
)


@dataclass
class Change:
    """A change as a reader understands it: a value, values between two ends, or a name."""

    low: Fraction | None = None
    high: Fraction | None = None
    cut: bool = False
    label: str | None = None
    one_sided: bool = False
    words: str = ""


@dataclass
class Reading:
    """The claim of a sentence, as a reader understands it."""

    outcome: str
    radius: Fraction | None  # None: nothing is proved
    changes: dict[str, Change] = field(default_factory=dict)
    whole: bool = True  # all changes are named
    count: int | None = None
    ranged: bool = False
    within: str = ""  # the declared ranges that are named
    fixed: bool = False
    declared: dict[str, list] = field(default_factory=dict)
    unchanged: dict[str, Change] = field(default_factory=dict)
    usual: re.Match | None = None


def fraction(text):
    """Read a number as it is written."""
    return Fraction(re.sub(r"[,$…%]", "", text))


def read_goal(words):
    """Read the goal of one change by its words alone."""
    if words.startswith("“"):
        return Change(label=words.strip("“”"), words="name")
    numbers = re.findall(_NUMBER, words)
    low = fraction(numbers[0])
    if words.startswith("at least"):
        return Change(low, one_sided=True, words="at least")
    if words.startswith("at most"):
        return Change(high=low, one_sided=True, words="at most")
    if words.startswith("between "):
        return Change(low, fraction(numbers[1]), words="between")
    if "give or take" in words:
        room = fraction(numbers[1])
        return Change(low - room, low + room, words="give or take")
    cut = numbers[0].endswith("…")
    return Change(low, low, cut=cut, words="cut value" if cut else "value")


def read(sentence, features):
    """Read a sentence. None if it claims nothing about inputs."""
    titles = {f.label or f.name: f for f in features}
    if found := _FIXED.match(sentence):
        return Reading(found["outcome"], Fraction(0), fixed=True)
    if found := _VALID.match(sentence):
        return Reading(found["outcome"], radius_of(found["rest"])[0])
    found = _SENTENCE.match(sentence)
    if found is None:
        return None
    radius, ranged, within = radius_of(found["rest"])
    text = found["changes"]
    reading = Reading(found["outcome"], radius, ranged=ranged, within=within)
    reading.usual = _USUAL.search(found["rest"])
    if start := re.match(r"(\d+|one) changes?: ", text):
        reading.count = 1 if start[1] == "one" else int(start[1])
        text = text[start.end() :]
    if start := re.match(r"(\d+) changes together; the largest are ", text):
        reading.count, reading.whole = int(start[1]), False
        text = text[start.end() :]
    names = "|".join(sorted(map(re.escape, titles), key=len, reverse=True))
    one = re.compile(
        rf"(?:the answer (?P<flag>yes|no) to “(?P<about>{names})”"
        rf"|(?P<title>{names}) (?:of )?(?P<goal>.+?))"
        r" \(today: (?P<old>[^)]*)\)(?:, | and |$)"
    )
    while text:
        change = one.match(text)
        if change is None:
            raise ValueError(f"cannot read {text!r}")
        if change["flag"]:
            reading.changes[titles[change["about"]].name] = Change(
                label=change["flag"], words="yes/no"
            )
        else:
            feature = titles[change["title"]]
            reading.changes[feature.name] = read_goal(change["goal"])
        text = text[change.end() :]
    named = _UNCHANGED.search(found["rest"])
    for title, low, high in ranges_of(named["ranges"], names) if named else []:
        reading.unchanged[titles[title].name] = Change(low, high, words="unchanged")
    ends = {titles[title].name: ends for title, *ends in ranges_of(within, names)}
    sided = {name: change for name, change in reading.changes.items() if change.one_sided}
    if len(sided) == 1 and within:
        ends = {next(iter(sided)): [fraction(n) for n in re.findall(_NUMBER, within)]}
    reading.declared = ends
    for name, change in sided.items():
        low, high = ends.get(name, (None, None))
        change.low = low if change.words == "at most" else change.low
        change.high = high if change.words == "at least" else change.high
    return reading


def ranges_of(text, names):
    """Read names and ends of ranges."""
    found = re.findall(rf"({names}) ({_NUMBER})%? to ({_NUMBER})", text)
    return [(title, fraction(low), fraction(high)) for title, low, high in found]


def radius_of(rest):
    """Read for which models something is proved: the radius, and if it is about ranges."""
    if found := _PROVED.match(rest):
        return fraction(found["radius"]), bool(found["values"]), found["within"] or ""
    if found := _SHOWN.match(rest):
        return Fraction(0), bool(found["values"]), found["within"] or ""
    return None, False, ""


# -- the exact oracle ------------------------------------------------------------------------------


def exact(value):
    return Fraction(float(value))


class Oracle:
    """Smallest and largest margins of class 1 over a shift set and a box, in rational numbers.

    For networks without a hidden layer, or with one. Given an input, the extreme margin over the shift
    set has a closed form. It is linear between the planes where a pre-activation or an input changes its
    sign, so its minimum over a box lies where such planes meet.
    """

    def __init__(self, net):
        self.layers = [
            ([[exact(v) for v in row] for row in layer.W], [exact(v) for v in layer.b])
            for layer in net.layers
        ]

    def margin(self, x, radius, sign=1):
        """Smallest (or with sign -1 the negated largest) logit at one input."""
        low = high = x
        size = len(self.layers)
        for number, (W, b) in enumerate(self.layers, 1):
            ends = []
            for row, bias in zip(W, b, strict=True):
                least = most = bias
                least, most = least - radius, most + radius
                for w, below, above in zip(row, low, high, strict=True):
                    corners = [v * u for v in (w - radius, w + radius) for u in {below, above}]
                    least, most = least + min(corners), most + max(corners)
                ends.append((least, most))
            if number == size:
                return ends[0][0] if sign == 1 else -ends[0][1]
            low = [max(least, Fraction(0)) for least, _ in ends]
            high = [max(most, Fraction(0)) for _, most in ends]
        raise AssertionError

    def least(self, low, high, radius):
        """Smallest margin over a box."""
        free = [j for j, (a, b) in enumerate(zip(low, high, strict=True)) if a < b]
        if len(self.layers) == 1:
            (W, b), total = self.layers[0], Fraction(0)
            for w, below, above in zip(W[0], low, high, strict=True):
                total += min(v * u for v in (w - radius, w + radius) for u in (below, above))
            return total + b[0] - radius
        best = None
        for point in self._corners(low, high, free, radius):
            margin = self.margin(point, radius)
            best = margin if best is None else min(best, margin)
        return best

    def most(self, low, high, radius):
        """Largest margin over a box, of a network without a hidden layer."""
        ((W, b),) = self.layers
        total = b[0] + radius
        for w, below, above in zip(W[0], low, high, strict=True):
            total += max(v * u for v in (w - radius, w + radius) for u in (below, above))
        return total

    def _corners(self, low, high, free, radius):
        """Every point of a box in which as many planes meet as there are free inputs."""
        planes = [
            ([Fraction(int(j == i)) for i in free], end[j]) for j in free for end in (low, high)
        ]
        planes += [
            ([Fraction(int(j == i)) for i in free], Fraction(0))
            for j in free
            if low[j] < 0 < high[j]
        ]
        W, b = self.layers[0]
        signs = [
            (-1, 1) if low[j] < 0 < high[j] else ((1,) if low[j] >= 0 else (-1,)) for j in free
        ]
        for (row, bias), way in itertools.product(zip(W, b, strict=True), (-1, 1)):
            still = sum(
                (w * v + way * radius * abs(v) for j, (w, v) in enumerate(zip(row, low, strict=True))
                 if j not in free), bias + way * radius,
            )  # fmt: skip
            for sign in itertools.product(*signs):
                normal = [row[j] + way * radius * s for j, s in zip(free, sign, strict=True)]
                planes.append((normal, -still))
        for chosen in itertools.combinations(planes, len(free)):
            solved = _solved(chosen)
            if solved is None:
                continue
            point = list(low)
            for j, value in zip(free, solved, strict=True):
                point[j] = value
            if all(low[j] <= point[j] <= high[j] for j in free):
                yield point


def _solved(planes):
    """Solve a small linear system in rational numbers. None without exactly one solution."""
    rows = [[*normal, right] for normal, right in planes]
    size = len(rows)
    for i in range(size):
        pivot = next((r for r in range(i, size) if rows[r][i] != 0), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for r in range(size):
            if r != i and rows[r][i] != 0:
                factor = rows[r][i]
                rows[r] = [a - factor * c for a, c in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]


# -- judging ---------------------------------------------------------------------------------------


class Judge:
    """Compares sentences about one explainer's people with what was proved and what is true."""

    def __init__(self, explainer, wording, accepted):
        self.features = explainer.schema_.features
        self.schema, self.radius = explainer.schema_, exact(explainer.delta)
        self.oracle = Oracle(explainer.net_)
        self.outcome = wording.outcomes[accepted]
        self._true = []

    def faults(self, sentence, e):
        """Return the error of a sentence about an explanation. Empty without an error."""
        reading = read(sentence, self.features)
        if reading is None:
            return []
        if reading.radius is None:
            ranged = any(c.label is None and c.low < c.high for c in reading.changes.values())
            return ["ranges that are not proved"] if ranged else []
        wrong = [] if reading.outcome == self.outcome else ["another outcome"]
        if reading.fixed:
            return wrong + self._not_fixed(e)
        if reading.radius > self.radius:
            wrong.append("more networks than were proved")
        if reading.count is not None and reading.count != len(e.changes_by_feature):
            wrong.append("another number of changes")
        if reading.whole and set(reading.changes) != {str(n) for n in e.changes_by_feature}:
            wrong.append("other changes")
        wrong += [
            f"{name} up to an end that is not named"
            for name, change in reading.changes.items()
            if change.label is None and None in (change.low, change.high)
        ]
        if wrong:
            return wrong
        wrong = self._not_declared(reading) + self._not_measured(reading, e)
        return wrong + self._not_true(reading, e) + self._not_proved(reading, e)

    def _not_declared(self, reading):
        """Return the declared ranges that are named wider than they are."""
        features = self.schema.by_name
        return [
            f"a declared range of {name}"
            for name, (low, high) in reading.declared.items()
            if not features[name].lower <= low <= high <= features[name].upper
        ]

    def _not_measured(self, reading, e):
        """Return what is wrong with the statement about plausibility."""
        usual = reading.usual
        if usual is None:
            return []
        wrong = []
        share = Fraction(int(usual["share"]), 100)
        if (usual["word"] == "typical of") != e.typical or share > e.plausibility + 1e-9:
            wrong.append("another plausibility")
        ranged = {n for n, c in reading.changes.items() if c.label is None and c.low < c.high}
        titles = {f.label or f.name: f.name for f in self.features}
        names = "|".join(sorted(map(re.escape, titles), key=len, reverse=True))
        values = re.findall(rf"({names}) ({_NUMBER})", usual["values"] or "")
        if not ranged <= {titles[title] for title, _ in values}:
            wrong.append("plausibility of a range")
        wrong += [
            f"plausibility at another {title}"
            for title, value in values
            if not _writes(value, Fraction(repr(float(e.counterfactual[titles[title]]))))
        ]
        return wrong

    def _not_proved(self, reading, e):
        wrong = [
            f"{name} does change" for name in reading.unchanged if name in e.changes_by_feature
        ]
        for name, change in (reading.changes | reading.unchanged).items():
            feature, after = self.schema.by_name[name], e.counterfactual[name]
            if change.label is not None:
                values = getattr(feature, "values", ())
                said = after if change.words == "name" else ("no", "yes")[list(values).index(after)]
                wrong += [] if str(said) == change.label else [f"another name of {name}"]
                continue
            value = Fraction(repr(float(after)))
            low, high = e.guaranteed_ranges.get(name, (after, after))
            if change.one_sided and feature.is_drafted:
                wrong.append(f"{name} up to an end that nobody declared")
            if change.cut:
                wrong += [] if _cuts(change.low, value) else [f"other digits of {name}"]
            elif (
                not Fraction(repr(float(low)))
                <= change.low
                <= change.high
                <= Fraction(repr(float(high)))
            ):
                wrong.append(f"more of {name} than was proved")
            if change.low < change.high and not reading.ranged and name in reading.changes:
                wrong.append(f"a range of {name} that is not said to be proved")
        return wrong

    def _not_true(self, reading, e):
        low = [exact(v) for v in e.encoded_counterfactual]
        high = list(low)
        for name, change in (reading.changes | reading.unchanged).items():
            feature, j = self.schema.by_name[name], self.schema.span(name).start
            if change.label is None and not change.cut:
                ends = [
                    (v - exact(feature.offset)) / exact(feature.scale)
                    for v in (change.low, change.high)
                ]
                if change.low < change.high:
                    low[j], high[j] = ends
        if any(
            e2 is e and radius >= reading.radius and _within(low, high, box)
            for e2, radius, box in self._true
        ):
            return []
        if self.oracle.least(low, high, reading.radius) < 0:
            return ["inputs or networks that refuse"]
        self._true = [(e, reading.radius, (low, high)), *self._true[:3]]
        return []

    def _not_fixed(self, e):
        if any(isinstance(f, pp.Continuous) and f.is_drafted for f in self.features):
            return ["fixed without declared ranges"]
        if len(self.oracle.layers) > 1:
            return []
        x = [exact(v) for v in e.encoded_original]
        low, high = ([exact(v) for v in ends] for ends in (self.schema.lower, self.schema.upper))
        low, high = (
            [min(*p) for p in zip(x, low, strict=True)],
            [max(*p) for p in zip(x, high, strict=True)],
        )
        for j, column in enumerate(self.schema.columns):
            if self.schema.features[column.feature].immutable:
                low[j] = high[j] = x[j]
        spans = [self.schema.span(f.name) for f in self.features if isinstance(f, pp.Categorical)]
        for chosen in itertools.product(*[range(span.start, span.stop) for span in spans]):
            for span, one in zip(spans, chosen, strict=True):
                for j in range(span.start, span.stop):
                    low[j] = high[j] = Fraction(int(j == one))
            if self.oracle.most(low, high, self.radius) >= 0:
                return ["an input that is accepted"]
        return []


def _writes(text, value):
    """Test if a text is a number, or its first digits and “…”."""
    return _cuts(fraction(text), value) if text.endswith("…") else fraction(text) == value


def _cuts(first, value):
    return 0 < abs(value) - abs(first) < Fraction(1, 100_000) * max(1, abs(value))


def _within(low, high, box):
    return all(a >= c for a, c in zip(low, box[0], strict=True)) and all(
        b <= d for b, d in zip(high, box[1], strict=True)
    )


# -- people ----------------------------------------------------------------------------------------

LABELS = [(0, 1), ("approved", "refused"), (False, True)]


class World:
    """A tiny network, features of every kind, and people inside and outside of their ranges."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.drafted, self.labels = bool(seed % 2), LABELS[seed % 3]
        many = seed % 5 == 0
        numbers = [
            self._number(f"n{i}", seed + i) for i in range(7 if many else rng.integers(2, 4))
        ]
        others = [pp.Binary("home", label="owns a home"), pp.Categorical("job", ["cook", "clerk"])]
        if seed % 4 == 1:
            others[0] = pp.Binary("home", label="owns a home", immutable=True)
        self.schema = pp.Schema([*numbers, *(others[: rng.integers(0, 3)])])
        width = self.schema.width
        hidden = 0 if many or seed % 3 == 0 else 2
        layers, inputs = [], width
        if hidden:
            layers, inputs = (
                [(rng.normal(0, 1, (hidden, width)), rng.normal(0, 0.3, hidden))],
                hidden,
            )
        last = rng.normal(0, 1, (1, inputs))
        bias = -3.0 if seed % 7 == 0 else float(rng.normal(-0.2, 0.3))
        self.net = pp.Network([*layers, (last, [bias])])
        self.delta = 0.0 if seed % 11 == 0 else float(rng.choice([0.001, 0.01, 0.02, 0.0193]))
        self.target = self.labels[1]
        self.wording = pp.Wording(
            "the loan", {self.labels[0]: "turned down", self.labels[1]: "granted"}
        )

    def _number(self, name, seed):
        rng = self.rng
        lower, upper, step, unit = [
            (0, 100, 1, "% of income"), (0, 200_000, 500, "$"), (18, 90, 1, "years"), (0, 1, None, None),
            (0, 5000, None, "dollars"), (-10, 10, 0.5, None),
        ][rng.integers(6)]  # fmt: skip
        missing = float(rng.integers(lower, upper + 1)) if seed % 4 == 0 else None
        if missing is not None and step is not None:
            missing = lower + step * round((missing - lower) / step)
        return pp.Continuous(
            name, lower, upper, step=step, unit=unit, missing=missing,
            drafted=(lower, upper) if self.drafted else None,
            label=f"the {name}",
        )  # fmt: skip

    def rows(self, count, *, outside=False):
        rng, cells = self.rng, {}
        for f in self.schema.features:
            if isinstance(f, pp.Continuous):
                room = 0.2 * (f.upper - f.lower) if outside else 0.0
                values = rng.uniform(f.lower - room, f.upper + room, count)
                if f.step is not None:
                    values = f.lower + f.step * np.round((values - f.lower) / f.step)
                cells[f.name] = values
                if outside and f.missing is not None:
                    cells[f.name] = np.where(rng.random(count) < 0.3, np.nan, values)
            else:
                cells[f.name] = rng.choice(list(getattr(f, "categories", (0, 1))), count)
        return pd.DataFrame(cells)

    def explained(self, people=30):
        """Yield explanations of some people, with several requests."""
        model = replace(pp.Model.of(self.net), classes=self.labels).with_schema(self.schema)
        explainer = pp.Proplace(model, self.delta, k=5, time_limit=None)
        explainer.fit(self.rows(60))
        self.judge = Judge(explainer, self.wording, self.target)
        table = self.rows(people, outside=True)
        numbers = [f for f in self.schema.features if isinstance(f, pp.Continuous)]
        first = numbers[0]
        tolerance = {first.name: 3 * (first.step or 0.01 * (first.upper - first.lower))}
        third = people // 3
        for part, wishes in (
            (table[:third], {"count": 2}),
            (table[third : 2 * third], {"prefer": "sparse"}),
            (table[2 * third :], {"tolerance": tolerance}),
        ):
            for e in explainer.explain(part, self.target, **wishes):
                yield e, wishes

    def variants(self, e, count):
        """Yield an explanation, and others of which less was proved: that is proved, too."""
        yield e
        if not e.found:
            return
        for _ in range(count):
            ranges = {}
            for name, (low, high) in e.guaranteed_ranges.items():
                after, kind = float(e.counterfactual[name]), self.rng.integers(5)
                if kind == 4:
                    continue
                share = self.rng.random(2)
                below = after - low if kind in (0, 1) else (after - low) * share[0]
                above = high - after if kind in (0, 2) else (high - after) * share[1]
                if kind == 3 and e.changes_by_feature.get(name):
                    below = above = min(after - low, high - after) * share[0] or above
                ranges[name] = max(low, after - below), min(high, after + above)
            yield replace(e, guaranteed_ranges=ranges)
        if self.rng.random() < 0.1:
            yield replace(e, margin=np.nan, certificate=None)


# -- counting --------------------------------------------------------------------------------------


def kinds(sentence, e, wishes, world):
    """Return the kinds of a sentence."""
    found = {e.status, f"labels {world.labels!r}", "drafted" if world.drafted else "declared"}
    reading = read(sentence, world.schema.features)
    if reading is not None:
        found |= {change.words for change in reading.changes.values()}
        found |= {"unchanged with tolerance"} if reading.unchanged else set()
        found |= {"plausibility"} if reading.usual else set()
        found |= set() if reading.whole else {"more than five changes"}
        found |= {"nothing proved"} if reading.radius is None else set()
        found |= {"one model"} if reading.radius == 0 and not reading.fixed else set()
        found |= {"together"} if " together" in sentence and reading.whole else set()
        found |= {"hidden layer"} if len(world.net.layers) > 1 else set()
    found |= {"alternative"} if "also have been" in sentence else set()
    found |= {"missing cell"} if e.imputed else set()
    found |= set(wishes) - {"count"}
    if e.original is not None and e.found:
        features = world.schema.by_name
        outside = [
            n for n, f in features.items() if isinstance(f, pp.Continuous)
            and not f.lower <= float(e.original[n]) <= f.upper
        ]  # fmt: skip
        found |= {"outside of a range"} if outside else set()
    return found


def run(sentences, seed=0, variants=4, people=30):
    """Check some sentences. Return counts by kind, and the false ones."""
    counts, wrong, total = collections.Counter(), [], 0
    for number in itertools.count(seed):
        world = World(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list(world.explained(people))
        for e, wishes in found:
            for one in world.variants(e, variants):
                sentence = one.describe(world.wording).sentence
                faults = world.judge.faults(sentence, one)
                counts.update(kinds(sentence, one, wishes, world))
                wrong += [(number, sentence, faults)] if faults else []
                total += 1
                if total >= sentences:
                    return total, counts, wrong
    raise AssertionError


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sentences", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    total, counts, wrong = run(given.sentences, given.seed)
    for kind, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:>8,}  {kind}")
    for number, sentence, faults in wrong[:10]:
        print(f"world {number}: {faults}: {sentence}")
    print(f"{total:,} sentences, {len(wrong):,} claim more than was proved")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
