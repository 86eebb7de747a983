"""The roles of P2B: what each reads and writes, how its machine is made, and what it may show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hushstream.engine.declare.gauges import budget_gauges, model_gauges
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.role import Role, RoleKeys, answering_role, publishing_role, releasing_role
from hushstream.feedback.join import JOIN_OUTCOMES
from hushstream.schemas import codec
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.device.signing import Signer
from hushstream.systems.p2b.lift import lift_figures
from hushstream.systems.p2b.machines.aggregator import AggregatorMachine
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine
from hushstream.systems.p2b.planning.outlook import aggregator_outlook
from hushstream.systems.p2b.topics import (
    EDGE_ZONE,
    MODEL_PARTS,
    SEALING_ZONE,
    SERVER_ZONE,
    SHUFFLER_ZONE,
    SIGNING_ZONE,
    STATEMENTS,
)


def _learner(system: P2BSystem, home: int, keys: RoleKeys) -> LearnerMachine:
    return LearnerMachine(system, home, keys.own)


def _shuffler(system: P2BSystem, home: int, keys: RoleKeys) -> ShufflerMachine:
    sealing = keys.others[SEALING_ZONE].kept() if SEALING_ZONE in keys.others else ()
    return ShufflerMachine(system, home, keys.own, sealing, keys.ring)


def _signing_aggregator(system: P2BSystem, track: int, keys: RoleKeys) -> AggregatorMachine:
    assert system.signing is not None, "devices take models that are signed"
    held = keys.others[SIGNING_ZONE].kept() if SIGNING_ZONE in keys.others else ()
    return AggregatorMachine(system, track, Signer(system.signing, held))


def _learner_gauges(machine: LearnerMachine, now_seconds: float) -> Mapping[str, float]:
    spent = {} if machine.spending is None else budget_gauges("lift", machine.spending, machine.refused)
    version = machine.terms.policy.shared("private").version
    return {**spent, **model_gauges(version, machine.models[0].published_ms, now_seconds)}


def _learner_figures(core: P2BSystem, topic: str, value: bytes) -> Mapping[str, float]:
    """The lift over a hold-out; in the shadow items are counted, of which no partition alone says enough."""
    if topic != "lift" or not core.config.lift.holdout:
        return {}
    fields = codec.decode(value, frozenset({"Lift"}))[1]
    newest = (np.frombuffer(fields["sums"], "<i8"), fields["variance"], fields["levels"])
    return lift_figures(newest, core.config.lift.decisions_per_user)


def _shuffler_gauges(machine: ShufflerMachine, now_seconds: float) -> Mapping[str, float]:
    # A slot is in one window and pays once: for its window, or for the counter that all windows run through.
    price = machine.spending.terms.price.cost.epsilon_micro
    tree = machine.system.window_tree
    covered: dict[str, float] = {}
    if tree is not None:
        covered = {"slot_releases": machine.windows_covered, "slot_releases_limit": tree.horizon}
    return {
        **covered,
        "window_slots": machine.system.config.release.window_slots,
        "slot_spent_micro_epsilon": machine.spending.redraws * price,
        "slot_limit_micro_epsilon": machine.spending.terms.fits * price,
        "slot_price_micro_epsilon": price,
        "slot_refusing": machine.refused is not None,
    }


LEARNER = answering_role(
    "learner",
    EDGE_ZONE,
    _learner,
    inputs=("contexts", "clicks"),
    journal="decisions",
    writes=("reports", "interactions", "lift", "ledger-edge"),
    marks="marks-edge",
    homes="learner",
    gauges=_learner_gauges,
    figures=_learner_figures,
    scope_classes=("lift",),
    outcomes={**OUTCOMES, **JOIN_OUTCOMES},
)

SHUFFLER = releasing_role(
    "shuffler",
    SHUFFLER_ZONE,
    _shuffler,
    inputs=("reports",),
    journal="journal-shuffler",
    writes=("crowds", "ledger"),
    homes="shuffler",
    charges="slot",
    gauges=_shuffler_gauges,
    private_work=False,
    outcomes=OUTCOMES,
)

AGGREGATOR = publishing_role(
    SERVER_ZONE,
    AggregatorMachine,
    inputs=("crowds", "interactions"),
    outcomes=OUTCOMES,
    outlook=aggregator_outlook,
)

LEARNER_OF_ITEMS = replace(LEARNER, broadcasts=("models", "items"))
"""Where items have names: it follows the catalogue."""

OPENING_SHUFFLER = replace(SHUFFLER, further_key_zones=(SEALING_ZONE,))
"""Where slots are sealed: it opens them with a key of its own."""

SIGNING_AGGREGATOR = replace(
    AGGREGATOR,
    make=_signing_aggregator,
    further_key_zones=(SIGNING_ZONE,),
    writes=(*AGGREGATOR.writes, STATEMENTS.name),
)
"""Where devices take models: it signs them with a key of its own."""

ROLES_IN_PARTS = (
    *(replace(one, broadcasts=(*one.broadcasts, MODEL_PARTS.name)) for one in (LEARNER, LEARNER_OF_ITEMS)),
    replace(AGGREGATOR, writes=(*AGGREGATOR.writes, MODEL_PARTS.name)),
)
"""Where a model is larger than a record: those who read and write its parts."""

ROLES = (LEARNER, LEARNER_OF_ITEMS, SHUFFLER, OPENING_SHUFFLER, AGGREGATOR, SIGNING_AGGREGATOR, *ROLES_IN_PARTS)
"""All that a deployment may have."""


def roles_of(hosted: bool, sealed: bool, named: bool, in_parts: bool, devices: bool) -> tuple[Role, ...]:
    """Those that a deployment has.

    Learner workers or agents on devices, sealed slots or not, items by name or not, models as a whole or in parts, and
    signed or not.
    """
    numbered_parts, named_parts, aggregator_parts = ROLES_IN_PARTS
    whole = SIGNING_AGGREGATOR if devices else AGGREGATOR
    learner, learner_parts = (LEARNER_OF_ITEMS, named_parts) if named else (LEARNER, numbered_parts)
    return (
        *((learner_parts if in_parts else learner,) if hosted else ()),
        OPENING_SHUFFLER if sealed else SHUFFLER,
        aggregator_parts if in_parts else whole,
    )
