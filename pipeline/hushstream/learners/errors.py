"""What a learner refuses."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class LearnerError(HushstreamError):
    """A model, state or context that a learner cannot work with; says what was expected and what came."""


class NoEligibleArm(LearnerError):
    """A choice was asked for with no arm allowed."""

    def __init__(self, arms: int) -> None:
        super().__init__(f"expected at least one eligible arm among {arms}, got none")


class TooMuchMemory(LearnerError):
    """Dense learners for so many users would not fit the limit that was given."""

    def __init__(self, users: int, arms: int, dimension: int, asked_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"expected at most {limit_bytes:,} bytes of learner state, got {asked_bytes:,}"
            f" for {users:,} users with {arms} arms in {dimension} dimensions;"
            " lower one of them, reduce the dimension first, or raise the limit"
        )
