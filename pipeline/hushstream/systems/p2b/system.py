"""The declaration of P2B for the catalogue, of its roles, and of its deployments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import (
    EVERYBODY,
    Erasure,
    Fact,
    HoldoutView,
    Kind,
    ModelView,
    PlanView,
    System,
    Words,
    names_user,
)
from hushstream.engine.declare.exploring import exploration_facts
from hushstream.engine.declare.gauges import budget_gauges, model_gauges
from hushstream.engine.declare.imported import imported_by
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.result import RECOMMENDATIONS
from hushstream.engine.declare.role import Role, RoleKeys, answering_role, keyed, publishing_role, releasing_role
from hushstream.engine.declare.topics import EVENTS_STAY
from hushstream.engine.devices.published import AGREEMENT, SEALING, SEALING_ZONE, SIGNING, SIGNING_ZONE, keys_published
from hushstream.engine.devices.signing import Signer
from hushstream.engine.system import Priced
from hushstream.feedback.join import JOIN_OUTCOMES
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.promise import Promises
from hushstream.privacy.promises.sentence import Prices, price_text
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import KEYS, P2BConfig
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.promise import life_prices, lifetime_slots_of, priced, window_tree_of
from hushstream.systems.p2b.guarantee.summed import summed_of
from hushstream.systems.p2b.lift import lift_figures
from hushstream.systems.p2b.model_file import ExportedModel
from hushstream.systems.p2b.prepared import artefacts as files
from hushstream.systems.p2b.topics import (
    EDGE_ZONE,
    LIFT,
    MODEL_PARTS,
    SERVER_ZONE,
    SHUFFLER_ZONE,
    STATEMENTS,
    TOPICS,
    topics_of,
)

if TYPE_CHECKING:
    from hushstream.systems.p2b.machines.learner import LearnerMachine
    from hushstream.systems.p2b.machines.shuffler import ShufflerMachine

NAME = "p2b"

# Each is imported when it is called.
_imported = imported_by("hushstream.systems.p2b")
_learner = _imported("machines.learner:LearnerMachine")
_shuffler = _imported("machines.shuffler:ShufflerMachine")
_aggregator = _imported("machines.aggregator:AggregatorMachine")
_aggregator_outlook = _imported("reports.planning.outlook:aggregator_outlook")
_device_service = _imported("device_service:VisitDeviceService")
_device_facts = _imported("reports.device_facts:device_facts")
_feature_facts = _imported("reports.feature_facts:facts_of")
_plan = _imported("reports.planning.plan:plan")
_plan_warnings = _imported("reports.planning.plan:warnings")
_released_plan = _imported("reports.planning.from_releases:released_plan")
_read_lift = _imported("reports.lift_report:read_lift")
_read_shadow = _imported("reports.shadow_report:read_shadow")
_read_model = _imported("reports.model_report:read_model")
_export_model = _imported("reports.model_export:export_model")
_change_of = _imported("reports.model_report:change_of")

_DEVICES: Mapping[str, Literal["Read", "Write"]] = {"reports": "Write", STATEMENTS.name: "Read"}
"""What a gateway for devices may do: it appends their sealed slots, and hands out signed models."""

_RELAY: Mapping[str, Mapping[str, Literal["Read", "Write"]]] = {"learner": {"reports": "Write", "models": "Read"}}
"""The rights of a relay for agents on users' devices, if there are no learner workers: under the learner's name it
writes their slots and fetches models for them."""


# The roles: the topics that each reads and writes, how its machine is made, and the gauges that it may show.


def _make_shuffler(system: P2BSystem, home: int, keys: RoleKeys) -> Any:
    return _shuffler(system, home, keys.own, keys.kept(SEALING_ZONE), keys.ring)


def _signing_aggregator(system: P2BSystem, track: int, keys: RoleKeys) -> Any:
    assert system.signing is not None, "devices take models that are signed"
    return _aggregator(system, track, Signer(system.signing, keys.kept(SIGNING_ZONE)))


def _learner_gauges(machine: LearnerMachine, now_seconds: float) -> Mapping[str, float]:
    spent = {} if machine.spending is None else budget_gauges("lift", machine.spending, machine.refused)
    version = machine.terms.policy.shared("private").version
    return {**spent, **model_gauges(version, machine.models[0].published_ms, now_seconds)}


def _learner_figures(core: P2BSystem, topic: str, value: bytes) -> Mapping[str, float]:
    """The gauges of the lift over a hold-out.

    In the shadow there are none, because the counts of one partition by item are too small.
    """
    if topic != "lift" or not core.config.lift.holdout:
        return {}
    fields = codec.decode(value, frozenset({"Lift"}))[1]
    newest = (np.frombuffer(fields["sums"], "<i8"), fields["variance"], fields["levels"])
    return lift_figures(newest, core.config.lift.decisions_per_user)


def _shuffler_gauges(machine: ShufflerMachine, now_seconds: float) -> Mapping[str, float]:
    # A slot is in one window and is paid for once: with its window, or with the counter over all windows.
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
    keyed(_learner),
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
    _make_shuffler,
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
    _aggregator,
    inputs=("crowds", "interactions"),
    outcomes=OUTCOMES,
    outlook=_aggregator_outlook,
)

LEARNER_OF_ITEMS = replace(LEARNER, broadcasts=("models", "items"))
"""The learner where items have names: it follows the catalogue."""

OPENING_SHUFFLER = replace(SHUFFLER, further_key_zones=(SEALING_ZONE,))
"""The shuffler where slots are sealed: it opens them with a key of its own."""

SIGNING_AGGREGATOR = replace(
    AGGREGATOR,
    make=_signing_aggregator,
    further_key_zones=(SIGNING_ZONE,),
    writes=(*AGGREGATOR.writes, STATEMENTS.name),
)
"""The aggregator where devices take models: it signs them with a key of its own."""

ROLES_IN_PARTS = (
    *(replace(one, broadcasts=(*one.broadcasts, MODEL_PARTS.name)) for one in (LEARNER, LEARNER_OF_ITEMS)),
    replace(AGGREGATOR, writes=(*AGGREGATOR.writes, MODEL_PARTS.name)),
)
"""The roles that read and write a model's parts, where a model is larger than a record."""

