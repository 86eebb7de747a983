"""What can be configured of a poll."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from hushstream.engine.configuration import LARGEST_EPSILON, PrivacyConfig, canonical_form, undigested_privacy
from hushstream.engine.values import Checked, Is, check_fields, price, require_deployment, seconds, whole

NAME = "poll"


@dataclass(frozen=True, slots=True)
class PollConfig(Checked):
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

    deployment: str
    epsilon: Annotated[float, Is("epsilon", price, LARGEST_EPSILON)] = 1.0
    window_votes: Annotated[int, Is("window_votes", whole, 1, 1_000_000)] = 100
    window_seconds: Annotated[float | None, Is("window_seconds", seconds, 0.001)] = None
    votes_per_user: Annotated[int, Is("votes_per_user", whole, 1, 1000)] = 1
    homes: Annotated[int, Is("homes", whole, 1, 64)] = 1
    privacy: PrivacyConfig = undigested_privacy()
    system: str = NAME

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, NAME)
        check_fields(self)

    @property
    def open_ms(self) -> int | None:
        """For how long of log time a window is open."""
        return None if self.window_seconds is None else round(self.window_seconds * 1000)


def poll_digest(config: PollConfig, options: Sequence[str], public_dataset: bool) -> bytes:
    """16 bytes that stand for a configuration and its options."""
    canonical = canonical_form(config, public_dataset) + json.dumps(list(options)).encode()
    return hashlib.blake2b(canonical, digest_size=16, person=b"poll-config").digest()
