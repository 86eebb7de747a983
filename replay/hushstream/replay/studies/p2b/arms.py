"""The two deployments of a comparison: the private one, and one whose exact interactions travel in clear.

What the private one releases is as private as it is stated, since nothing of the other one reaches it: the other one
has a folder, topics, workers and a name of its own, and its warning stands on its own figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hushstream.replay.progress import Progress
from hushstream.replay.studies.p2b.report.results import WARM_NONPRIVATE

NOT_PRIVATE_NAME = "not-private"


@dataclass(frozen=True, slots=True)
class Arm:
    """A deployment and what it plays.

    Attributes:
        name: of the deployment.
        folder: of the deployment.
        conditions: of the comparison.
        non_private: whether exact interactions travel in clear in it.
    """

    name: str
    folder: Path
    conditions: tuple[str, ...]
    non_private: bool = False


def arms_of(name: str, folder: Path, conditions: Sequence[str]) -> tuple[Arm, ...]:
    """The private arm and, where a condition asks for exact interactions, the arm that has them.

    Args:
        name: of the private deployment.
        folder: of the private deployment; the other one lies below it.
        conditions: of the comparison, by name.
    """
    private = Arm(name, folder, tuple(one for one in conditions if one != WARM_NONPRIVATE))
    if WARM_NONPRIVATE not in conditions:
        return (private,)
    beside = f"{name}-{NOT_PRIVATE_NAME}"
    return (private, Arm(beside, folder / NOT_PRIVATE_NAME, (WARM_NONPRIVATE,), non_private=True))


def after(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Progress of one arm as a part of all arms' ``total``, after ``done`` of the arms before it."""
    if progress is None:
        return None
    return lambda here, _, what: progress(done + here, total, what)