ROLES = (LEARNER, LEARNER_OF_ITEMS, SHUFFLER, OPENING_SHUFFLER, AGGREGATOR, SIGNING_AGGREGATOR, *ROLES_IN_PARTS)
"""All roles that a deployment may have."""


def roles_of(hosted: bool, sealed: bool, named: bool, in_parts: bool, devices: bool) -> tuple[Role, ...]:
    """The roles of a deployment.

    Args:
        hosted: whether learners are workers; else they are agents on devices.
        sealed: whether slots are sealed.
        named: whether items have names.
        in_parts: whether models leave in parts.
        devices: whether models are signed for devices.
    """
    numbered_parts, named_parts, aggregator_parts = ROLES_IN_PARTS
    whole = SIGNING_AGGREGATOR if devices else AGGREGATOR
    learner, learner_parts = (LEARNER_OF_ITEMS, named_parts) if named else (LEARNER, numbered_parts)
    return (
        *((learner_parts if in_parts else learner,) if hosted else ()),
        OPENING_SHUFFLER if sealed else SHUFFLER,
        aggregator_parts if in_parts else whole,
    )


# A deployment.


def declare(core: P2BSystem) -> System:
    """The declaration of one deployment."""
    config = core.config
    hosted, in_parts = config.kind == "hosted", core.form.parts > 1
    return System(
        core=core,
        roles=roles_of(hosted, config.slot.sealed, config.named_items, in_parts, config.devices),
        topics=topics_of(core.non_private_arm, core.counts_lift, hosted, config.named_items, in_parts, config.devices),
        erasure=_erasure(config),
        words=_words(config),
        facts=summed_of(config).resolved,
        before=started_facts(core.promises, core.start),
        requests=core.requests if hosted else None,
        outside={} if hosted or config.devices else _RELAY,
        devices=_DEVICES if config.devices else {},
        device_service=(lambda _: _device_service(core)) if config.devices else None,
        models=ModelView(
            ("models", *((MODEL_PARTS.name,) if in_parts else ())),
            lambda values, version, catalogues: _read_model(core, values, version, catalogues.get(EVERYBODY)),
            _change_of,
            lambda values, version, catalogues: _export_model(core, values, version, catalogues.get(EVERYBODY)),
            drawn=True,
        ),
        ahead=_ahead(core),
        holdout=HoldoutView((LIFT.name,), partial(_read_lift, system=core)) if config.lift.holdout else None,
        shadow=HoldoutView((LIFT.name,), partial(_read_shadow, system=core)) if config.shadow.epsilon else None,
    )


