"""The call that shows an owner what the shared model brings and what was paid for it, from released records alone.

Nothing here moves with a click before a release does: the figures are those of `hushstream lift` and `hushstream
budget`, read from the topics of releases and ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import Compared, System
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.gateway.conversation.calls import Answered, Call
from hushstream.ops import budget
from hushstream.ops.log_copy import LogCopy, whole
from hushstream.privacy.amounts import Cost, delta_value, epsilon_float, float_up
from hushstream.schemas.errors import HushstreamError


class Comparison(Answered):
    """What users with the shared model earn, compared with others."""

    over: Annotated[str, Field(description="What it is compared with.")]
    harm: Annotated[str, Field(description="The guardrail's harm that is compared; empty where rewards are.")]
    difference: Annotated[
        float | None, Field(description="How much more a decision earns (or harms); null while the noise hides it.")
    ]
    low: Annotated[float | None, Field(description="Lower end of its 95 % confidence interval.")]
    high: Annotated[float | None, Field(description="Upper end of its 95 % confidence interval.")]
    counted: Annotated[float, Field(description="Noised number of decisions counted so far, on both sides.")]
    needed: Annotated[
        float | None,
        Field(description="About how many decisions exclude 0 if the difference stays; null if no number does."),
    ]


class Measured(Answered):
    """The A/B measurement, of its newest releases."""

    comparisons: tuple[Comparison, ...]
    about: Annotated[str, Field(description="How to read it, or why there is nothing yet.")]


class Amount(Answered):
    """A privacy cost, (epsilon, delta), under zero-out."""

    epsilon: float
    delta: float


class Paid(Answered):
    """What one privacy unit has paid, at most, and what it may pay."""

    unit: Annotated[str, Field(description="Who or what pays.")]
    limit: Amount
    paid: Amount
    left: Annotated[Amount, Field(description="The largest further charge that fits.")]
    released: Annotated[str, Field(description="What is released on a charge, in words.")]
    releases: Annotated[int, Field(description="How many such releases the ledger holds.")]
    releases_left: Annotated[
        int | None, Field(description="How many more a partition can make; null: any number, each pays for itself.")
    ]


class OverviewAnswered(Answered):
    """What the shared model brings, and what was paid for it."""

    measurement: Annotated[Measured | None, Field(description="Null in a deployment that measures nothing.")]
    budget: tuple[Paid, ...]


OVERVIEW = Call(
    "overview",
    "What the shared model brings, and what was charged (operators)",
    "Released figures alone: no click moves them before a release does.",
    None,
    OverviewAnswered,
    ("not-an-operator", "log-unavailable"),
    for_operators=True,
)


class Overview:
    """Reads the releases and ledgers of a deployment, each record once."""

    def __init__(self, log: EventLog, system: System) -> None:
        """Over a client's log; nothing is read yet."""
        self._log, self._system = log, system
        self._read: dict[TopicPartition, list[InputRecord]] = {
            (topic, partition): [] for topic in system.overview_topics for partition in range(system.partitions[topic])
        }
        self._reading = asyncio.Lock()

    async def show(self) -> OverviewAnswered:
        """Answer `OVERVIEW`.

        Raises:
            HushstreamError: a topic cannot be read.
        """
        async with self._reading:
            for place, records in self._read.items():
                records += await self._log.read(*place, records[-1].offset + 1 if records else 0)
        logs = LogCopy({place: whole(records) for place, records in self._read.items()})
        return OverviewAnswered(measurement=_measured(logs, self._system), budget=tuple(_paid(logs, self._system)))


def _measured(logs: LogCopy, system: System) -> Measured | None:
    view = system.measurement
    if view is None:
        return None
    try:
        report = view.read(record.value for record in logs.records(view.topics))
    except HushstreamError as nothing_yet:
        return Measured(comparisons=(), about=str(nothing_yet))
    return Measured(comparisons=tuple(map(_comparison, report.comparisons())), about=report.as_text())


def _comparison(found: Compared) -> Comparison:
    low, high = (None, None) if found.interval is None else found.interval
    needed, harm = found.needed, found.harm
    return Comparison(
        over=found.over,
        harm=harm,
        difference=found.difference,
        low=low,
        high=high,
        counted=found.counted,
        needed=needed,
    )


def _paid(logs: LogCopy, system: System) -> Iterable[Paid]:
    """What was paid of each budget; of several partitions or parties, by the one that paid most."""
    found = budget.read(logs, system)
    owns = {terms.own for terms in system.ledgers.values()}
    for facts in system.budgets:
        # The lift has a budget of its own, behind that of all other releases.
        lift = len(system.budgets) > 1 and facts is system.budgets[-1] and "lift" in owns
        deployments = [one for one in found.deployments if one.scope.startswith("deployment-lift") is lift]
        charges = [one for one in found.charges if one.scope.startswith("lift/") is lift]
        yield _paid_of(facts, deployments, charges)


def _paid_of(facts: BudgetFacts, deployments: list[budget.Account], charges: list[budget.Account]) -> Paid:
    most = max((one.spent for one in deployments), key=_size, default=Cost(0))
    left = min((one.left for one in deployments), key=_size, default=facts.limit)
    held = (facts.releases - one.entries for one in charges if not one.refusing) if facts.releases is not None else ()
    return Paid(
        unit=facts.unit,
        limit=_amount(facts.limit),
        paid=_amount(most),
        left=_amount(left),
        released=facts.released,
        releases=sum(one.entries for one in charges),
        releases_left=None if facts.releases is None else max(0, min(held, default=0 if charges else facts.releases)),
    )


def _size(cost: Cost) -> tuple[int, int]:
    return cost.epsilon_micro, cost.delta_units


def _amount(cost: Cost) -> Amount:
    return Amount(epsilon=epsilon_float(cost.epsilon_micro), delta=float_up(delta_value(cost.delta_units)))
