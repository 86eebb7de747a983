"""Outcomes of events at the roles of PDOL, each with its class."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from hushstream.engine.declare.outcomes import OUTCOMES, Outcome
from hushstream.engine.declare.role import MetricClass


class PdolOutcome(StrEnum):
    """Beside those of `hushstream.engine.declare.outcomes`."""

    PREDICTED = "predicted"
    REPEATED_RECORD = "repeated_record"
    NULL_RECORD = "null_record"
    """A record broke a bound, so its slot is null."""
    LABELLED = "labelled"
    REPEATED_LABEL = "repeated_label"
    LATE_LABEL = "late_label"
    MEMBERSHIP = "membership"
    """A node joined or left."""
    SCREENED = "screened"
    STALE_RELEASE = "stale_release"
    PARAMETERS = "parameters"


class PdolRefusal(StrEnum):
    """Why a record goes to the dead letters, beside `hushstream.engine.declare.outcomes.Refusal`."""

    UNKNOWN_NODE = "unknown_node"
    """The node is unknown, or has another home partition."""
    ABSENT_NODE = "absent_node"
    """The node has left, or has not joined yet."""
    UNKNOWN_LABEL = "unknown_label"
    LABEL_WITHOUT_RECORD = "label_without_record"


REASONS = tuple(map(str, PdolRefusal))

_SHARED: Mapping[str, MetricClass] = {
    str(one): OUTCOMES[one]
    for one in (
        Outcome.SLOT,
        Outcome.ALLOWANCE_SPENT,
        Outcome.RELEASE,
        Outcome.RELEASE_WITHHELD,
        Outcome.DIVERGED,
        Outcome.MODEL_ADOPTED,
        Outcome.SEAL,
        Outcome.FORGOTTEN,
        Outcome.REJECTED,
    )
}

NODE_OUTCOMES: Mapping[str, MetricClass] = {
    **_SHARED,
    PdolOutcome.PREDICTED: "slot-public",
    PdolOutcome.REPEATED_RECORD: "slot-public",
    # These are zone-private: the guarantee hides which slots are null, and a spent allowance shows that a person came
    # often.
    PdolOutcome.NULL_RECORD: "zone-private",
    Outcome.ALLOWANCE_SPENT: "zone-private",
    PdolOutcome.LABELLED: "zone-private",
    PdolOutcome.REPEATED_LABEL: "zone-private",
    PdolOutcome.LATE_LABEL: "zone-private",
    PdolOutcome.PARAMETERS: "slot-public",
    PdolOutcome.MEMBERSHIP: "slot-public",
}

AGGREGATOR_OUTCOMES: Mapping[str, MetricClass] = {
    str(one): OUTCOMES[one]
    for one in (Outcome.RELEASE, Outcome.REPEATED_RELEASE, Outcome.MODEL, Outcome.SEAL, Outcome.REJECTED)
} | {
    PdolOutcome.SCREENED: "released",
    PdolOutcome.STALE_RELEASE: "slot-public",
    PdolOutcome.MEMBERSHIP: "slot-public",
}
