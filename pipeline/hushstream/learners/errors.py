"""Errors of learners."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class LearnerError(HushstreamError):
    """A model, state or context is invalid for a learner. The message says what was expected and what was given."""


class NoEligibleArm(LearnerError):
    """A choice without any eligible arm."""

    def __init__(self, arms: int) -> None:
        super().__init__(f"expected at least one eligible arm among {arms}, got none")
