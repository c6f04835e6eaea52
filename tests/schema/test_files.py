"""Schema files: YAML and JSON, there and back, and by hand."""

from __future__ import annotations

import json

import pytest

from proplace.core.errors import SchemaError
from proplace.schema import Binary, Categorical, Continuous, IfThen, Linear, Ordinal, Schema, Then
from support.errors import raises

FULL = Schema(
    [
        Continuous("age", 17, 90, step=1, direction="increasing", label="Age", unit="years"),
        Continuous("ratio", 0, 0.1 + 0.2, scaling=(0.1, 3.7), max_increase=0.5, max_decrease=1e-7),
        Continuous("free", scaling="none"),
        Continuous("big", -1e20, 1e20),
        Ordinal("grade", ["A", "B", "C"], values=[0, 1.5, 10], immutable=True),
        Ordinal("rank", [1, 2, 3], scaling="none"),
        Categorical("job", ["yes", "no", "null", "1", 2, 2.5, "2020-01-01", "ä: #'\""]),
        Categorical("town", ["x", "y"], encoding="dropfirst", immutable=True),
        Binary("sex", ["Female", "Male"]),
        Binary("flag", direction="decreasing"),
        Binary("truth", [False, True]),
    ],
    rules=[
        Linear({"age": 1, "ratio": -2.5}, lower=0, name="enough"),
        IfThen({"job": "yes"}, [Then("age", at_least=4, change=True)]),
        IfThen(
            {"job": ["no", 2], "truth": True},
            [Then("ratio", at_most=0.5), Then("town", ["x"]), Then("sex", "Male")],
            becomes=False,
        ),
    ],
)


@pytest.mark.parametrize("name", ["s.yaml", "s.yml", "s.json", "S.YAML"])
def test_there_and_back(tmp_path, name):
    path = tmp_path / name
    FULL.write(path)
    again = Schema.read(str(path))
    assert again == FULL
    kinds = [type(v) for v in again.by_name["job"].categories]
    assert kinds == [type(v) for v in FULL.by_name["job"].categories]
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert "Age" in path.read_text(encoding="utf-8")


def test_files_are_short(tmp_path):
    path = tmp_path / "s.yaml"
    schema = Schema(
        [Continuous("age", 17, 90, step=1), Binary("sex", ["Female", "Male"], immutable=True)],
        rules=[Linear({"age": 1}, lower=18)],
    )
    schema.write(path)
    assert path.read_text() == (
        "format: proplace-schema-1\n"
        "features:\n"
        "- {kind: continuous, name: age, lower: 17, upper: 90, step: 1}\n"
        "- kind: binary\n"
        "  name: sex\n"
        "  values: [Female, Male]\n"
        "  immutable: true\n"
        "rules:\n"
        "- kind: linear\n"
        "  terms: {age: 1}\n"
        "  lower: 18\n"
    )


def test_files_written_by_hand(tmp_path):
    path = tmp_path / "hand.yaml"
    path.write_text(
        """
format: proplace-schema-1
features:
  - kind: continuous
    name: income
    lower: 0
    upper: 1e6          # YAML 1.1 reads this as text
    step: 100
  - {kind: categorical, name: answer, categories: [yes, no, off, 2020-01-01]}
  - {kind: binary, name: happy, values: [no, yes], immutable: true}
rules:
"""
    )
    assert Schema.read(path) == Schema(
        [
            Continuous("income", 0, 1e6, step=100),
            Categorical("answer", ["yes", "no", "off", "2020-01-01"]),
            Binary("happy", ["no", "yes"], immutable=True),
        ]
    )


