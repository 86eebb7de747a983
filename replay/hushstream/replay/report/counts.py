"""The class of every count that a result may carry (PRIVACY.md, rule 11).

*Slot-public* counts follow from what the guarantee says it does not protect: slots, windows, records per topic.
*Zone-private* counts tell something of content (joins, nulls, dead letters) and are shown for public data only. A
count that is on neither list has no class, and a result that carries it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hushstream.engine.declare.outcomes import Refusal
from hushstream.replay.report.values import require
from hushstream.schemas.reasons import Reason
from hushstream.systems.catalogue import kinds

CountClass = Literal["slot-public", "zone-private"]

RECORDS_PREFIX = "records_"
"""``records_<topic>`` counts the records of one topic."""

_PUBLIC_PLAN = ("contributors", "evaluated", "users", "contexts", "decisions", "slots", "windows", "models")
_PRIVATE_TOTALS = ("clicks", "reports", "null_slots", "sampled", "withheld", "suppressed", "dead_letters")


def _classes() -> dict[str, CountClass]:
    classes: dict[str, CountClass] = {}
    for name in (*Refusal, *Reason, *_PRIVATE_TOTALS):
        classes[str(name)] = "zone-private"
    for kind in kinds().values():
        for role in kind.roles:
            for name, of in role.outcomes.items():
                classes[name] = "slot-public" if of == "slot-public" else "zone-private"
        for topic in kind.topics:
            # How many clicks there were, and how many records were refused, tells something of content.
            private = topic.private_lag or topic.holds_dead_letters
            classes[RECORDS_PREFIX + topic.name] = "zone-private" if private else "slot-public"
    return {**classes, **dict.fromkeys(_PUBLIC_PLAN, "slot-public")}


COUNT_CLASSES: Mapping[str, CountClass] = _classes()


def require_classed(counts: Mapping[str, int]) -> None:
    """Refuse a count without a privacy class, as it is not decided who may see it.

    Raises:
        BadResult: names those without a class.
    """
    unclassed = sorted(set(counts) - set(COUNT_CLASSES))
    require(not unclassed, "counts", "names that have a privacy class", ", ".join(unclassed))


def slot_public(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that a live run may show."""
    return {name: value for name, value in counts.items() if COUNT_CLASSES.get(name) == "slot-public"}


def counts_json(counts: Mapping[str, int]) -> dict[str, Any]:
    """Counts and, under the same names, the privacy class of each, for ``results.json``."""
    return {"counts": dict(counts), "count_classes": {name: COUNT_CLASSES[name] for name in counts}}
