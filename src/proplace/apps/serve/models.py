"""The models that are served, and what can be asked of them in an instant."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.apps.cli import common
from proplace.core.errors import DeltaError, InputError, OptionError
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
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from proplace.apps.serve.config import Config, Served
    from proplace.apps.serve.live import Live
    from proplace.apps.serve.questions import Options, Person
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts
    from proplace.explain.results import Explanation, Explanations
    from proplace.loaders.model import Model
    from proplace.schema.rules import AnyFeature
    from proplace.schema.validation import Label

    ObjectArray = npt.NDArray[np.object_]
    Source = tuple[str, Live | None]

_REMEMBERED = 8  # explainers with other options that a process keeps


@dataclass(frozen=True, eq=False)
class Configured:
    """The network and the set of networks that the configuration names."""

    network: Network
    delta: float | Shifts


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
    configured
        What the configuration names, where another model is served in its place.
    live
        The audited model that is.
    """

    name: str
    model: Model
    delta: float | Shifts
    train: pd.DataFrame
    target: Label
    wording: Wording
    people: pd.DataFrame | None = None
    configured: Configured | None = None
    live: Live | None = None
    purpose: str = ""
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
            "live": None
            if self.live is None
            else {name: getattr(self.live, name) for name in ("audit", "by", "since")},
        }

    @property
    def source(self) -> Source:
        """By which a worker knows it."""
        return self.name, self.live

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
        explainer = self.explainer(options, time_limit=seconds)
        target = self.target if options.target is None else options.target
        return explainer.explain(self.frame(people), target, count=options.count)

    def explainer(
        self,
        options: Options,
        *,
        tolerance: Mapping[str, float] | None = None,
        time_limit: float | None = None,
    ) -> Proplace:
        """An explainer with these options, or another tolerance, fitted; the last few are kept."""
        asked = self._parameters(options)
        if tolerance is not None:
            asked["tolerance"] = dict(tolerance) or None
        key = repr(sorted(asked.items()))
        if key not in self._explainers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._explainers[key] = Proplace(self.model, self.delta, **asked).fit(self.train)
            while len(self._explainers) > _REMEMBERED:
                self._explainers.popitem(last=False)
        self._explainers.move_to_end(key)
        self._explainers[key].time_limit = time_limit
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


def set_around(engine: Engine, new: Network) -> float | Shifts:
    """The set of networks for which answers of a retrained network are proved.

    A delta is around whatever network it is asked of. A set of the user's own stays as it is where it
    holds the new network; else the same intervals are laid around that.
    """
    known = engine.configured or Configured(engine.model.network, engine.delta)
    if isinstance(known.delta, float) or known.delta.contains(new):
        return known.delta
    try:
        return known.delta.moved(known.network, new)
    except DeltaError as error:
        raise OptionError(
            f"the set of networks of {engine.name} cannot be laid around the new model ({error}); make "
            "one for it (proplace shifts hull), and name both as model and shifts in the configuration"
        ) from None


class Engines:
    """Engines as they are asked for, by name and by what is live; of each name the last two are kept.

    Searches that were begun before a model went live end with the one before.
    """

    def __init__(self, config: Config, lives: Mapping[str, Live]) -> None:
        self._config = config
        self._known: dict[str, OrderedDict[Live | None, Engine]] = {}
        self.first = {name: self.get((name, lives.get(name))) for name in config.models}

    def get(self, source: Source) -> Engine:
        """The engine of a name, with the model that is live, or the one of the configuration."""
        name, live = source
        known = self._known.setdefault(name, OrderedDict())
        if live not in known:
            known[live] = engine_of(name, self._config.models[name], live)
            while len(known) > 2:
                known.popitem(last=False)
        known.move_to_end(live)
        return known[live]


def reading(served: Served, path: Path) -> Model:
    """Read a model file as the model that is served is read: columns by the schema or the table."""
    model, table = common.read_model(path), open_table(served.train)
    return common.with_names(model, served.schema_file, table, _others(served), keeps=False)


def _others(served: Served) -> list[str]:
    return [*served.drop, *([served.ids] if served.ids else [])]


def engine_of(name: str, served: Served, live: Live | None = None) -> Engine:
    """Read a model that is served, or the audited one that is live in its place."""
    from proplace.apps.cli import delta  # noqa: PLC0415

    others = _others(served)
    given = delta.Given.of(served.delta, served.shifts)
    model = reading(served, served.model)
    given.check(model.network, served.model)
    configured = None
    if live is not None:
        configured = Configured(model.network, given.delta)
        model = _live_model(served, live)
    train = common.training_rows(open_table(served.train), model.schema, others, keeps=False)
    wording = _wording(name, served, model)
    target = common.target_of(model, served.target)
    people = None
    if served.people is not None:
        people = _people(served, model, others)
    engine = Engine(
        name,
        model,
        given.delta,
        train,
        target,
        wording,
        people,
        configured=configured,
        live=live,
        purpose=served.purpose,
    )
    if live is not None:
        engine.delta = set_around(engine, model.network)
    return engine


def _wording(name: str, served: Served, model: Model) -> Wording:
    """What to call things; words that stand beside the wrong class would turn every sentence round."""
    words, labels = served.words.outcomes, [str(label) for label in model.classes]
    where = f"models.{name}.words.outcomes"
    if isinstance(words, dict):
        unknown = [label for label in words if label not in labels]
        if unknown:
            raise OptionError(
                f"{where}: {listing(unknown)} is no class of the model; they are {listing(labels)}"
            )
        outcomes = {labels.index(label): word for label, word in words.items()}
        return Wording(served.words.subject, outcomes, served.words.person)
    if words and len(words) != len(labels):
        raise OptionError(
            f"{where}: {len(words)} words for {len(labels)} classes; give one for each"
        )
    if any(word in labels and labels.index(word) != n for n, word in enumerate(words)):
        raise OptionError(
            f"{where}: the words stand in the order of the classes, which is {listing(labels)}; give "
            f"them by label: {{{labels[0]}: ..., {labels[-1]}: ...}}"
        )
    return Wording(served.words.subject, list(words), served.words.person)


def _live_model(served: Served, live: Live) -> Model:
    """The model of a file that is kept, by the name that it was uploaded with."""
    model = reading(served, Path(live.path))
    if model.origin.digest != live.digest:
        raise OptionError(f"{live.path}: was changed; put it back from a backup")
    return replace(model, origin=replace(model.origin, name=live.file))


def _people(served: Served, model: Model, others: list[str]) -> pd.DataFrame:
    """People who can be looked up, by their id."""
    assert served.people is not None  # noqa: S101
    table = open_table(served.people)
    if served.ids not in table.columns:
        raise OptionError(f"{served.people}: there is no column {served.ids!r} with ids")
    table.check_columns(list(model.schema.by_name), others=others, keeps=False)
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
