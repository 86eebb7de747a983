"""The declaration of P2B for the catalogue, of its roles, and of its deployments.

*Facts of devices.* Facts for the statement of a deployment with devices: what leaves a device, who sees it, and what
can go wrong.

*Facts of declared features.* Facts that follow from a configuration of declared features, in numbers and words, for
whoever decides on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import (
    DEVICES,
    EVERYBODY,
    RECOMMENDATIONS,
    Erasure,
    Fact,
    Kind,
    MeasurementView,
    ModelView,
    Note,
    Report,
    Succession,
    System,
    Words,
    exploration_facts,
    names_user,
)
from hushstream.engine.declare.outcomes import OUTCOMES, imported_by
from hushstream.engine.declare.role import (
    Role,
    RoleKeys,
    answering_role,
    keyed,
    model_gauges,
    publishing_role,
    releasing_role,
    spending_gauges,
)
from hushstream.engine.declare.topics import EVENTS_STAY
from hushstream.engine.devices.published import AGREEMENT, SEALING, SEALING_ZONE, SIGNING, keys_published, signing_role
from hushstream.engine.devices.sealing import body_bytes
from hushstream.engine.system import Priced
from hushstream.feedback.join import JOIN_OUTCOMES
from hushstream.privacy.amounts import count_text, duration_text
from hushstream.privacy.promises.sentence import Prices, price_text
from hushstream.schemas import codec
from hushstream.systems.p2b import prepared as files
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.deployment import FeaturesForm, P2BSystem, reuse_after_ms
from hushstream.systems.p2b.guarantee import (
    expected_windows,
    layout_of_slots,
    life_prices,
    lifetime_slots_of,
    noise_variance,
    priced,
    summed_of,
    window_tree_of,
)
from hushstream.systems.p2b.lift import lift_figures
from hushstream.systems.p2b.models import ExportedModel
from hushstream.systems.p2b.server.totals import remembered
from hushstream.systems.p2b.succession import (
    FOLLOWS,
    STARTED_FROM,
    Predecessor,
    priced_after,
    require_within_life,
    sums_told,
)
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


def device_facts(config: P2BConfig, slots: int) -> Sequence[Fact]:
    """The facts, for whoever answers for users' privacy; none if the operator runs the learners.

    Args:
        config: of the deployment.
        slots: how many slots a user sends in their life.
    """
    if not config.devices:
        return ()
    slot = config.slot
    size = body_bytes(int(summed_of(config).resolved["slot_bytes"]))
    many = "one report" if slots == 1 else f"{slots} reports"
    wait = duration_text(config.feedback.attribution_window_seconds + slot.settle_seconds)
    return (
        Fact(
            "devices_send",
            size,
            f"What leaves a device: {many} in a life, of {size} bytes each, whatever is in it, after "
            f"{slot.after_interactions} decisions; and requests for the model, the same for everybody while the "
            f"aggregator is honest. A report leaves at a random time within {wait} after the decision that completes "
            "it, or later when the device next runs. There is no cookie, no credential, no id but the report's, "
            "used once.",
            DEVICES,
        ),
        *(Fact(name, 1.0, text, DEVICES) for name, text in _TEXTS.items()),
    )


_TEXTS = {
    "devices_see": "Who sees what of a device: the gateway sees an address, a time and an opaque id, and never what a "
    "report holds. The broker's operator sees sealed reports of one size. Whoever has the shuffler's sealing key sees "
    "what a report holds, without an address. Whoever has both sides can put them together. The device itself holds "
    "all that its user did.",
    "devices_ask": "What the gateway learns from a request for the model: whether somebody at this address has a "
    "model already, and which version. A gateway can keep a newer model back, but it cannot forge one: a device takes "
    "only what the aggregator signed for the device's own agreement, at no higher privacy cost, and never an older "
    "version than it has seen.",
    "devices_cleared": "A device that was cleared counts as another user, and so does each further device of one "
    "person; nobody can know that. D such users of one person cost D times the epsilon of a life. In a browser a mark "
    "beside the state says what was spent: if the state alone is cleared, the device continues from the mark. "
    "Browsers clear both together.",
    "devices_restored": "A device that is restored from an older copy may send a report again, under the same id, with "
    "other content. Only the report that comes first counts. Whoever reads the shuffler's zone sees both.",
    "devices_killed": "A device that is ended at any moment may forget its last decisions. It sends no report twice "
    "with different bytes: a report is in the device's storage before it leaves.",
    "devices_flooded": "Whoever forges reports changes nobody's guarantee: each moves the sums by a bounded amount, "
    "and the noise is scaled to what one report can move, even for somebody who knows all other reports. In the model "
    "n forged reports weigh as much as n users. They also fill windows: releases come sooner with fewer users in them, "
    "and a counter over windows (release.horizon) ends sooner. A gateway limits the reports an hour from one address, "
    "or from one IPv6 network of 64 bits (devices.slots_per_hour), so m addresses can send m times as many, and "
    "devices behind one address share the limit. A report over the limit is refused and sent later, whatever it holds. "
    "There are no blind tokens (RFC 9578), and nobody has to prove to be a person.",
    "devices_have_no": "Decisions are on devices alone: there is no lift, no shadow, and no evaluation on a log.",
}


_MOST_NOISE = 0.5
"""Share of an item's slots: if the noise is larger, the item's total says little."""


def facts_of(config: P2BConfig) -> Sequence[Fact]:
    """The facts: which interaction a slot holds, how exact an item's total is, and how the model forgets."""
    form = FeaturesForm(config)
    layout = form.layout
    items = config.arms if config.expected_items is None else config.expected_items
    windows = expected_windows(config)
    slots = _remembered_slots(config) / items
    noise = _noise_of_an_item(config)
    much = "" if noise <= _MOST_NOISE * slots else ", which is too much (`hushstream plan`)"
    return (
        Fact("click_chance", -1.0 if form.chance is None else form.chance, _chosen(config, form.chance)),
        Fact(
            "noise_of_an_item",
            noise,
            f"{layout.cells} cells an item, {form.content_bytes} bytes a report. After {count_text(windows, 'window')} "
            f"an item has some {slots:.4g} reports, and the standard deviation of the noise in this total is "
            f"{noise:.3g}{much}.",
        ),
        *_forgetting(config),
        *(_items(config) if config.named_items else ()),
        *(_in_parts(form.parts, config.arms) if form.parts > 1 else ()),
    )


