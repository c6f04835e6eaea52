"""The page: HTML for people, rendered here, over the same service as the JSON interface.

No address holds personal data: people and what they are travel in the bodies of forms, so that neither
a proxy's log nor a browser's history has them.
"""

from __future__ import annotations

from fastapi import APIRouter

from proplace.apps.serve.pages import answers, ledger, login, models, people, promises, static
from proplace.apps.serve.pages.common import error_page

router = APIRouter(include_in_schema=False)
for part in (static, login, people, answers, promises, models, ledger):
    router.include_router(part.router)

__all__ = ["error_page", "router"]
