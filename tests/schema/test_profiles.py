"""Which combinations of categories a person may be in, whatever the numbers are."""

from __future__ import annotations

import itertools

from proplace.schema import Binary, Categorical, Continuous, IfThen, Schema, Value


def test_every_consequence_about_categories_counts():
    """A rule with several consequences: one that is broken is enough."""
    schema = Schema(
        [
            Categorical("job", ["none", "clerk"]),
            Binary("owner"),
            Binary("married"),
            Continuous("age", 0, 1),
        ],
        rules=[
            IfThen(
                {"job": "clerk"},
                [
                    Value("owner", at_least=1),
                    Value("married", at_most=0),
                    Value("age", at_most=0.5),
                ],
            )
        ],
    )
    person = schema.person([1.0, 0.0, 0.0, 1.0, 0.9])
    for owner, married in itertools.product((0.0, 1.0), repeat=2):
        clerk, none = [0.0, 1.0, owner, married, 0.9], [1.0, 0.0, owner, married, 0.9]
        assert person.profile_allowed(clerk) == (owner == 1.0 and married == 0.0)
        assert person.profile_allowed(none)