def _noise_of_an_item(config: P2BConfig) -> float:
    """The standard deviation of the noise in an item's total after all windows, in slots."""
    layout = layout_of_slots(config)
    return math.sqrt(noise_variance(config, expected_windows(config))) / (layout.budgets[0] * layout.levels)


def _remembered_slots(config: P2BConfig) -> float:
    """The effective number of slots of the model after all windows."""
    share = remembered(config, expected_windows(config)).share
    return config.expected_slots * config.slot.lifetime_slots * share


def _in_parts(parts: int, arms: int) -> Iterator[Fact]:
    yield Fact(
        "release_parts",
        parts,
        f"Sums and models of {arms} items are larger than a record: each leaves in {parts} parts under one journal "
        f"record and one debit, and counts when all parts are there.",
    )


def _forgetting(config: P2BConfig) -> Iterator[Fact]:
    if config.half_life is None:
        return
    ever = 1 << 40
    worth = remembered(config, ever).share * ever * config.partitions.shuffler
    yield Fact(
        "half_life",
        config.half_life,
        f"The model halves a window's weight with every {config.half_life:g} later windows of a partition "
        f"(`model.half_life`), so it is worth at most {worth:.3g} windows. It costs nothing and refunds nothing: "
        "released sums are weighed, what was released stays released, and every cost here is as without it.",
    )


def _items(config: P2BConfig) -> Iterator[Fact]:
    hours = reuse_after_ms(config) / 3_600_000
    yield Fact(
        "noised_rows",
        config.arms,
        f"Noise is on all {config.arms} rows that the catalogue has room for (`items.capacity`), whether an item is in "
        f"them or not: adding and retiring items spends nothing, and changes no figure here.",
    )
    yield Fact(
        "row_reuse_hours",
        hours,
        f"A retired item's row may have another one {hours:.3g} hours of log time later, when nothing of it can be on "
        f"its way any more.",
    )


