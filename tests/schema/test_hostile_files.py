"""Schema files from strangers: bounded work, short messages, and no value but the one written."""

from __future__ import annotations

import copy
import json

import pytest
import yaml
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from proplace.core import limits
from proplace.core.errors import SchemaError
from proplace.core.text import UNSEEN
from proplace.schema import Binary, Categorical, IfThen, Linear, Ordinal, Schema, Then
from proplace.schema.files import _parse_yaml, plain
from support.errors import raises
from support.tiers import examples

calm = examples(
    150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

HEAD = "format: proplace-schema-1\nfeatures:\n"


def refusal(folder, text, name="s.yaml"):
    """Return the message about a file. Every message fits on a screen."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with raises(SchemaError, name=name) as caught:
        Schema.read(path)
    message = str(caught.value)
    assert len(message) < 5_000
    assert not UNSEEN.search(message)
    return message


@pytest.mark.parametrize(
    "value", ["[&a x, *a]", "!!int 1:30", "!!float x", "!!bool x", "!!binary aGk=", "!mine 1"]
)
def test_aliases_and_tags_are_rejected(tmp_path, value):
    message = refusal(tmp_path, f"{HEAD}- {{kind: binary, name: b, values: {value}}}\n")
    assert "line 3" in message
    assert "aliases" in message


def test_nested_value_in_message_is_short(tmp_path):
    nested = "[" * 30 + "x, " * 20_000 + "]" * 30
    assert "is not an entry" in refusal(tmp_path, f"{HEAD}- {nested}\n")
    text = "x" * 100_000
    part = {"kind": "binary", "name": text, text: 1, "values": [text, {text: [text]}]}
    data = {"format": "proplace-schema-1", "features": [part] * 7}
    assert "7 problems" in refusal(tmp_path, json.dumps(data), "s.json")
    assert "format" in refusal(tmp_path, json.dumps({**data, "format": text}), "s.json")
    assert "not a known key" in refusal(tmp_path, json.dumps({**data, text: 1}), "s.json")


def _deep(levels, name):
    if name.endswith(".json"):
        return '{"format": "proplace-schema-1", "features": ' + "[" * levels + "]" * levels + "}"
    return HEAD + "- " + "[" * levels + "]" * levels


@pytest.mark.parametrize("name", ["s.yaml", "s.json"])
@pytest.mark.parametrize("levels", [50, 100_000])
def test_deep_nesting_is_rejected(tmp_path, name, levels):
    message = refusal(tmp_path, _deep(levels, name), name)
    assert ("deeply" if levels > 50 else "feature") in message


@pytest.mark.parametrize("name", ["s.yaml", "s.json"])
def test_bytes_are_limited_before_they_are_parsed(tmp_path, name):
    text = b" " * (limits.SCHEMA_BYTES + 1)
    assert "4,194,304 bytes" in refusal(tmp_path, text, name)


def test_many_problems_are_reported_in_part(tmp_path):
    features = [{"kind": "binary", "name": f"b{n}", "stp": n} for n in range(3_000)]
    text = json.dumps({"format": "proplace-schema-1", "features": features})
    message = refusal(tmp_path, text, "s.json")
    assert "3000 problems" in message
    assert "(20) features 19" in message
    assert "2980 more" in message


# -- words that YAML reads as something else -------------------------------------------------------

WORDS = [
    *("1:30", "017", "00", "0x1F", "0o17", "0b1", "1_000", "yes"),
    *("no", "on", "off", "Yes", "NO", "y", "n", "2020-01-01"),
    *("2001-12-14t21:59:43.10-05:00", ".inf", "-.inf", ".nan", "=", "<<", "1e", "1e+"),
    *("e5", "1.2.3", "+-1", "--", "0.5.1", "190:20:30", "190:20:30.15", "+12e03x"),
    *("007.5", "-017", "12_3.4", "nan", "inf", "Infinity", "NaN", "None"),
    *("N/A",),
]
VALUES = [
    *(("1", 1), ("-1", -1), ("+1", 1), ("0", 0), ("-0", 0), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0)),
    *(("1e6", 1e6), ("1E-3", 1e-3), ("1.5e+3", 1500.0), ("true", True), ("False", False)),
    *(("null", None), ("~", None), ("'1'", "1"), ('"~"', "~"), ("!!str 5", "5"), ("0.0", 0.0)),
]


@pytest.mark.parametrize("word", WORDS)
def test_words_are_read_unchanged(tmp_path, word):
    path = tmp_path / "s.yaml"
    path.write_text(f"{HEAD}- {{kind: binary, name: b, values: [{word}, other]}}\n")
    assert Schema.read(path) == Schema([Binary("b", [word, "other"])])


@pytest.mark.parametrize(("word", "value"), VALUES)
def test_plain_numbers_and_truths_are_values(word, value):
    (found,) = _parse_yaml(f"[{word}]")
    assert (found, type(found)) == (value, type(value))


def test_missing_label_is_refused_not_dropped(tmp_path):
    message = refusal(tmp_path, HEAD + "- {kind: binary, name: b, values: [~, x]}\n")
    assert "features 0 ('b'): values 0" in message


def test_text_is_not_number_where_number_is_due(tmp_path):
    for word in ("017", "1_000", "1:30", "0x1F", ".inf", "'5'", "yes"):
        line = f"- {{kind: continuous, name: a, lower: 0, upper: {word}}}\n"
        assert "upper" in refusal(tmp_path, HEAD + line)


@pytest.mark.parametrize("word", ["yes", "no", "on"])
def test_words_are_not_true_or_false(tmp_path, word):
    message = refusal(tmp_path, f"{HEAD}- {{kind: binary, name: b, immutable: {word}}}\n")
    assert f"line 3: features 0 ('b'): immutable must be true or false, not '{word}'" in message


def test_rules_that_are_not_list_are_refused(tmp_path):
    for word in ("0", "''", "false", "no"):
        assert "rules" in refusal(tmp_path, f"{HEAD}- {{kind: binary, name: b}}\nrules: {word}\n")


# -- there and back --------------------------------------------------------------------------------

tricky = st.sampled_from(
    [w for w, _ in VALUES] + WORDS + ["", " ", "a: b", "#", "'", '"', "\\", "[none]", "\u202e", "\x1b"]
    + ["\n", "a\n b", "\ufeff", "\x85", "\u2028", "\U000e0041", "|", "&a", "*a", "!x", "%", "@", "`"]
)  # fmt: skip
text = st.one_of(tricky, st.text(max_size=12), st.text("0123456789.:_-+eExXobyn~ ", max_size=6))
label = st.one_of(
    text, st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)
labels = st.lists(label, min_size=2, max_size=6, unique_by=(lambda v: v, str))


def kinds(value):
    """A value with the types inside it: 1, 1.0 and True are equal and not the same."""
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [kinds(item) for item in value]
    return type(value).__name__, value


def same(a, b):
    parts = [*a.features, *a.rules], [*b.features, *b.rules]
    return kinds([plain(p) for p in parts[0]]) == kinds([plain(p) for p in parts[1]]) and a == b


@calm
@given(labels, labels, text.filter(len), text, st.floats(-1e300, 1e300))
@example(["1e6", "0o17"], ["y", "n"], "1e6", "1.5e3", 1e20)
@example([1.0, "1"], [False, True], "017", "\u202e", 0.1)
def test_written_schema_is_read_again(tmp_path, many, two, name, title, number):
    level, flag = f"{name}, level", f"{name}, flag"
    schema = Schema(
        [
            Categorical(name, many, encoding="dropfirst", label=title),
            Ordinal(level, many, values=range(len(many))),
            Binary(flag, two[:2]),
        ],
        rules=[
            IfThen({name: list(many[:1])}, [Then(flag, two[0]), Then(level, at_most=number)]),
            Linear({flag: 2.0}, upper=number, name=title),
        ],
    )
    for suffix in (".yaml", ".json"):
        path = tmp_path / f"s{suffix}"
        schema.write(path)
        assert same(Schema.read(path), schema)
        written = path.read_text(encoding="utf-8")
        assert not UNSEEN.search(written.replace("\n", ""))  # nothing in the file hides
        # An independent parser finds the same values.
        other = yaml.safe_load(written) if suffix == ".yaml" else json.loads(written)
        assert kinds(other["features"]) == kinds([plain(part) for part in schema.features])
        assert kinds(other["rules"]) == kinds([plain(part) for part in schema.rules])


# -- anything at all -------------------------------------------------------------------------------

tree = st.recursive(
    st.one_of(st.none(), label, st.just(10**400)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(text, st.sampled_from(["kind", "name", "values", "when", "then", "terms"])),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
GOOD = {
    "format": "proplace-schema-1",
    "features": [
        {"kind": "continuous", "name": "x", "lower": 0, "upper": 9, "step": 1, "scaling": [0, 2]},
        {"kind": "ordinal", "name": "o", "levels": ["a", "b"], "values": [0, 1]},
        {"kind": "categorical", "name": "c", "categories": ["x", "y"], "encoding": "onehot"},
        {"kind": "binary", "name": "b", "values": [0, 1], "immutable": True},
    ],
    "rules": [
        {"kind": "linear", "terms": {"x": 1}, "lower": 0, "name": "r"},
        {
            "kind": "if_then",
            "when": {"c": ["x"]},
            "then": [
                {"kind": "change", "feature": "x", "at_least": 1},
                {"kind": "is", "feature": "b", "category": 1},
            ],
        },
    ],
}


def places(value, path=()):
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in parts:
        if isinstance(item, (dict, list)):
            yield from places(item, (*path, key))
        else:
            yield (*path, key)


@calm
@given(st.sampled_from(list(places(GOOD))), tree, st.booleans())
def test_any_value_anywhere_is_read_or_refused_in_words(tmp_path, place, value, as_yaml):
    data = copy.deepcopy(GOOD)
    if not place:
        data = value
    else:
        inside = data
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = value
    path = tmp_path / ("s.yaml" if as_yaml else "s.json")
    path.write_text(json.dumps(data))  # JSON is YAML
    message = ""
    try:
        schema = Schema.read(path)
    except SchemaError as error:
        message = str(error)
    else:
        schema.write(path)
        assert same(Schema.read(path), schema)
    assert len(message) < 5_000
    assert not UNSEEN.search(message)
