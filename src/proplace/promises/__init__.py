"""Promises to people: a ledger of them, audits of retrained models, retraining that keeps them."""
