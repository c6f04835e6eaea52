"""The ledger."""

from fastapi import APIRouter

router = APIRouter(prefix="/ledger")