def _chosen(config: P2BConfig, chance: float | None) -> str:
    each = config.slot.after_interactions
    ended = "An interaction counts when its reward window has ended; where none has, the report is empty."
    if chance is None:
        return f"A report holds one of {each} interactions, drawn uniformly. {ended}"
    return (
        f"A report holds, with chance {chance:g}, the first of {each} interactions that was rewarded, else one drawn "
        f"uniformly of those that were not. {ended}"
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
_device_service = _imported("prepared:VisitDeviceService")
_plan = _imported("plan:plan")
_plan_warnings = _imported("plan:warnings")
_audience = _imported("plan:audience")
_read_lift = _imported("reports:read_lift")
_read_model = _imported("reports:read_model")
_export_model = _imported("reports:export_model")
_change_of = _imported("reports:change_of")

_DEVICES: Mapping[str, Literal["Read", "Write"]] = {"reports": "Write", STATEMENTS.name: "Read"}
"""What a gateway for devices may do: it appends their sealed slots, and hands out signed models."""


# The roles: the topics that each reads and writes, how its machine is made, and the gauges that it may show.


def _make_shuffler(system: P2BSystem, home: int, keys: RoleKeys) -> Any:
    return _shuffler(system, home, keys.own, keys.kept(SEALING_ZONE), keys.ring)


def _learner_gauges(machine: LearnerMachine, now_seconds: float) -> Mapping[str, float]:
    spent = spending_gauges("lift", machine, now_seconds)
    version = machine.terms.policy.shared("private").version
    return {**spent, **model_gauges(version, machine.models[0].published_ms, now_seconds)}


def _learner_figures(core: P2BSystem, topic: str, value: bytes) -> Mapping[str, float]:
    """The gauges of what each group earns.

    Of answers there are none, because the counts of one partition by item are too small.
    """
    settings = core.config.measurement
    if topic != "lift" or settings.of != "groups":
        return {}
    fields = codec.decode(value, frozenset({"Lift"}))[1]
    newest = (np.frombuffer(fields["sums"], "<i8"), fields["variance"], fields["levels"])
    return lift_figures(newest, settings.decisions_per_user)


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
        "slot_next_charge_micro_epsilon": price,
        "slot_refusing": machine.refused is not None,
    }


LEARNER = answering_role(
    "learner",
    EDGE_ZONE,
    keyed(_learner),
    inputs=("contexts", "clicks"),
    journal="decisions",
    writes=("reports", "lift", "ledger-edge"),
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
    writes=("window-sums", "ledger"),
    homes="shuffler",
    charges="slot",
    gauges=_shuffler_gauges,
    private_work=False,
    outcomes=OUTCOMES,
)

AGGREGATOR = publishing_role(
    SERVER_ZONE,
    _aggregator,
    inputs=("window-sums",),
    outcomes=OUTCOMES,
)

LEARNER_OF_ITEMS = replace(LEARNER, broadcasts=("models", "items"))
"""The learner where features are declared: it follows the catalogue."""

OPENING_SHUFFLER = replace(SHUFFLER, further_key_zones=(SEALING_ZONE,))
"""The shuffler where devices send slots: it opens them with a key of its own."""

SIGNING_AGGREGATOR = signing_role(AGGREGATOR, _aggregator)
"""The aggregator where devices take models: it signs them with a key of its own."""

ROLES_IN_PARTS = (
    replace(LEARNER_OF_ITEMS, broadcasts=(*LEARNER_OF_ITEMS.broadcasts, MODEL_PARTS.name)),
    replace(AGGREGATOR, writes=(*AGGREGATOR.writes, MODEL_PARTS.name)),
)
"""The roles that read and write a model's parts, where a model is larger than a record."""

ROLES = (LEARNER, LEARNER_OF_ITEMS, SHUFFLER, OPENING_SHUFFLER, AGGREGATOR, SIGNING_AGGREGATOR, *ROLES_IN_PARTS)
"""All roles that a deployment may have."""


