"""Models."""

from fastapi import APIRouter

router = APIRouter(prefix="/models")
