"""Schema files, YAML and JSON.

An accepted schema, written and read again, is the same; and its labels and numbers are those that a
person reads in the file: YAML's own readings of ``017`` and ``1:30`` are not.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction as Q

import yaml

import proplace as pp
from fuzz.mutate import NUMERALS, change_tree, damaged, json_text, some
from fuzz.reader import Reader
from proplace.schema import IfThen, Linear, Then

_LINES = (
    *("a: &a [1, 2]", "b: *a", "<<: *a", "<<: {kind: binary}", "? x", "- - - -", "---"),
    *("...", "%YAML 9.9", "\tx: 1", "x: !!python/object/apply:os.system ['true']"),
    *("x: !!python/name:os.system", "x: !!binary aGk=", "=: 1", "x: !!set {a, b}"),
    *("x: !!omap [a: 1]", "x: !<tag:x> 1", "x: |", "x: >-", "'x': \"\\u0000\"", "- *missing"),
    *("{[: 1}", "rules: []", "features: []", "format: proplace-schema-1", "name: name"),
    *("x: 2001-01-01", "x: .inf", "# x"),
)
_TOKENS = (
    *("&a ", "*a", "!!str ", "!!int ", "!!float ", "!!python/tuple ", "|", ">", "? ", "- "),
    *("<<: ", "{", "}", "[", "]", ":", ": ", ",", "#", "'", '"', "~", "null", "yes", "on"),
    *("True", ".nan", "-.inf", "0o17", "0b1", "1e3", "+5", "\t"),
    *NUMERALS,
)
_BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 9)]
)


class Schemas(Reader):
    """``Schema.read``; an input is the suffix of its file as one line, then the file."""

    name = "yaml"
    suffix = ".case"

    def prepare(self, folder):
        self._yaml, self._trees = folder / "files" / "schema.yaml", []
        self._json = folder / "files" / "schema.json"
        texts = []
        for schema in _schemas():
            schema.write(self._yaml)
            schema.write(self._json)
            texts.append(b".yaml\n" + self._yaml.read_bytes())
            self._trees.append(json.loads(self._json.read_text()))
        self._texts = [text.partition(b"\n")[2].decode() for text in texts]
        self._seeds = [*texts, *(b".json\n" + json.dumps(tree).encode() for tree in self._trees)]
        self._again = folder / "again.yaml"

    def seeds(self):
        return self._seeds

    def make(self, rng):
        if rng.random() < 0.35:
            tree = json.loads(json.dumps(rng.choice(self._trees)))
            for _ in range(some(rng)):
                change_tree(rng, tree, self._trees)
            suffix = rng.choice((b".json\n", b".yaml\n"))  # YAML reads most of JSON
            return suffix + json_text(rng, tree)
        lines = rng.choice(self._texts).splitlines()
        for _ in range(some(rng)):
            at, kind = rng.randrange(len(lines)), rng.randrange(8)
            if kind == 0:
                lines.insert(at, " " * rng.choice((0, 0, 2, 4)) + rng.choice(_LINES))
            elif kind <= 3:
                words = [match.span() for match in re.finditer(r"[\w.-]+", lines[at])] or [(0, 0)]
                start, end = rng.choice(words)
                lines[at] = (
                    lines[at][:start]
                    + rng.choice(_TOKENS)
                    + lines[at][end if rng.random() < 0.6 else start :]
                )
            elif kind == 4:
                del lines[at]
                lines = lines or [""]
            elif kind == 5:
                lines.insert(at, lines[rng.randrange(len(lines))])
            elif kind == 6 and rng.random() < 0.05:
                lines.insert(
                    at,
                    rng.choice((_BOMB, "[" * 3000, "x: " * 500, "? " * 300, "- " * 900, "&a [*a]")),
                )
            else:
                lines[at] = damaged(rng, lines[at].encode()).decode("utf-8", "replace")
        text = "\n".join(lines).encode()
        return b".yaml\n" + (damaged(rng, text) if rng.random() < 0.1 else text)

    def put(self, path, data):
        self._file(data).write_bytes(data.partition(b"\n")[2])

    def read(self, path, data):
        schema = pp.Schema.read(self._file(data))
        schema.columns, schema.compiled  # noqa: B018  (made on demand)
        return schema

    def _file(self, data):
        return self._json if data.startswith(b".json\n") else self._yaml

    def judge(self, data, schema):
        schema.write(self._again)
        if pp.Schema.read(self._again) != schema:
            return "written and read again it is another schema"
        suffix, _, text = data.partition(b"\n")
        if suffix == b".json":
            return None
        plain = yaml.load(
            text.decode(), Loader=yaml.BaseLoader
        )  # everything as text, as people see it
        for feature, entry in zip(schema.features, plain["features"], strict=True):
            if wrong := _misread(feature, entry):
                return wrong
        return None


def _misread(feature, entry):
    if feature.name != entry["name"]:
        return f"a name is not as in the file: {entry['name']!r}"
    for field in ("categories", "levels", "values"):
        labels = entry.get(field)
        if not isinstance(labels, list) or not hasattr(feature, field):
            continue
        for label, text in zip(getattr(feature, field), labels, strict=True):
            if not isinstance(label, bool) and not _says(text, label):
                return f"a label is not as in the file: {text!r} became {label!r}"
    for field in ("lower", "upper", "step"):
        text = entry.get(field)
        value = getattr(feature, field, None)
        if (
            text not in (None, "", "~", "null", "Null", "NULL")
            and value is not None
            and not _says(text, value)
        ):
            return f"a number is not as in the file: {text!r} became {value!r}"
    return None


def _says(text, value):
    """Whether a person who reads the text thinks of the value."""
    if isinstance(value, str):
        return text == value
    if not re.fullmatch(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", text):
        return False
    same = Q(text) == value if isinstance(value, int) else float(text) == value
    return same and not re.match(r"[-+]?0[0-9]", text)


def _schemas():
    yield pp.Schema(
        [
            pp.Continuous("income", 0, 200, step=10, unit="dollars"),
            pp.Ordinal("grade", ["C", "B", "A"]),
            pp.Categorical("job", ["clerk", "manager", 3], immutable=True),
            pp.Binary("married"),
        ]
    )
    yield pp.Schema(
        [
            pp.Continuous("age", 18, 90, step=1, direction="increasing"),
            pp.Continuous("debt", 0.0, 1e3, scaling=(0.5, 2.0)),
            pp.Categorical("town", ["x", "y", "z"], encoding="dropfirst"),
        ],
        rules=[
            Linear({"age": 1, "debt": -1}, lower=-2000),
            IfThen(
                {"town": ["x", "y"]},
                [Then("age", at_least=4, change=True), Then("debt", at_most=500)],
            ),
        ],
    )
