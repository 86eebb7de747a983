"""What a learner refuses."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class LearnerError(HushstreamError):
    """A model, state or context that a learner cannot work with; says what was expected and what came."""


class NoEligibleArm(LearnerError):
    """A choice was asked for with no arm allowed."""

    def __init__(self, arms: int) -> None:
        super().__init__(f"expected at least one eligible arm among {arms}, got none")
