"""hushstream from Python: `run`, `evaluate` and `experiment`, from a script, a notebook, or anywhere else."""

from hushstream.api.calls import evaluate, experiment, run
from hushstream.api.options import own_options

__all__ = ["evaluate", "experiment", "own_options", "run"]
