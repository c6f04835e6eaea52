"""A figure that notebooks show and that pickles. This module needs matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Drawing(Figure):
    """A figure that belongs to no window."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
