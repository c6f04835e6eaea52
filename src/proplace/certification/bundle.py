"""Several certificates about one input: a proof for each set of networks that has a say."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from proplace.certification.checker import Verdict
from proplace.certification.proof import Certificate, digest
from proplace.core.files import atomic_write

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from proplace.core.model_set import ModelSet

FORMAT = "proplace-bundle-1"


@dataclass(frozen=True)
class Bundle:
    """Certificates about one input and target, one for each set of networks."""

    certificates: tuple[Certificate, ...]

    @classmethod
    def of(cls, certificates: Iterable[Certificate]) -> Bundle:
        """Put certificates together."""
        return cls(tuple(certificates))

    @property
    def facts(self) -> dict[str, Any]:
        """The bundle as it is written."""
        return {"format": FORMAT, "certificates": [each.facts for each in self.certificates]}

    @property
    def verdict(self) -> Literal["robust", "not robust"]:
        """What is claimed of all networks together."""
        good = all(each.verdict == "robust" for each in self.certificates)
        return "robust" if good else "not robust"

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the bundle as JSON, one line."""
        return json.dumps(self.facts, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bundle; the file appears whole or not at all."""
        with atomic_write(Path(path)) as file:
            file.write(self.to_json().encode() + b"\n")

    def check(self, sets: Iterable[ModelSet]) -> Verdict:
        """Check each certificate against the set that it is about; every set must have one."""
        left = list(self.certificates)
        for models in sets:
            name = digest(models.net)
            radii = [list(pair) for pair in models.shifts.radii or ()]
            mine = [c for c in left if c.facts["network"] == name and c.facts["delta"] == radii]
            if not mine:
                return Verdict(False, f"no certificate is about {models.name or 'one of the sets'}")
            verdict = mine[0].check(models.net)
            if not verdict.accepted:
                return verdict
            left.remove(mine[0])
        same = {json.dumps([c.facts["input"], c.facts["target"]]) for c in self.certificates}
        if left or len(same) != 1:
            return Verdict(False, "the certificates are not about one input and these sets")
        return Verdict(True, "every set is covered")


Proof: TypeAlias = "Certificate | Bundle"
"""A certificate; where several sets of networks have a say, one for each in a bundle."""
