"""The models that are served, and what can be asked of them in an instant."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.apps.cli import common
from proplace.core.errors import InputError, OptionError
from proplace.explain.answer_facts import answer_facts
from proplace.explain.geometry import no_region
from proplace.explain.proplace import Proplace
from proplace.explain.robustness import certify
from proplace.explain.words import Terms, Wording
from proplace.schema import Binary, Continuous, Ordinal, files
from proplace.schema.cells import as_json
from proplace.schema.validation import did_you_mean, listing
from proplace.tables.files import open_table, typed_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from proplace.apps.serve.config import Config, Served
    from proplace.apps.serve.questions import Options, Person
    from proplace.core.network import Array
    from proplace.core.shifts import Shifts
    from proplace.explain.results import Explanation, Explanations
    from proplace.loaders.model import Model
    from proplace.schema.rules import AnyFeature
    from proplace.schema.validation import Label

    ObjectArray = npt.NDArray[np.object_]

_REMEMBERED = 8  # explainers with other options that a process keeps


@dataclass(eq=False)
class Engine:
    """One model that is served.

    Attributes
    ----------
    name
        Its name.
    model
        The model, with its schema.
    delta
        The set of networks for which answers are proved.
    train
        The training rows in original units.
    target
        Label of the wanted class.
    wording
        What to call things.
    people
        People who can be looked up by their id, as index; None where there are none.
    """

    name: str
    model: Model
    delta: float | Shifts
    train: pd.DataFrame
    target: Label
    wording: Wording
    people: pd.DataFrame | None = None
    _explainers: OrderedDict[str, Proplace] = field(default_factory=OrderedDict, repr=False)

    # -- what it is ------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """The model in a few words, as JSON."""
        delta = self.delta if isinstance(self.delta, float) else None
        return {
            "name": self.name,
            "model": self.model.origin.name,
            "file_digest": self.model.origin.digest,
            "network": repr(self.model.network),
            "classes": list(self.model.classes),
            "target": self.target,
            "delta": delta,
            "shifts": None if isinstance(self.delta, float) else self.delta.digest,
            "features": len(self.model.schema.features),
            "training_rows": len(self.train),
        }

    def schema_facts(self) -> dict[str, Any]:
        """Features and rules, as a schema file has them."""
        schema = self.model.schema
        return {
            "features": [files.plain(feature) for feature in schema.features],
            "rules": [files.plain(rule) for rule in schema.rules],
        }

    # -- people ----------------------------------------------------------------------------------

    def frame(self, people: Sequence[Person]) -> pd.DataFrame:
        """People as a table; an InputError says which value of whom is wrong."""
        return self._read(people)[0]

    def _read(self, people: Sequence[Person]) -> tuple[pd.DataFrame, Array]:
        """People as a table, and as the network sees them."""
        schema, known = self.model.schema, self.model.schema.by_name
        for number, person in enumerate(people):
            for name in person:
                if name not in known:
                    raise InputError(
                        f"person {number}: {name!r} is no feature{did_you_mean(name, known)}; the "
                        f"features are {listing(list(known))}"
                    )
            missing = [n for n, f in known.items() if n not in person and f.missing is None]
            if missing:
                raise InputError(f"person {number}: no value for {listing(missing)}")
        columns = {
            name: _column([person.get(name) for person in people], feature)
            for name, feature in known.items()
        }
        frame = pd.DataFrame(columns)
        rows, problems = schema.encode_people(frame)
        if problems:
            number, problem = next(iter(problems.items()))
            raise InputError(f"person {number}: {problem.reason}")
        return frame, rows

    def person(self, number: str) -> dict[str, Any] | None:
        """Somebody who can be looked up."""
        if self.people is None or number not in self.people.index:
            return None
        row = self.people.loc[number]
        return {name: as_json(row[name]) for name in self.model.schema.by_name}

    # -- in an instant ---------------------------------------------------------------------------

    def predict(self, people: Sequence[Person]) -> list[dict[str, Any]]:
        """Today's decision of each person, and how clear it is."""
        frame, rows = self._read(people)
        labels = self._labels(frame, rows)
        number = self.model.target(self.target)
        margins = self.model.network.margin(rows, number)
        return [
            {"label": as_json(label), "accepted": label == self.target, "margin": float(margin)}
            for label, margin in zip(labels, margins, strict=True)
        ]

    def certify(self, people: Sequence[Person], target: Label | None) -> list[dict[str, Any]]:
        """Whether every network of the set gives each person the class, and by which margin."""
        frame, rows = self._read(people)
        wanted = self.target if target is None else target
        given = frame if self.model.preprocesses else rows  # reading a table again takes long
        found = certify(self.model, given, self.delta, wanted, time_limit=5.0)
        labels = self._labels(frame, rows)
        return [
            {
                "label": as_json(labels[n]),
                "accepted": bool(labels[n] == wanted),
                "robust": None if found.undecided[n] else bool(found.robust[n]),
                "margin": float(found.lower[n]),
            }
            for n in range(len(frame))
        ]

    def _labels(self, frame: pd.DataFrame, rows: Array) -> Sequence[Label]:
        """Label of each person by the model itself; by the network where it is not at hand."""
        said = self.model.original(frame)
        if said is not None:
            return list(said)
        return [self.model.classes[number] for number in self.model.network.predict(rows)]

    # -- searches: in a worker -------------------------------------------------------------------

    def explain(
        self, people: Sequence[Person], options: Options, seconds: float, *, pictures: bool = False
    ) -> list[list[dict[str, Any]]]:
        """Answers of each person, as JSON; with ``pictures`` a map of each, as data addresses."""
        result = self.explanations(people, options, seconds)
        answers: list[list[dict[str, Any]]] = [[] for _ in people]
        for e in result:
            facts = self._facts(e, result)
            if pictures:
                facts["picture"] = self._picture(e, result)
            answers[int(str(e.index))].append(facts)
        return answers

    def explanations(
        self, people: Sequence[Person], options: Options, seconds: float
    ) -> Explanations:
        """Answers of people, whose index is their place."""
        explainer = self._explainer(options)
        explainer.time_limit = seconds
        target = self.target if options.target is None else options.target
        return explainer.explain(self.frame(people), target, count=options.count)

    def _explainer(self, options: Options) -> Proplace:
        """An explainer with these options, fitted; the last few are kept."""
        asked = self._parameters(options)
        key = repr(sorted(asked.items()))
        if key not in self._explainers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._explainers[key] = Proplace(self.model, self.delta, **asked).fit(self.train)
            while len(self._explainers) > _REMEMBERED:
                self._explainers.popitem(last=False)
        self._explainers.move_to_end(key)
        return self._explainers[key]

    def _parameters(self, options: Options) -> dict[str, Any]:
        known = self.model.schema.by_name
        for name in (*options.locked, *(options.changeable or ())):
            if name not in known:
                raise OptionError(f"{name!r} is no feature{did_you_mean(name, known)}")
        free = options.changeable
        if options.locked:
            free = [n for n in (known if free is None else free) if n not in options.locked]
            free = [n for n in free if not known[n].immutable]
        if free is not None and not free:
            raise OptionError("nothing is left that may change; unlock a feature")
        fields = ("prefer", "max_changes", "tolerance", "holds", "effort", "max_effort", "region")
        return {name: getattr(options, name) for name in fields} | {"changeable": free}

    def _picture(self, e: Explanation, result: Explanations) -> dict[str, Any] | None:
        """Where the person and the answer lie; None where there is nothing to see, or to draw with."""
        from proplace.apps.report import pictures  # noqa: PLC0415  (only a page has them)

        if not e.found or e.point is None or e.setting is None:
            return None
        terms = Terms.of(result, self.wording)
        view = None if no_region(e) else pictures.region_view(e, None, terms)
        view = view or pictures.categories_view(e, terms)
        return None if view is None else asdict(view)

    def _facts(self, e: Explanation, result: Explanations) -> dict[str, Any]:
        assert result.provenance is not None  # noqa: S101  (an explainer made it)
        words = e.words(self.wording)
        facts = answer_facts(e, result.provenance)
        return facts | {
            "sentence": words.sentence,
            "words": [
                {"feature": c.name, "title": c.title, "from": c.before, "to": c.goal,
                 "change": c.difference}
                for c in words.changes
            ],
            "certificate_digest": None if e.certificate is None else e.certificate.digest,
        }  # fmt: skip