def roles_of(declared: bool, in_parts: bool, devices: bool) -> tuple[Role, ...]:
    """The roles of a deployment.

    Args:
        declared: whether features are declared.
        in_parts: whether models leave in parts.
        devices: whether learners are agents on devices, which seal their slots and take signed models; else they are
            workers.
    """
    learner_parts, aggregator_parts = ROLES_IN_PARTS
    whole = SIGNING_AGGREGATOR if devices else AGGREGATOR
    learner = LEARNER_OF_ITEMS if declared else LEARNER
    return (
        *(() if devices else (learner_parts if in_parts else learner,)),
        OPENING_SHUFFLER if devices else SHUFFLER,
        aggregator_parts if in_parts else whole,
    )


# A deployment.


def declare(core: P2BSystem) -> System:
    """The declaration of one deployment."""
    config = core.config
    in_parts, declared = core.form.parts > 1, config.release.form == "features"
    return System(
        core=core,
        roles=roles_of(declared, in_parts, config.devices),
        topics=topics_of(core.counts_lift, declared, in_parts, config.devices),
        erasure=_erasure(config),
        words=_words(config),
        facts=summed_of(config).resolved,
        before=started_facts(core.config, core.start, core.before),
        requests=None if config.devices else core.requests,
        devices=_DEVICES if config.devices else {},
        device_service=(lambda: _device_service(core)) if config.devices else None,
        models=_models(core) if declared else None,
        measurement=MeasurementView((LIFT.name,), partial(_read_lift, system=core)) if core.counts_lift else None,
    )


def _models(core: P2BSystem) -> ModelView:
    in_parts = core.form.parts > 1
    return ModelView(
        ("models", *((MODEL_PARTS.name,) if in_parts else ())),
        lambda values, version, catalogues: _read_model(core, values, version, catalogues.get(EVERYBODY)),
        _change_of,
        lambda values, version, catalogues: _export_model(core, values, version, catalogues.get(EVERYBODY)),
        similar=_similar,
    )


def _similar(table: Any, item: str, most: int) -> Report:
    from hushstream.systems.p2b.reports import similar_to

    return similar_to(table, item, most)


def _assemble(config: P2BConfig, artefacts: Artefacts) -> System:
    return declare(files.assemble(config, artefacts).derived_from(artefacts.tainted))


def _priced(config: P2BConfig, artefacts: Artefacts) -> Priced:
    return priced_after(files.read_predecessor(artefacts), config, priced(config))


_CENTRAL = "central: reports go to a trusted shuffler, which sums them and adds the noise; "
_EXAMPLE = "Ann's report holds a click on arm 3 in some situation, and is not empty"


def _words(config: P2BConfig) -> Words:
    if not config.devices:
        return Words(
            trust=f"{_CENTRAL}hosted: the operator's workers hold contexts and clicks in clear",
            erasure="hushstream forget drops the user's state; the user's records go with their topics' retention, "
            "what they were shown stays in the journal of decisions, by event id, until it is trimmed; what was "
            "released stays, noised; that the allowance is spent stays, under a keyed digest",
            example=_EXAMPLE,
            result=RECOMMENDATIONS,
        )
    return Words(
        trust=f"{_CENTRAL}edge: learners are agents on users' devices; only fixed-size reports leave them; no topic of "
        "the deployment holds contexts, clicks or decisions",
        erasure="the application drops the user's agent, on the device that holds all of the user's state; reports "
        "name no user and go with their topic's retention; what was released stays, noised",
        example=_EXAMPLE,
        result=RECOMMENDATIONS,
    )


