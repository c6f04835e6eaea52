"""The workbench: a local page on which one model is asked, moved and audited (extra ``serve``)."""