def _ahead(core: P2BSystem) -> PlanView | None:
    if core.config.release.mode != "slot-sums":
        return None
    return PlanView(("crowds",), partial(_released_plan, core))


def _assemble(config: P2BConfig, artefacts: Artefacts) -> System:
    return declare(files.assemble(config, artefacts))


def _priced(config: P2BConfig, artefacts: Artefacts) -> Priced:
    return priced(config, artefacts.non_private_arm)


_SHUFFLED = "shuffled, with a trusted curator at the shuffler; "
_EXAMPLE = "Ann's slot reports a click on arm 3 in some situation, and is not empty"


def _words(config: P2BConfig) -> Words:
    if config.kind == "hosted":
        return Words(
            trust=f"{_SHUFFLED}hosted: the operator's workers hold contexts and clicks in clear",
            erasure="hushstream forget drops the user's state; the user's records go with their topics' retention; "
            "what was released stays, noised; that the allowance is spent stays, under a keyed digest",
            example=_EXAMPLE,
            result=RECOMMENDATIONS,
        )
    return Words(
        trust=f"{_SHUFFLED}edge: learners are agents on users' devices, and only padded slots leave them; no topic of "
        "the deployment holds contexts, clicks or decisions",
        erasure="the application drops the user's agent, on the device that holds all of the user's state; slots name "
        "no user and go with their topic's retention; what was released stays, noised",
        example=_EXAMPLE,
        result=RECOMMENDATIONS,
    )


def _erasure(config: P2BConfig) -> Erasure:
    return Erasure(
        stays=(
            "what was released with noise in it (crowds and the models made of them); the user's guarantee covers it",
            "what is spent of their allowance and quota, under a keyed digest of their name: erasure refills neither",
            EVENTS_STAY,
        ),
        waits=(
            f"a slot that they owe, and their name with it: sent as null within {config.slot.settle_seconds:g} s of "
            f"log time",
            "their state in the learner's data directory: until its next snapshot; sealed on state-learner: five days",
        ),
        names=names_user,
    )


def _check(config: P2BConfig) -> None:
    """Refuse valid settings that are not valid together: too many codes, or records that would be too large."""
    summed_of(config).check()


def _resolved(config: P2BConfig) -> Mapping[str, str | float]:
    return summed_of(config).resolved


_FACTS: Mapping[str, Callable[[P2BConfig], Sequence[Fact]]] = {"codes": lambda _: (), "features": _feature_facts}


_WHATEVER_A_SLOT_HOLDS = (
    "It changes no guarantee: what leaves is bounded for whatever item a slot may hold, and when a slot is due follows "
    "from the number of decisions alone."
)


