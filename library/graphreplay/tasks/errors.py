"""What the tasks raise."""

from __future__ import annotations


class NonFiniteError(ValueError):
    """A loss was infinite or NaN. `failure_class` is what a runner of tests files it under."""

    failure_class = "non-finite"