def engines_of(config: Config) -> dict[str, Engine]:
    """Read all models that are served."""
    return {name: _engine(name, served) for name, served in config.models.items()}


def _engine(name: str, served: Served) -> Engine:
    from proplace.apps.cli import delta  # noqa: PLC0415

    others = [*served.drop, *([served.ids] if served.ids else [])]
    given = delta.Given.of(served.delta, served.shifts)
    table = open_table(served.train)
    model = common.with_names(
        common.read_model(served.model, None), served.schema_file, table, others
    )
    given.check(model.network, served.model)
    train = common.training_rows(table, model.schema, others)
    wording = Wording(served.words.subject, list(served.words.outcomes), served.words.person)
    target = common.target_of(model, served.target)
    people = None
    if served.people is not None:
        people = _people(served, model, others)
    return Engine(name, model, given.delta, train, target, wording, people)


def _people(served: Served, model: Model, others: list[str]) -> pd.DataFrame:
    """People who can be looked up, by their id."""
    assert served.people is not None  # noqa: S101
    table = open_table(served.people)
    if served.ids not in table.columns:
        raise OptionError(f"{served.people}: there is no column {served.ids!r} with ids")
    table.check_columns(list(model.schema.by_name), others=others)
    frame, _ = table.read(model.schema)
    cells = (cell for part, _ in table.cells() for cell in part[served.ids])
    ids = ["" if pd.isna(cell) else str(cell).strip() for cell in cells]
    rows: dict[str, int] = {}
    for row, number in enumerate(ids):
        if not number:
            raise OptionError(
                f"{served.people}: row {row} has no {served.ids!r}; give everybody an id"
            )
        if number in rows:
            raise OptionError(
                f"{served.people}: rows {rows[number]} and {row} have the same {served.ids!r} "
                f"({number}); give everybody an id of their own"
            )
        rows[number] = row
    return frame.set_axis(ids)


def _column(values: list[Any], feature: AnyFeature) -> pd.Series[Any] | ObjectArray | list[Any]:
    """Cells of a feature: texts are read as in a file, numbers and labels are taken as they are.

    A table is made much sooner of lists and arrays than of series.
    """
    if isinstance(feature, (Continuous, Ordinal, Binary)) and any(
        isinstance(v, str) for v in values
    ):
        return typed_text(pd.Series(values, dtype=object), feature)
    return values if isinstance(feature, Continuous) else np.array(values, dtype=object)


def matching(people: pd.DataFrame | None, text: str, most: int = 20) -> list[str]:
    """Ids that hold a text, for a search field."""
    if people is None:
        return []
    found = [str(number) for number in people.index if text.lower() in str(number).lower()]
    return found[:most]
