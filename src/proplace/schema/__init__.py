"""Meaning of the columns of a table: kinds of features, encoding and decoding, rules of change."""

from proplace.schema.features import Binary, Categorical, Continuous, Feature, Ordinal
from proplace.schema.grid import Column
from proplace.schema.person import LinearRules, Person
from proplace.schema.rules import IfThen, Linear, Rule, Then
from proplace.schema.schema import Schema

__all__ = [
    "Binary",
    "Categorical",
    "Column",
    "Continuous",
    "Feature",
    "IfThen",
    "Linear",
    "LinearRules",
    "Ordinal",
    "Person",
    "Rule",
    "Schema",
    "Then",
]
