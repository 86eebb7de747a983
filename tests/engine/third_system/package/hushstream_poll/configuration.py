"""What can be configured of a poll."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from hushstream.engine.configuration import LARGEST_EPSILON, PrivacyConfig, canonical_form, undigested_privacy
from hushstream.engine.values import REFUSE_UNKNOWN, price, require_deployment, seconds, whole

NAME = "poll"


@dataclass(frozen=True, slots=True)
class PollConfig:
    """A poll.

    Attributes:
        deployment: its name.
        epsilon: of one vote.
        window_votes: votes that close a window.
        window_seconds: log time that closes one; None: only votes do.
        votes_per_user: how many votes of a user count.
        homes: partitions of votes.
        privacy: what the operator says of the promise in words; no digest follows from it.
        system: always ``poll``.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    deployment: str
    epsilon: float = 1.0
    window_votes: int = 100
    window_seconds: float | None = None
    votes_per_user: int = 1
    homes: int = 1
    privacy: PrivacyConfig = undigested_privacy()
    system: str = NAME

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, NAME)
        object.__setattr__(self, "epsilon", price("epsilon", self.epsilon, LARGEST_EPSILON))
        whole("window_votes", self.window_votes, 1, 1_000_000)
        whole("votes_per_user", self.votes_per_user, 1, 1000)
        whole("homes", self.homes, 1, 64)
        if self.window_seconds is not None:
            seconds("window_seconds", self.window_seconds, 0.001)

    @property
    def open_ms(self) -> int | None:
        """For how long of log time a window is open."""
        return None if self.window_seconds is None else round(self.window_seconds * 1000)


def poll_digest(config: PollConfig, options: Sequence[str], public_dataset: bool) -> bytes:
    """16 bytes that stand for a configuration and its options."""
    canonical = canonical_form(config, public_dataset) + json.dumps(list(options)).encode()
    return hashlib.blake2b(canonical, digest_size=16, person=b"poll-config").digest()