def document(**changes):
    base = {
        "format": "proplace-schema-1",
        "features": [{"kind": "binary", "name": "b"}],
        "rules": [],
    }
    return json.dumps({**base, **changes})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.json", "{", ["JSON"]),
        ("s.yaml", "a: [", ["YAML", "line 1"]),
        ("s.yaml", "a:\n  - b\n c: d\n", ["not valid YAML: line 3: expected"]),
        ("s.yaml", "a:\n\t- b\n", ["line 2: found character '"]),
        ("s.yaml", "!!python/object:os.system {}", ["YAML"]),
        ("s.yaml", "", ["format: proplace-schema-1", "None"]),
        ("s.json", "[1]", ["format: proplace-schema-1"]),
        ("s.json", document(format="proplace-schema-9"), ["'proplace-schema-9'"]),
        ("s.json", document(feature=[]), ["'feature'", "'features'"]),
        ("s.json", document(features=None), ["features must be a list"]),
        ("s.json", document(features=[]), ["features", "empty"]),
        ("s.json", document(features=[{"name": "b"}]), ["features 0 ('b')", "'kind'"]),
        (
            "s.json",
            document(features=[{"kind": "binary", "name": "b", "imutable": True}]),
            ["features 0 ('b')", "'imutable'", "'immutable'"],
        ),
        ("s.json", document(features=[{"kind": "binary"}]), ["features 0", "'name'"]),
        (
            "s.json",
            document(rules=[{"kind": "linear", "terms": {"b": "x"}, "lower": 0}]),
            ["rules 0: terms 'b'", "'x'"],
        ),
        ("s.json", '{"format": 1, "format": 2}', ["'format'", "twice"]),
        ("s.yaml", "format: 1\nformat: 2", ["'format'", "twice", "line 2"]),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with raises(SchemaError, name=name) as caught:
        Schema.read(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_bad_paths(tmp_path):
    with raises(SchemaError, name="none.yaml"):
        Schema.read(tmp_path / "none.yaml")
    with raises(SchemaError, name="s.txt", match=".yaml"):
        Schema.read(tmp_path / "s.txt")
    with raises(SchemaError, name="s.toml", match=".yaml"):
        FULL.write(tmp_path / "s.toml")
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe")
    with raises(SchemaError, name="bad.json"):
        Schema.read(tmp_path / "bad.json")


def test_failed_write_leaves_old_file(tmp_path, monkeypatch):
    path = tmp_path / "s.yaml"
    FULL.write(path)
    before = path.read_bytes()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(OSError, match="disk full"):
        Schema([Binary("b")]).write(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]


def test_yaml_problems_name_line_key_and_remedy(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        """format: proplace-schema-1
features:
- {kind: binry, name: q}
- name: s
- kind: binary
  name: z
  immutabel: true
- kind: continuous
  name: c
  lower: 3
  upper: 1
- kind: continuous
  name: d
  lower: 0
  upper: 9
  step: x
- 7
rules:
- kind: if_then
  when: {z: 1}
  then:
  - {kind: change, feature: c, at_leest: 4}
  - {kind: is, feature: q}
"""
    )
    with raises(SchemaError, name="s.yaml") as caught:
        Schema.read(path)
    message = str(caught.value)
    assert message.startswith("s.yaml: 8 problems")
    for words in (
        "line 3: features 0 ('q'): kind 'binry' is unknown (did you mean 'binary'?)",
        "line 4: features 1 ('s'): 'kind' is missing",
        "line 7: features 2 ('z'): 'immutabel' is not a known key (did you mean 'immutable'?)",
        "line 10: features 3 ('c'): lower 3 must be below upper 1",
        "line 16: features 4 ('d'): step must be a number, not 'x'",
        "line 2: features 5: 7 is not an entry",
        "line 22: rules 0: then 0: 'at_leest' is not a known key (did you mean 'at_least'?)",
        "line 23: rules 0: then 1: 'category' is missing",
    ):
        assert words in message


def test_yaml_problems_between_entries_name_line(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        """format: proplace-schema-1
features:
- {kind: binary, name: b}
- {kind: continuous, name: age, lower: 0, upper: 9}
- {kind: binary, name: b}
rules:
- kind: linear
  terms: {agee: 1}
  lower: 0
"""
    )
    with raises(SchemaError, name="s.yaml") as caught:
        Schema.read(path)
    assert "line 5: features 2: another feature is called 'b'" in str(caught.value)
    assert "line 7: rules 0: 'agee' is not a feature (did you mean 'age'?)" in str(caught.value)


def test_dictionary_of_schema_gives_schema_back():
    assert Schema.from_dict(json.loads(json.dumps(FULL.to_dict()))) == FULL
    with raises(SchemaError, match="'kind' is missing"):
        Schema.from_dict({"features": [{"name": "a"}], "rules": []})
