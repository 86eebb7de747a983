"""The Python API of hushstream: `run`, `evaluate` and `experiment`, for scripts and notebooks."""

from hushstream.api.calls import evaluate, experiment, run
from hushstream.api.options import own_options

__all__ = ["evaluate", "experiment", "own_options", "run"]
