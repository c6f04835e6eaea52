"""What answers know of the model that they are about, and the boxes around them that are promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.explain.holds import held_box
from proplace.loaders.model import Model
from proplace.loaders.origin import Origin

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.explain.provenance import Provenance
    from proplace.explain.results import Explanation, Setting


def model_of(setting: Setting, provenance: Provenance | None) -> Model:
    """The model that answers are about, as far as they know it."""
    origin = Origin("Network")
    if provenance is not None:
        origin = Origin(provenance.model, provenance.file_digest)
    return Model(
        setting.net,
        setting.schema,
        setting.classes or tuple(range(setting.net.classes)),
        preprocesses=bool(setting.encoding),
        _columns=setting.columns or tuple(setting.schema.by_name),
        origin=origin,
        declared=True,
        threshold=setting.threshold,
    )


def promised_box(e: Explanation) -> tuple[Array, Array]:
    """Ends of all that is said to hold of an answer: every miss, and what lies beyond it."""
    assert e.point is not None and e.setting is not None  # noqa: S101, PT018  (it is an answer)
    ends = [(e.point, e.point), held_box(e.setting.schema, e.point, e.holds)]
    ends += [box for models in e.setting.sets if (box := models.around(e.point)) is not None]
    lows, highs = zip(*ends, strict=True)
    return np.min(lows, axis=0), np.max(highs, axis=0)
