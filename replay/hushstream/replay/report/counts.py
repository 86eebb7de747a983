"""The class of every count that a result may carry (PRIVACY.md, rule 11).

*Slot-public* counts follow from what the guarantee says it does not protect: slots, windows, records per topic.
*Zone-private* counts tell something of content (joins, nulls, dead letters) and are shown for public data only. A
count that is on neither list has no class, and a result that carries it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.feedback.join import JoinOutcome
from hushstream.schemas.reasons import Reason
from hushstream.schemas.topics import TOPICS

CountClass = Literal["slot-public", "zone-private"]

RECORDS_PREFIX = "records_"
"""``records_<topic>`` counts the records of one topic."""

_PUBLIC_OUTCOMES = frozenset(
    {
        Outcome.SLOT_SENT,
        Outcome.SLOT,
        Outcome.REPEATED_SLOT,
        Outcome.WINDOW,
        Outcome.CROWD,
        Outcome.REPEATED_CROWD,
        Outcome.REWARD_TAKEN,
        Outcome.REPEATED_REWARDS,
        Outcome.ALLOWANCE_SPENT,
        Outcome.NOT_SHOWN,
        Outcome.RELEASE,
        Outcome.REPEATED_RELEASE,
        Outcome.RELEASE_WITHHELD,
        Outcome.DIVERGED,
        Outcome.MODEL,
        Outcome.MODEL_ADOPTED,
        Outcome.SEAL,
        Outcome.TICK,
    }
)
_PUBLIC_PLAN = ("contributors", "evaluated", "users", "contexts", "decisions", "slots", "windows", "models")
_PRIVATE_TOTALS = ("clicks", "reports", "null_slots", "sampled", "withheld", "suppressed", "dead_letters")


def _classes() -> dict[str, CountClass]:
    classes: dict[str, CountClass] = {}
    for name in (*Outcome, *JoinOutcome, *Refusal, *Reason, *_PRIVATE_TOTALS):
        classes[str(name)] = "zone-private"
    for name in (*_PUBLIC_OUTCOMES, *_PUBLIC_PLAN):
        classes[str(name)] = "slot-public"
    for topic in TOPICS:
        # How many clicks there were, and how many records were refused, tells something of content.
        private = topic in ("clicks", "interactions") or topic.startswith("dead-letters")
        classes[RECORDS_PREFIX + topic] = "zone-private" if private else "slot-public"
    return classes


COUNT_CLASSES: Mapping[str, CountClass] = _classes()


def slot_public(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that a live run may show."""
    return {name: value for name, value in counts.items() if COUNT_CLASSES.get(name) == "slot-public"}