def _facts(config: P2BConfig, artefacts: Artefacts) -> Sequence[Fact]:
    declared = _FACTS[config.release.form](config)
    start = None if artefacts is None else files.read_start(artefacts)
    return (
        *declared,
        *started_facts(priced(config).promises, start),
        *_device_facts(config, lifetime_slots_of(config)),
        *_renewal(config),
        *exploration_facts(config.exploration, _WHATEVER_A_SLOT_HOLDS),
    )


def _renewal(config: P2BConfig) -> Sequence[Fact]:
    every, slots = config.slot.renew_every_seconds, lifetime_slots_of(config)
    if every is None:
        return ()
    one, life = (life_prices(config, count) for count in (1, slots))
    lift = ", the lift's included" if config.counted is not None else ""
    return (
        Fact(
            "renew_every_seconds",
            every,
            f"A user who comes back gets a new slot {every / 3600:,.4g} hours of log time after one fell due, at most "
            f"{slots} in their life (privacy.units_per_person). Which of two things they did costs "
            f"{price_text(one.which)} with one slot and {price_text(life.which)} over their life{lift}; a user who "
            f"stays long enough pays all of it.",
        ),
    )


def _notes(config: P2BConfig) -> Sequence[str]:
    """Warnings: a negative plan, a hold-out in shadow mode, and a counter whose windows time may use up early."""
    found: Sequence[str] = _plan_warnings(config)
    if config.mode == "shadow" and config.lift.holdout:
        found = (
            *found,
            "holdout.share: in the shadow everybody sees the application's own choice, and these decisions would be "
            "counted with those of the live deployment; set holdout.share in the deployment that goes live, and "
            "shadow.epsilon here",
        )
    release = config.release
    if release.window_seconds is None or (tree := window_tree_of(config)) is None:
        return found
    hours = tree.horizon * release.window_seconds / 3600
    return (
        *found,
        f"release.horizon: time closes windows as well, and the counter serves {tree.horizon} of a partition: at one "
        f"each {release.window_seconds:g} s they last {hours:.3g} hours, and then nothing is released any more; state "
        f"as many as the deployment will need, or release.sums: fresh",
    )


def _period_ms(config: P2BConfig) -> int:
    return round(config.slot.period_seconds * 1000)


def started_facts(promises: Promises, start: ExportedModel | None) -> Sequence[Fact]:
    """The total price for a person who is in this deployment and in the one whose model it began with.

    Empty if it began without a model.
    """
    if start is None:
        return ()
    about, both = start.about, start.paid + promises.together
    ids = [one for one in start.items if isinstance(one, str)]
    by_id = f" It knows {count_text(len(ids), 'item')} by id; others begin as new ones." if ids else ""
    return (
        Fact(
            "started_from_slots",
            start.slots,
            f"New users begin with version {about['version']} of the model of deployment {about['deployment']} "
            f"({start.slots:,.0f} slots).{by_id} Whoever gave a slot there has paid {_in_words(start.paid)}; whoever "
            f"is in both pays {_in_words(both)} together.",
        ),
    )


def _in_words(paid: Prices) -> str:
    which = f"{price_text(paid.which)} about which of two things they did"
    if paid.took_part is None:
        return which
    return f"{which} and {price_text(paid.took_part)} about whether they took part at all"


KIND = Kind(
    name=NAME,
    summary="local learners, one padded slot of each user, noised sums by a shuffler, a shared model to start from",
    config=P2BConfig,
    unit="slot",
    keys=KEYS,
    topics=TOPICS,
    roles=ROLES,
    prepare=files.prepare,
    assemble=_assemble,
    priced=_priced,
    artefacts=(files.ENCODER, SEALING, files.START, SIGNING, AGREEMENT),
    inputs=(files.STARTED_FROM,),
    resolved=_resolved,
    check=_check,
    facts=_facts,
    notes=_notes,
    plan=lambda config, artefacts, audience: _plan(config, audience),
    published_keys=keys_published(_period_ms),
    study="hushstream.replay.studies.p2b.study:STUDY",
)
