"""The fixed list of outcomes that machines count; those of `hushstream.feedback.join` come on top.

Labels of metrics come from these lists alone.

*Imported when called.* Functions of a declaration that are imported when they are called.

A worker reads the whole declaration of its system. It would otherwise start with the machines of all other roles, too,
and with reports and plans that only commands print: together an eighth of the CPU time of its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from importlib import import_module
from typing import Any, Literal


def imported_by(package: str) -> Callable[[str], Callable[..., Any]]:
    """Gives functions and classes of a package by name (`module:attribute`); each is imported at its first call."""
    return lambda name: partial(call_imported, package, *name.split(":"))


def call_imported(package: str, module: str, attribute: str, *arguments: Any, **named: Any) -> Any:
    """Import a module of a package, and call what its attribute names."""
    return getattr(import_module(f"{package}.{module}"), attribute)(*arguments, **named)


class Outcome(StrEnum):
    """What became of an event. Counts of these are zone-private unless the metrics table says otherwise."""

    DECIDED = "decided"
    EXPLORED = "explored"
    """A decision with a propensity below one half, so that another item was as likely."""
    VALUE_MISSING = "value_missing"
    """A declared feature of a context whose value is missing, or not in its vocabulary."""
    VALUE_AT_END = "value_at_end"
    """A declared number at an end of its range, or beyond it and clipped."""
    OVER_QUOTA = "over_quota"
    REPEATED_CONTEXT = "repeated_context"
    PARKED = "parked"
    SLOT_SENT = "slot_sent"
    SLOT = "slot"
    REPEATED_SLOT = "repeated_slot"
    FORGED_SLOT = "forged_slot"
    """A slot that holds neither a report nor null. It counts as null."""
    WINDOW = "window"
    WINDOW_SUMS = "window_sums"
    REPEATED_WINDOW_SUMS = "repeated_window_sums"
    REWARD_TAKEN = "reward_taken"
    REPEATED_REWARDS = "repeated_rewards"
    ALLOWANCE_SPENT = "allowance_spent"
    RELEASE = "release"
    REPEATED_RELEASE = "repeated_release"
    RELEASE_PART = "release_part"
    INCOMPLETE_RELEASE = "incomplete_release"
    """Parts of a release whose other parts never came. No reader uses them."""
    RELEASE_WITHHELD = "release_withheld"
    DIVERGED = "diverged"
    NOT_SHOWN = "not_shown"
    MODEL = "model"
    MODEL_ADOPTED = "model_adopted"
    ITEM_CHANGED = "item_changed"
    SEAL = "seal"
    FORGOTTEN = "forgotten"
    EXPIRED = "expired"
    TICK = "tick"
    REJECTED = "rejected"


_SLOT_PUBLIC = (
    Outcome.SLOT_SENT,
    Outcome.SLOT,
    Outcome.REPEATED_SLOT,
    Outcome.WINDOW,
    Outcome.WINDOW_SUMS,
    Outcome.REPEATED_WINDOW_SUMS,
    Outcome.REWARD_TAKEN,
    Outcome.REPEATED_REWARDS,
    Outcome.ALLOWANCE_SPENT,
    Outcome.NOT_SHOWN,
    Outcome.RELEASE,
    Outcome.REPEATED_RELEASE,
    Outcome.RELEASE_PART,
    Outcome.INCOMPLETE_RELEASE,
    Outcome.RELEASE_WITHHELD,
    Outcome.DIVERGED,
    Outcome.MODEL,
    Outcome.MODEL_ADOPTED,
    Outcome.ITEM_CHANGED,
    Outcome.SEAL,
    Outcome.TICK,
)
"""Class of outcomes that follow from public events (slots, windows, rows that leave, versions) and not from clicks."""

OUTCOMES: Mapping[str, Literal["slot-public", "zone-private"]] = {
    str(outcome): "slot-public" if outcome in _SLOT_PUBLIC else "zone-private" for outcome in Outcome
}
"""All outcomes, each with its class."""


class Refusal(StrEnum):
    """Reasons why a role sends a record to the dead letters, besides those of the codec."""

    UNNORMALISED_CONTEXT = "unnormalised_context"
    AFTER_CLICK_UNREACHABLE = "after_click_unreachable"
    TOO_MANY_ROWS = "too_many_rows"
    BAD_PHASE = "bad_phase"
    MALFORMED_FEATURES = "malformed_features"
    UNKNOWN_LINE = "unknown_line"
    EVENT_OF_ANOTHER_USER = "event_of_another_user"
    CLICK_WITHOUT_CONTEXT = "click_without_context"
    TOO_MANY_PARKED = "too_many_parked"
    BASELINE_NOT_ELIGIBLE = "baseline_not_eligible"
    OTHER_CONFIGURATION = "other_configuration"
    STALE_PERIOD = "stale_period"
    MALFORMED_SLOT = "malformed_slot"
    SEALED_FOR_ANOTHER = "sealed_for_another"
    MALFORMED_MODEL = "malformed_model"
    UNKNOWN_ORIGIN = "unknown_origin"
    MALFORMED_REWARDS = "malformed_rewards"
    MALFORMED_RELEASE = "malformed_release"
    MALFORMED_PART = "malformed_part"
    FOREIGN_USER = "foreign_user"
    """A context of a user with another home partition. If it were accepted, the user would have a second allowance."""
    UNKNOWN_USER = "unknown_user"
    TOO_LONG_FEATURES = "too_long_features"
    ITEM_REFUSED = "item_refused"
    """A change of the catalogue that does not count: another change came first, or it is invalid."""
    NOTHING_OFFERED = "nothing_offered"
    """A context that names no item that is offered."""
    MALFORMED_ROWS = "malformed_rows"
