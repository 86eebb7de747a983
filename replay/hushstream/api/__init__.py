"""hushstream from Python: `run`, `evaluate` and `experiment`, from a script, a notebook, or anywhere else."""

from hushstream.api.calls import evaluate, experiment, run

__all__ = ["evaluate", "experiment", "run"]
