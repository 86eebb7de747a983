"""The Python API of hushstream: `run`, `evaluate` and `experiment`, for scripts and notebooks."""

from hushstream.api.calls import evaluate, experiment, own_options, run

__all__ = ["evaluate", "experiment", "own_options", "run"]
