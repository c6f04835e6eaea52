"""A guarantee as JSON, and back."""

import json

import numpy as np

import proplace as pp
from proplace.certification import digest
from proplace.core.guarantee import Guarantee, Member

NET = pp.Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
BARE = pp.Network([([[1.0, -1.0]], None)])
BOX = pp.Shifts.of(NET, 0.1).intersect(pp.Shifts.of(NET, [(0.2, 0.05), (0.1, 0.3)]))


def test_guarantee_is_read_back_from_json():
    members = (
        Member(NET, BOX, "the box"),
        Member(NET, pp.Shifts.of(NET, 0.0), "the current model"),
        Member(NET, pp.Shifts.of(NET, [(0.1, 0.0), (0.0, 0.2)]), "another"),
        Member(BARE, pp.Shifts.of(BARE, 0.05)),
    )
    facts = json.loads(json.dumps(Guarantee(members).to_dict(digest)))
    assert [one["delta"] for one in facts["members"][1:]] == [0.0, [[0.1, 0.0], [0.0, 0.2]], 0.05]
    networks = {digest(net): net for net in (NET, BARE)}
    tolerance = np.array([[0.0, 0.1], [0.2, 0.0]])
    read = Guarantee.from_dict(
        facts, networks.__getitem__, {BOX.digest: BOX}.__getitem__, tolerance
    )
    for before, after in zip(members, read.members, strict=True):
        assert (after.network, after.shifts, after.name) == (
            before.network,
            before.shifts,
            before.name,
        )
        assert after.shifts.trained_radii == before.shifts.trained_radii
        assert after.tolerance is tolerance


def test_guarantee_names_general_sets_by_another_digest():
    facts = Guarantee((Member(NET, BOX),)).to_dict(digest, lambda box: f"file of {box.digest}")
    assert facts["members"][0]["delta"] == f"file of {BOX.digest}"
