"""The service: an HTTP interface and a page on the same engine, with the ledger behind it.

``config`` says what is served; ``models`` holds the models and what can be asked of them in an instant;
``workers`` runs searches in processes of their own; ``store`` keeps keys, sessions and jobs; ``access``
says who may do what; ``jobs`` are long questions; ``api`` and ``pages`` are what is seen from outside.
"""
