"""Laws of encode and decode, on schemas and tables made up by hypothesis."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from proplace.core.errors import SchemaError
from proplace.schema import Binary, Categorical, Continuous, Ordinal, Schema
from support.errors import raises
from support.tiers import examples

calm = examples(120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

finite = st.floats(-1e6, 1e6, allow_nan=False)
positive = st.floats(1e-3, 1e6, allow_nan=False)
label = st.one_of(st.text(min_size=1, max_size=4), st.integers(-9, 9), st.booleans())


@st.composite
def scalings(draw):
    return draw(st.one_of(st.sampled_from(["minmax", "none"]), st.tuples(finite, positive)))


@st.composite
def grids(draw, name):
    digits = draw(st.integers(0, 3))
    lower = draw(st.integers(-(10**6), 10**6)) / 10**digits
    step = draw(st.sampled_from([1, 2, 5, 7, 25, 100])) / 10**digits
    count = draw(st.one_of(st.integers(1, 50), st.integers(4000, 200_000)))
    upper = lower + count * step + draw(st.sampled_from([0.0, 0.4])) * step
    if draw(st.booleans()):
        upper = float(f"{upper:.6f}")
    return Continuous(name, lower, upper, step=step, scaling=draw(scalings()))


@st.composite
def reals(draw, name):
    lower, width = draw(finite), draw(positive)
    return Continuous(name, lower, lower + width, scaling=draw(scalings()))


@st.composite
def ordinals(draw, name):
    levels = draw(
        st.one_of(
            st.lists(st.text(max_size=3), min_size=2, max_size=6, unique=True),
            st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True).map(sorted),
            st.lists(finite, min_size=2, max_size=6, unique_by=lambda v: round(v, 2)).map(
                lambda vs: sorted(round(v, 2) for v in vs)
            ),
        )
    )
    values = None
    if draw(st.booleans()):
        gaps = draw(st.lists(st.integers(1, 9), min_size=len(levels), max_size=len(levels)))
        values = np.cumsum(gaps).tolist()
    return Ordinal(name, levels, values=values, scaling=draw(scalings()))


@st.composite
def categoricals(draw, name):
    categories = draw(st.lists(label, min_size=2, max_size=5, unique_by=(hash, str)))
    return Categorical(name, categories, encoding=draw(st.sampled_from(["onehot", "dropfirst"])))


@st.composite
def binaries(draw, name):
    values = draw(
        st.one_of(
            st.just((0, 1)),
            st.just((False, True)),
            st.lists(label, min_size=2, max_size=2, unique_by=(hash, str)),
        )
    )
    return Binary(name, values)


kinds = [grids, reals, ordinals, categoricals, binaries]


@st.composite
def schemas(draw, only=None):
    count = draw(st.integers(1, 4))
    makers = [draw(st.sampled_from(only or kinds)) for _ in range(count)]
    return Schema([draw(make(f"{'abcd'[i]}{i}")) for i, make in enumerate(makers)])


def random_rows(schema, seed, n=12):
    """Rows in and around the encoded range, with the ends of it among them."""
    rng = np.random.default_rng(seed)
    low, high = schema.lower, schema.upper
    rows = low + (high - low) * rng.uniform(-0.2, 1.2, (n, schema.width))
    rows[0], rows[1] = low, high
    return rows


def same_bits(a, b):
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@calm
@given(schemas(), st.integers(0, 2**32 - 1))
def test_canonical_is_idempotent_bit_for_bit(schema, seed):
    X = random_rows(schema, seed)
    C = schema.canonical(X)
    assert same_bits(C, schema.encode(schema.decode(X)))
    assert same_bits(C, schema.canonical(C))
    assert schema.legal(C).all()
    pd.testing.assert_frame_equal(schema.decode(X), schema.decode(C), check_exact=True)


@calm
@given(schemas(only=[grids, ordinals, categoricals, binaries]), st.integers(0, 2**32 - 1))
def test_legal_cells_come_back_exactly(schema, seed):
    rng = np.random.default_rng(seed)
    cells = {}
    for feature in schema.features:
        if isinstance(feature, Continuous):
            # Written the way a person writes a decimal, not the way the grid computes it.
            step, digits = feature.step, 6
            count = int((feature.upper - feature.lower) / step + 1e-9)
            numbers = rng.integers(0, count + 1, 9)
            cells[feature.name] = [float(f"{feature.lower + n * step:.{digits}f}") for n in numbers]
        else:
            options = getattr(
                feature,
                {"ordinal": "levels", "categorical": "categories"}.get(feature.kind, "values"),
            )
            cells[feature.name] = [options[i] for i in rng.integers(0, len(options), 9)]
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in cells.items()})
    decoded = schema.decode(schema.encode(frame))
    for name, values in cells.items():
        assert decoded[name].tolist() == values


@calm
@given(st.integers(0, 10**9), st.integers(0, 6), positive, finite, st.integers(0, 2**32 - 1))
def test_short_decimals_without_step_come_back_exactly(whole, digits, scale, offset, seed):
    rng = np.random.default_rng(seed)
    values = np.array([float(f"{v}e-{digits}") for v in [whole, *rng.integers(0, 10**9, 30)]])
    frame = pd.DataFrame({"v": values})
    for feature in (
        Continuous("v", 0, 1e9),
        Continuous("v", scaling=(offset, scale)),
        Continuous("v", -5, 2e9, scaling="none"),
    ):
        schema = Schema([feature])
        assert same_bits(schema.decode(schema.encode(frame))["v"].to_numpy(), values)


@calm
@given(st.lists(finite, min_size=1, max_size=20), finite, positive)
def test_long_numbers_come_back_up_to_last_digits(values, offset, scale):
    schema = Schema([Continuous("v", scaling=(offset, scale))])
    frame = pd.DataFrame({"v": values})
    X = schema.encode(frame)
    back = schema.decode(X)["v"].to_numpy()
    size = np.abs(values) + abs(offset)
    assert (np.abs(back - values) <= 4e-15 * size + 1e-300).all()
    assert same_bits(schema.encode(schema.decode(X)), X)
    kept = schema.decode(X, like=frame)["v"].to_numpy()
    assert same_bits(kept + 0.0, np.array(values) + 0.0)  # -0.0 is 0.0


@calm
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), finite, positive)
@example([128.6169970332582], 1.79, 1.08)
def test_numbers_of_people_come_back_from_outside_of_range(values, offset, scale):
    frame = pd.DataFrame({"v": values})
    for step in (None, 0.5):
        schema = Schema([Continuous("v", 0, 1, step=step, scaling=(offset, scale))])
        X, problems = schema.encode_people(frame)
        back = schema.decode(X, people=X)
        assert not problems
        noise = 4e-15 * (np.abs(values) + abs(offset)) + 1e-6 * (step or 0.0)
        noise += schema.features[0]._slack  # a number that near to an end is the end
        assert (np.abs(back["v"] - values) <= noise).all()
        assert same_bits(schema.encode_people(back)[0], X)


def test_like_keeps_index_and_unchanged_cells_only():
    schema = Schema([Continuous("v", 0, 771), Binary("b")])
    frame = pd.DataFrame({"v": [0.23380977600000002, 3.0], "b": [0, 1]}, index=["p", "q"])
    X = schema.encode(frame)
    X[1] = [0.5, 0.0]
    out = schema.decode(X, like=frame)
    assert out.index.tolist() == ["p", "q"]
    assert out["v"].tolist() == [0.23380977600000002, 385.5]
    assert out["b"].tolist() == [0, 0]
    with raises(SchemaError, name="like"):
        schema.decode(X[:1], like=frame)


@calm
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=2))
def test_encoded_schema_is_identity_bit_for_bit(row):
    schema = Schema.encoded(2)
    X = np.array([row, row[::-1]])
    assert same_bits(schema.encode(X), X)
    assert same_bits(schema.decode(X).to_numpy(), X)
    assert same_bits(schema.encode(schema.decode(X)), X)
    assert same_bits(schema.canonical(X), X)
    assert schema.legal(X).all()


def test_encoded_schema_has_names_and_ranges():
    schema = Schema.encoded(2, names=["u", "v"], lower=0, upper=[1, np.inf])
    assert [c.name for c in schema.columns] == ["u", "v"]
    assert schema.upper.tolist() == [1.0, np.inf]
    assert schema.canonical([[-1.0, 9.0], [2.0, -3.0]]).tolist() == [[0.0, 9.0], [1.0, 0.0]]
    with raises(SchemaError, name="u", row=1):
        schema.encode(np.array([[0.5, 0.5], [2.0, 0.5]]))
    with raises(SchemaError, name="X", match="shape"):
        schema.encode(np.zeros((3, 3)))
    with raises(SchemaError, name="names"):
        Schema.encoded(2, names=["u"])
    with raises(SchemaError, name="upper"):
        Schema.encoded(2, upper=[1, 2, 3])
    with raises(SchemaError, name="width", value=0):
        Schema.encoded(0)


def test_step_without_short_decimal_still_reaches_upper_end():
    schema = Schema([Continuous("v", 0, 1, step=1 / 3)])
    assert schema.columns[0].size == 4
    assert schema.decode([[1.0]])["v"].tolist() == [1.0]
    assert schema.canonical([[0.34]]) == schema.encode(pd.DataFrame({"v": [1 / 3]}))


def test_upper_end_with_noise_is_on_grid():
    schema = Schema([Continuous("v", 0.1, 0.1 + 0.7 - 2e-16, step=0.1)])
    assert schema.columns[0].size == 8
    assert schema.decode(schema.encode(pd.DataFrame({"v": [0.8]})))["v"].tolist() == [0.8]


def test_upper_end_off_grid_is_not_answer():
    schema = Schema([Continuous("v", 0, 10, step=4)])
    assert schema.columns[0].upper == 0.8
    assert schema.decode([[1.0]])["v"].tolist() == [8]
    assert schema.encode(pd.DataFrame({"v": [10]})).tolist() == [[1.0]]
    assert schema.canonical([[1.0]]).tolist() == [[0.8]]


def test_dtypes_of_decoded_tables():
    schema = Schema(
        [
            Continuous("whole", 0, 9, step=1),
            Continuous("tenth", 0, 1, step=0.1),
            Continuous("real", 0, 1),
            Ordinal("rank", [1, 2, 3]),
            Ordinal("grade", ["A", "B"]),
            Categorical("job", ["x", "y", "z"]),
            Categorical("mixed", ["x", 1, True if False else 2.5]),
            Binary("flag"),
            Binary("truth", (False, True)),
        ]
    )
    frame = pd.DataFrame(
        {
            "whole": [3, 4],
            "tenth": [0.3, 0.7],
            "real": [0.25, 0.123],
            "rank": [1, 3],
            "grade": ["A", "B"],
            "job": ["z", "x"],
            "mixed": ["x", 1],
            "flag": [0, 1],
            "truth": [False, True],
        }
    )
    pd.testing.assert_frame_equal(schema.decode(schema.encode(frame)), frame, check_exact=True)


def test_other_dtypes_hold_same_cells():
    schema = Schema(
        [
            Continuous("n", 0, 9, step=1),
            Ordinal("o", [1, 2, 3]),
            Categorical("c", ["x", "y", "z"]),
            Binary("b"),
        ]
    )
    frame = pd.DataFrame({"n": [1, 2, 3], "o": [1, 2, 3], "c": ["x", "z", "y"], "b": [0, 1, 1]})
    X = schema.encode(frame)
    for variant in (
        frame.astype({"n": "Int64", "o": "Float64", "c": "category", "b": bool}),
        frame.astype({"n": "float32", "o": "category", "c": object, "b": "float64"}),
        frame.astype({"n": "category", "o": "int8", "c": "string", "b": "boolean"}),
        frame.astype(object),
        frame[["b", "c", "o", "n"]].assign(extra=7),
    ):
        assert same_bits(schema.encode(variant), X)


def test_empty_tables():
    schema = Schema([Continuous("n", 0, 9, step=1), Categorical("c", ["x", "y"])])
    frame = pd.DataFrame({"n": [], "c": []})
    assert schema.encode(frame).shape == (0, 3)
    assert len(schema.decode(np.zeros((0, 3)))) == 0
    assert schema.problems(frame) == {}


def test_decoding_takes_nearest_legal_value():
    schema = Schema(
        [
            Continuous("n", 0, 10, step=1),
            Categorical("c", ["x", "y", "z"]),
            Categorical("d", ["x", "y", "z"], encoding="dropfirst"),
            Binary("b", ["no", "yes"]),
        ]
    )
    rows = [
        [0.26, 0.2, 0.5, 0.3, 0.4, 0.3, 0.5],
        [1.7, 0.4, 0.4, 0.2, 0.1, 0.9, 0.49],
    ]
    decoded = schema.decode(rows)
    assert decoded["n"].tolist() == [3, 10]
    assert decoded["c"].tolist() == ["y", "x"]
    assert decoded["d"].tolist() == ["x", "z"]
    assert decoded["b"].tolist() == ["yes", "no"]
    assert not schema.legal(rows).any()
    with raises(SchemaError, name="n", row=0):
        schema.decode([[np.nan] * 7])
    with raises(SchemaError, name="X", match="shape"):
        schema.decode([[1, 2]])


def test_legal_is_strict():
    schema = Schema(
        [
            Continuous("n", 0, 7, step=1),
            Categorical("c", ["x", "y"]),
            Categorical("d", ["x", "y", "z"], encoding="dropfirst"),
        ]
    )
    good = schema.encode(pd.DataFrame({"n": [3], "c": ["x"], "d": ["x"]}))[0]
    assert schema.legal(good).all()
    for column, value in [
        (0, np.nextafter(good[0], 1)),
        (0, -1e-9),
        (1, 0.0),
        (2, 1.0),
        (1, 0.5),
        (0, np.nan),
    ]:
        bad = good.copy()
        bad[column] = value
        assert not schema.legal(bad).any()
    both = good.copy()
    both[3:] = 1.0
    assert not schema.legal(both).any()
