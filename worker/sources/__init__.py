"""The tree of an attempt: mirror, checkout, probe."""