def _erasure(config: P2BConfig) -> Erasure:
    return Erasure(
        stays=(
            "what was released with noise in it (sums and the models made of them); the user's guarantee covers it",
            "what is spent of their allowance and quota, under a keyed digest of their name: erasure refills neither",
            EVENTS_STAY,
        ),
        waits=(
            f"a report that they owe, and their name with it: sent as null within {config.slot.settle_seconds:g} s of "
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


_FACTS: Mapping[str, Callable[[P2BConfig], Sequence[Fact]]] = {"codes": lambda _: (), "features": facts_of}


_WHATEVER_A_SLOT_HOLDS = (
    "It changes no guarantee: what leaves is bounded for whatever item a report may hold, and when a report is due "
    "follows from the number of decisions alone."
)


def _facts(config: P2BConfig, artefacts: Artefacts) -> Sequence[Fact]:
    declared = _FACTS[config.release.form](config)
    return (
        *declared,
        *started_facts(config, files.read_start(artefacts), files.read_predecessor(artefacts)),
        *device_facts(config, lifetime_slots_of(config)),
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
            f"A user who comes back gets a new report {every / 3600:,.4g} hours of log time after one fell due, at "
            f"most {slots} in their life (privacy.units_per_person). Under replace-one they are charged "
            f"{price_text(one.which)} with one report and {price_text(life.which)} over their life{lift}; a user who "
            f"stays long enough pays all of it.",
        ),
    )


def _notes(config: P2BConfig) -> Sequence[Note]:
    """Warnings: a negative plan, a useless measurement, and a counter whose windows time may use up early."""
    found: Sequence[Note] = _plan_warnings(config)
    release = config.release
    if release.window_seconds is None or (tree := window_tree_of(config)) is None:
        return found
    hours = tree.horizon * release.window_seconds / 3600
    return (
        *found,
        Note(
            f"release.horizon: time closes windows as well, and the counter serves {tree.horizon} of a partition: at "
            f"one each {release.window_seconds:g} s they last {hours:.3g} hours, and then nothing is released any "
            f"more; state as many as the deployment will need, or release.sums: fresh"
        ),
    )


def _period_ms(config: P2BConfig) -> int:
    return round(config.slot.period_seconds * 1000)


def started_facts(config: P2BConfig, start: ExportedModel | None, before: Predecessor | None = None) -> Sequence[Fact]:
    """The total price for a person who is in this deployment and in the one whose model it began with.

    Empty if it began without a model, and follows no generation.
    """
    found = []
    if before is not None:
        text = f"Generation {before.generation + 1} of the deployment: {sums_told(before.life, before.spent, config)}."
        found.append(Fact("generation", before.generation + 1, text))
    if start is not None:
        about = start.about
        text = (
            f"New users begin with version {about['version']} of the model of deployment {about['deployment']} "
            f"({start.slots:,.0f} reports). It knows {count_text(len(start.items), 'item')} by id; others begin as new "
            "ones."
        )
        if before is None:
            both = start.paid + priced(config).guarantee.together
            text += (
                f" Whoever gave a report there was charged {_in_words(start.paid)}; whoever is in both is charged "
                f"{_in_words(both)} together."
            )
        found.append(Fact("started_from_slots", start.slots, text))
    return found


def _told(core: P2BSystem, config: P2BConfig) -> str:
    """See `Succession.told`."""
    files.require_no_devices(core.config)
    files.require_no_devices(config)
    life, spent = core.paid_before()
    require_within_life(life, spent, config)
    return sums_told(life, spent, config)


def _has_ended(machine: ShufflerMachine, phase: int) -> bool:
    """Whether all learners' slots of a phase have come, and no window is open."""
    return machine.windows.ended_phase >= phase and not machine.windows.slots


def _in_words(paid: Prices) -> str:
    which = f"{price_text(paid.which)} (replace-one)"
    return which if paid.zero_out is None else f"{which} and {price_text(paid.zero_out)} (zero-out)"


KIND = Kind(
    name=NAME,
    summary="local learners, one fixed-size report of a user, noised sums by a shuffler, a shared model to start from",
    config=P2BConfig,
    keys={"slot.sealed": None},
    unit="slot",
    topics=TOPICS,
    roles=ROLES,
    prepare=files.prepare,
    assemble=_assemble,
    priced=_priced,
    artefacts=(files.ENCODER, SEALING, files.START, files.PREDECESSOR, SIGNING, AGREEMENT),
    inputs=(STARTED_FROM, FOLLOWS),
    resolved=_resolved,
    check=_check,
    facts=_facts,
    notes=_notes,
    plan=lambda config, artefacts, audience: _plan(config, audience),
    audience=_audience,
    published_keys=keys_published(_period_ms),
    succession=Succession("shuffler", (EDGE_ZONE,), _told, _has_ended, _imported("reports:left_by")),
    study="hushstream.replay.studies.p2b.study:STUDY",
)
