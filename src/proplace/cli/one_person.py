"""`proplace explain` of one person: who it is, what is shown, and the same as JSON."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from proplace.cli import common
from proplace.cli.console import say, say_table
from proplace.core.text import short

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd

    from proplace.core.request import Request
    from proplace.explain.proplace import Proplace
    from proplace.explain.results import Explanation, Explanations
    from proplace.schema import Schema
    from proplace.tables.files import TableFile


@dataclass(frozen=True)
class Person:
    """One person, by a row of the input or by words of the command line.

    Attributes
    ----------
    source, row
        The input and the number of the row; None where the person is given in words.
    pairs
        The words: values by name.
    ids, others
        Columns that say who it is, and all columns that are no features.
    """

    source: TableFile | None
    row: int | None
    pairs: Mapping[str, str]
    ids: list[str]
    others: list[str]

    def explain(self, explainer: Proplace, request: Request) -> Explanations:
        """Explain this person; each answer knows who it is for."""
        from proplace.explain.results import Explanations  # noqa: PLC0415

        schema = explainer.schema_
        frame = self._frame(schema)
        names = [name for name in self.ids if name in frame.columns]
        ids = {name: frame[name].iloc[0] for name in names}
        (found,) = explainer.stream([frame[list(schema.by_name)]], request, every=math.inf)
        answers = [replace(answer, ids=ids) for answer in found]
        return Explanations(answers, complete=found.complete, provenance=found.provenance)

    def _frame(self, schema: Schema) -> pd.DataFrame:
        """The person as a table of one row."""
        from proplace.core.errors import InputError, TableError  # noqa: PLC0415

        if self.source is not None:
            self.source.check_columns(list(schema.by_name), others=self.others)
            for name in self.ids:
                if name not in self.source.columns:
                    raise TableError(
                        f"{self.source.path}: there is no column {name!r} to keep as an id",
                        name="--id",
                        value=name,
                    )
            frame, broken = self.source.row(schema, self.row or 0)
            problems = [*broken.values(), *schema.encode_people(frame)[1].values()]
        else:
            frame = self._of_words(schema)
            problems = list(schema.encode_people(frame)[1].values())
        if problems:
            raise InputError(problems[0].reason, name=problems[0].column, row=self.row)
        return frame

    def _of_words(self, schema: Schema) -> pd.DataFrame:
        import pandas as pd  # noqa: PLC0415

        from proplace.core.errors import SchemaError  # noqa: PLC0415
        from proplace.core.text import did_you_mean  # noqa: PLC0415
        from proplace.tables.files import typed_text  # noqa: PLC0415

        for name in self.pairs:
            if name not in schema.by_name and name not in self.ids:
                hint = did_you_mean(name, schema.by_name)
                raise SchemaError(
                    f"{name!r} is not a feature{hint}; if it says who this is, also give "
                    f"--id {shlex.quote(name)}",
                    name=name,
                )
        missing = [name for name in schema.by_name if name not in self.pairs]
        if missing:
            raise SchemaError(
                f"no value for {', '.join(map(repr, missing))}; give each as name=value, or a row of "
                "a file: --input FILE --row N",
                name=missing[0],
            )
        cells = {name: pd.Series([value], dtype=object) for name, value in self.pairs.items()}
        return pd.DataFrame(
            {
                name: typed_text(cell, schema.by_name[name]) if name in schema.by_name else cell
                for name, cell in cells.items()
            }
        )


def pairs(words: list[str]) -> dict[str, str]:
    """Read name=value pairs."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or name in found:
            what = "occurs twice" if sign else "is not of the form name=value"
            raise OptionError(f"{word!r} {what}", name=name, value=word)
        found[name] = value
    return found


def save_certificates(result: Explanations, folder: Path) -> None:
    """Write the proofs for one person, none in the place of another file."""
    from proplace.core.errors import OutputError  # noqa: PLC0415
    from proplace.explain.record import proof_name  # noqa: PLC0415

    if (folder.parent / "manifest.json").exists():
        raise OutputError(
            f"{folder.parent}: holds a batch; give another folder for one person",
            name=folder.parent.name,
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot be made ({error.strerror})", name=folder.name
        ) from error
    proofs = {folder / proof_name(int(str(e.index)), e.rank): e.certificate for e in result}
    for path, proof in proofs.items():
        if proof is not None:
            with common.refused_if_there(path):
                proof.save(path)


def show(result: Explanations) -> None:
    """Print the answers for people."""
    for answer in result:
        if not answer.found:
            say(f"{answer.status}: {answer.reason}")
            continue
        words = answer.describe()
        say_table(["feature", "now", "then"], [[c.title, c.was, c.goal] for c in words.claims])
        say(words.sentence)
        say(
            f"{answer.status}; distance {answer.distance:.6g}; every model {_where(answer)} "
            f"reaches class {short(answer.label)} by at least {answer.margin:.3g}"
        )
        if answer.reason:
            say(answer.reason)


def _where(answer: Explanation) -> str:
    from proplace.explain.words import in_delta  # noqa: PLC0415

    return "within delta" if answer.setting is None else in_delta(answer.setting)


def show_json(result: Explanations, row: int | None, agreement: dict[str, Any]) -> None:
    """Print the answers for machines: all that is known about each, its certificate included."""
    from proplace.explain.record import explanation_json  # noqa: PLC0415

    made = result.provenance
    assert made is not None  # noqa: S101  (an explainer made it)
    facts = [{"row": row, **explanation_json(answer, made), **agreement} for answer in result]
    typer.echo(json.dumps(facts, indent=2))
