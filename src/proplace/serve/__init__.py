"""The workbench: a local page to explain, promise and audit with one model (extra ``serve``)."""
