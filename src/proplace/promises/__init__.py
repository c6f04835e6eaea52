"""Promises to people: a ledger of them, audits of retrained models, and retraining that keeps them."""
