"""Outcomes of an event or a record in P-DAP, besides those of the engine."""

from __future__ import annotations

from enum import StrEnum

BEYOND_HORIZON = "beyond_horizon"
"""An outcome that came after the horizon of its counter; this is public."""


ARM_CHANGED = "arm_changed"
"""A vendor retired an item, or offered it: public."""


class PdapRefusal(StrEnum):
    """Why a role sent a record to the dead letters."""

    CONTEXT_OUTSIDE = "context_outside"
    """An entry of a context is not from 0 to 1."""
    REWARD_OFF_LEVELS = "reward_off_levels"
    MALFORMED_OUTCOMES = "malformed_outcomes"
    OTHER_COUNTER = "other_counter"
    ARM_OF_ANOTHER_VENDOR = "arm_of_another_vendor"
    """A change of an item by a vendor that does not own it."""
