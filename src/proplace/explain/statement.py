"""The statement of a certificate in original units, which the checkers encode again.

It contains the content of a letter: the name, unit and value of each feature today, the promised value
or range, and the encoding that leads to the numbers of the certificate. ``docs/certificates.md``
describes the format.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from proplace.certification import Certificate, CertificateBundle, checker
from proplace.core.text import clipped, visible
from proplace.explain.claims import format_value, is_certified, proved_room
from proplace.explain.words import Wording
from proplace.schema import Categorical, Continuous, Ordinal
from proplace.schema.values import unit_form

if TYPE_CHECKING:
    from proplace.certification import Proof
    from proplace.explain.claims import Claim
    from proplace.explain.results import Explanation
    from proplace.loaders.model import Model
    from proplace.schema.rules import AnyFeature


def stated(e: Explanation, wording: Wording | None = None) -> Proof | None:
    """Return the certificate of a counterfactual with its statement in original units.

    The certificate is returned unchanged if there is nothing to state, or if its encoding cannot be
    redone. The checkers then report that only encoded numbers were checked.
    """
    proof = e.certificate
    if isinstance(proof, Certificate):
        parts: tuple[Certificate, ...] = (proof,)
    elif isinstance(proof, CertificateBundle):
        parts = proof.certificates
    else:
        return proof
    if not is_certified(e) or e.setting is None or e.counterfactual is None:
        return proof
    statement = _statement(e, wording or Wording())
    try:
        sentence(statement, parts[0])
    except checker.Rejected:
        return proof
    return CertificateBundle.of(parts, statement)


def sentence(statement: dict[str, Any], certificate: Certificate) -> str:
    """Return the sentence of the checkers. Raise if the certificate does not cover it."""
    facts = certificate.facts
    proved = checker.Statement(
        facts["verdict"],
        facts["target"],
        [],
        facts["input"],
        facts["margin"],
        low=facts.get("low"),
        high=facts.get("high"),
    )
    return checker.Stated(statement, len(statement["outcomes"])).check(proved)


def _statement(e: Explanation, wording: Wording) -> dict[str, Any]:
    assert e.setting is not None  # noqa: S101  (checked by stated())
    claims = {claim.name: claim for claim in e.claims}
    classes = e.setting.model.classes
    count = max(2, e.setting.current.network.layers[-1].W.shape[0])
    subject = wording.subject[:1].upper() + wording.subject[1:]
    return {
        "subject": _text(subject),
        "outcomes": [_text(wording.outcome(n, classes)) for n in range(count)],
        "features": [_feature(f, e, claims.get(f.name)) for f in e.setting.schema.features],
    }


def _feature(feature: AnyFeature, e: Explanation, claim: Claim | None) -> dict[str, Any]:
    assert e.counterfactual is not None  # noqa: S101
    after = e.counterfactual[feature.name]
    before = after if claim is None else claim.before
    facts: dict[str, Any] = {"name": _text(feature.title), "missing": feature.name in e.imputed}
    facts |= _encoding(feature)
    if isinstance(feature, Continuous):
        low, high, end = _range(feature, e, claim, float(after))
        unit = [_text(unit_form(feature.unit or "", number)) for number in (1.0, 2.0)]
        facts |= {"today": float(before), "value": float(after), "low": low, "high": high}
        return facts | {"unit": unit, "end": end}
    labels = list(feature.labels)
    today, value = (facts["labels"][labels.index(label)] for label in (before, after))
    return facts | {"today": today, "value": value}


def _encoding(feature: AnyFeature) -> dict[str, Any]:
    """Return the fields of a stated feature that its schema decides."""
    if isinstance(feature, Continuous):
        return {"offset": feature.offset, "scale": feature.scale}
    texts = [_text(format_value(feature, label)) for label in feature.labels]
    if len({*texts}) < len(texts):
        texts = [_text(str(label)) for label in feature.labels]
    if isinstance(feature, Ordinal):
        numbers = {"numbers": list(feature.numbers), "offset": feature.offset}
        return {"labels": texts, **numbers, "scale": feature.scale}
    return {"labels": texts, "first": feature.first if isinstance(feature, Categorical) else 1}


def misstated(statement: dict[str, Any], model: Model) -> str | None:
    """Describe a feature that a model names or encodes otherwise. Empty if there is none.

    Returns None if the model cannot tell, because the schema of the statement is not known.
    """
    stated, features = statement["features"], model.schema.features
    if len(stated) != len(features):
        return f"it states {len(stated)} features, and the model has {len(features)}"
    names = [{_text(feature.name), _text(feature.title)} for feature in features]
    kinds = [
        ("labels" in f) != isinstance(own, Continuous)
        for f, own in zip(stated, features, strict=True)
    ]
    for facts, feature, own, same in zip(stated, features, names, kinds, strict=True):
        name = facts["name"]
        if name not in own and any(name in other for other in names):
            return f"it calls feature {feature.name!r} of the model {name!r}"
        if facts != facts | _encoding(feature) and (same or model.declared):
            return f"it encodes {name!r} otherwise than the model encodes {feature.name!r}"
    return "" if all(kinds) else None


def _range(
    feature: Continuous, e: Explanation, claim: Claim | None, value: float
) -> tuple[float, float, str]:
    """Return the written ends of the proved values of a number, and the end of "or more"."""
    if claim is None:
        ends = e.guaranteed_ranges.get(feature.name)
        room = None if ends is None else proved_room(feature, value, ends)
        low, high = room or (value, value)
        return low, high, ""
    if claim.low is None or claim.high is None or math.isinf(claim.high - claim.low):
        return value, value, ""
    ends_at = {"up": "high", "down": "low"}.get(claim.direction, "") if claim.to_end else ""
    return claim.low, claim.high, ends_at


def _text(text: str) -> str:
    """Return a text without control characters, clipped to the limit of the checkers."""
    return clipped(visible(text), checker.MAX_LETTERS)
