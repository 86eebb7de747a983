"""Parts of a configuration that more than one system has."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from hushstream.engine.values import REFUSE_UNKNOWN, seconds, whole

LARGEST_EPSILON = 20.0
"""Of one release; more protects nobody."""


@dataclass(frozen=True, slots=True)
class FeedbackConfig:
    """How shown and reward are joined to the decision, in log time.

    Attributes:
        reward_wait_seconds: a decision that was shown and not clicked by then counts as reward 0.
        parked_clicks: how many clicks may wait for a context that has not arrived, per partition; where users are
            known beforehand how many showings, each with its reward, divided among the users.
        remembered_events: how many past event ids a partition knows again (same id, same answer).
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    reward_wait_seconds: float = 1800.0
    parked_clicks: int = 10_000
    remembered_events: int = 50_000

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        wait = seconds("feedback.reward_wait_seconds", self.reward_wait_seconds, 0.001)
        object.__setattr__(self, "reward_wait_seconds", wait)
        whole("feedback.parked_clicks", self.parked_clicks, 1, 10_000_000)
        whole("feedback.remembered_events", self.remembered_events, 1, 100_000_000)


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """Partition counts; frozen for the life of a deployment.

    Attributes:
        learner: partitions of contexts, clicks and decisions.
        shuffler: partitions of reports.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    learner: int = 1
    shuffler: int = 1

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        whole("partitions.learner", self.learner, 1, 4096)
        whole("partitions.shuffler", self.shuffler, 1, 4096)


def canonical_form(config: Any, public_dataset: bool) -> bytes:
    """The bytes that stand for a configuration and for whether a public dataset is replayed under it."""
    values = {**asdict(config), "public_dataset": public_dataset}
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
