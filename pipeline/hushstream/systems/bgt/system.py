"""The declaration of BGTplanner for the catalogue, and of its deployments.

What a gateway needs to take the slots of BGTplanner from devices.

A slot counts only in the open round. So the gateway writes the record that opens the round before the round's slots:
otherwise the collector refuses them.

*Device facts.* Facts for the statement of a deployment with devices: what leaves a device, who sees it, and what can go
wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import DEVICES, Erasure, Fact, Kind, Note, Result, System, Words, names_user
from hushstream.engine.declare.role import (
    RoleKeys,
    answering_role,
    keyed,
    model_gauges,
    publishing_role,
    releasing_role,
    ringed,
)
from hushstream.engine.devices.envelope import STATEMENT_RECORD, ModelBody
from hushstream.engine.devices.published import AGREEMENT, SEALING, SEALING_ZONE, SIGNING, keys_published, signing_role
from hushstream.engine.devices.sealing import body_bytes, period_of
from hushstream.engine.system import Priced
from hushstream.privacy.amounts import duration_text
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt import artefacts as files
from hushstream.systems.bgt import plan
from hushstream.systems.bgt.artefacts import BgtSystem, require_publishable
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.edge.rater import RaterMachine
from hushstream.systems.bgt.guarantee import priced
from hushstream.systems.bgt.records import ROUNDS, Round, first_round, signed_round, slot_bytes
from hushstream.systems.bgt.server import BgtAggregatorMachine
from hushstream.systems.bgt.shuffler import CollectorMachine
from hushstream.systems.bgt.topics import (
    AGGREGATOR_OUTCOMES,
    COLLECTOR_OUTCOMES,
    EDGE_ZONE,
    RATER_OUTCOMES,
    REASONS,
    SERVER_ZONE,
    SHUFFLER_ZONE,
    STATEMENTS,
    TOPICS,
    topics_of,
)


class RatingDeviceService:
    """See `DeviceService`."""

    topic, partitions = "updates", 1

    def __init__(self, system: BgtSystem, agreement: bytes) -> None:
        """Bind to a deployment whose slots devices make.

        Args:
            system: the deployment.
            agreement: what its devices agree to.
        """
        self.digest, self._system = system.digest, system
        self.body_bytes, self.agreement = body_bytes(slot_bytes(system.config)), agreement
        self.opening: bytes | None = None
        self.asked: Round | None = first_round(system.config)
        """The round that is open."""

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return self.asked is None or period_of(fields) != self.asked.number

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        named = {"slot_id": fields["report_id"], "config_digest": fields["config_digest"], "round": period_of(fields)}
        return "SealedRatingSlot", {**named, "sealed": fields["sealed"]}

    def follow(self, fields: Mapping[str, Any]) -> ModelBody:
        body = ModelBody.of(fields, self._system)
        self.asked, _ = signed_round(fields, self._system.config, self.digest, body.signing)
        self.opening = None if self.asked is None else codec.encode(STATEMENT_RECORD, fields)
        return body


def rounds_of(system: System) -> RatingDeviceService:
    """What a deployment's devices answer.

    Raises:
        HushstreamError: no devices of this deployment make slots of ratings.
    """
    service = None if system.device_service is None else system.device_service()
    if not isinstance(service, RatingDeviceService):
        raise HushstreamError(f"rounds: expected reports of ratings from devices, got {system.config.deployment}")
    return service


def device_facts(config: BgtConfig) -> Sequence[Fact]:
    """The facts, for whoever answers for users' privacy."""
    size, wait = body_bytes(slot_bytes(config)), duration_text(config.settle_seconds)
    return (
        Fact(
            "devices_send",
            size,
            f"What leaves a device: one report in each of {ROUNDS} rounds, of {size} bytes each, whatever is in it; "
            f"and requests for the model, the same for everybody while the aggregator is honest. A report leaves at a "
            f"random time within {wait} after the device learned of the round, or later when the device next runs. "
            "There is no cookie, no credential and no id but the report's, used once.",
            DEVICES,
        ),
        *(Fact(name, 1.0, text, DEVICES) for name, text in _TEXTS.items()),
    )


_TEXTS = {
    "devices_see": "Who sees what of a device: the gateway sees an address, a time, an opaque id and a round, and "
    "never what a report holds. The broker's operator sees sealed reports of one size. Whoever has the collector's "
    "sealing key sees what a report holds, without an address. Whoever has both sides can put them together. Ratings "
    "and predictions stay on the device.",
    "devices_ask": "What the gateway learns from a request for the model: whether somebody at this address has a "
    "model already, and which version. A gateway can keep a newer model back, but it cannot forge one: a device takes "
    "only what the aggregator signed for the device's own agreement, at no higher privacy cost, and never an older "
    "version than it has seen. The model also says about which items a report is asked for, alike for all.",
    "devices_cleared": "A device that was cleared counts as another user, and so does each further device of one "
    "person; nobody can know that. D such users of one person move every sum D times as far, at D^2 times the rho.",
    "devices_restored": "A device that is restored from an older copy may answer a round again, under the same id, "
    "with other ratings. Only the report that comes first counts. Whoever reads the collector's zone sees both.",
    "devices_killed": "A device that is ended at any moment may forget its last ratings. It sends no second report in "
    "a round, and it never sends other bytes for a report that may have left: a report is in the device's storage "
    "before it leaves.",
    "devices_flooded": "Whoever forges reports changes nobody's guarantee: each moves the sums by a bounded amount, "
    "and the noise is scaled to what one user's reports can move, even for somebody who knows all other reports. In "
    "the model n forged reports weigh as much as n users. A gateway limits the reports an hour from one address, or "
    "from one IPv6 network of 64 bits (devices.slots_per_hour), so m addresses can send m times as many, and devices "
    "behind one address share the limit. A report over the limit is refused and sent later, whatever it holds. There "
    "are no blind tokens (RFC 9578), and nobody has to prove to be a person.",
    "devices_ended": "Whoever may write the collector's input can end rounds (`DeviceRounds.end_round`), but cannot "
    "begin one: the collector opens only rounds that the aggregator has signed. A report that comes after the end of "
    "its round does not count, but its user has no other report in that round.",
}


def _rater_gauges(machine: RaterMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(machine.received.version, machine.received.reader.published_ms, now_seconds)


def _opening_collector(system: BgtSystem, home: int, keys: RoleKeys) -> CollectorMachine:
    return CollectorMachine(system, home, keys.own, keys.ring, keys.kept(SEALING_ZONE))


RATER = answering_role(
    "rater",
    EDGE_ZONE,
    keyed(RaterMachine),
    inputs=("ratings",),
    journal="predictions",
    writes=("updates",),
    broadcasts=("models", "rounds"),
    marks="marks-edge",
    homes="learner",
    gauges=_rater_gauges,
    reasons=REASONS,
    outcomes=RATER_OUTCOMES,
)

COLLECTOR = releasing_role(
    "collector",
    SHUFFLER_ZONE,
    ringed(CollectorMachine),
    inputs=("updates",),
    journal="journal-collector",
    writes=("releases", "ledger"),
    homes="shuffler",
    charges="slots",
    reasons=REASONS,
    private_work=False,
    outcomes=COLLECTOR_OUTCOMES,
)

AGGREGATOR = publishing_role(SERVER_ZONE, BgtAggregatorMachine, writes=("rounds",), outcomes=AGGREGATOR_OUTCOMES)

OPENING_COLLECTOR = replace(COLLECTOR, make=_opening_collector, further_key_zones=(SEALING_ZONE,))
"""The collector where devices make slots: it opens them with a key of its own."""

SIGNING_AGGREGATOR = signing_role(AGGREGATOR, BgtAggregatorMachine)
"""The aggregator where devices take models: it signs them with a key of its own."""

ROLES = (RATER, COLLECTOR, OPENING_COLLECTOR, AGGREGATOR, SIGNING_AGGREGATOR)
"""All roles that a deployment may have."""


NAME = "bgt"


def declare(core: BgtSystem) -> System:
    """The declaration of one deployment."""
    config = core.config
    return System(
        core=core,
        roles=(OPENING_COLLECTOR, SIGNING_AGGREGATOR) if config.devices else (RATER, COLLECTOR, AGGREGATOR),
        topics=topics_of(config.devices),
        erasure=EDGE_ERASURE if config.devices else ERASURE,
        words=EDGE_WORDS if config.devices else WORDS,
        facts={"items": config.items, "features": config.features, "bytes of a report": slot_bytes(config)},
        requests=None if config.devices else config,
        devices={"updates": "Write", STATEMENTS.name: "Read"} if config.devices else {},
        device_service=(lambda: RatingDeviceService(core, files.agreement_of(core))) if config.devices else None,
    )


def _assemble(config: BgtConfig, artefacts: Artefacts) -> System:
    return declare(files.assemble(config, artefacts).derived_from(artefacts.tainted))


def _priced(config: BgtConfig, artefacts: Artefacts) -> Priced:
    return priced(config)


def _facts(config: BgtConfig, artefacts: Artefacts) -> Sequence[Fact]:
    """The numbers of users from which on the deployment helps, and the facts about devices."""
    if config.release.noise == "exact":
        return ()
    about_devices = device_facts(config) if config.devices else ()
    found = plan.enough_users(config)
    least = -1.0 if found.biases is None else found.biases
    biases, factors = found.sentences
    return (Fact("users_to_gain", least, biases), Fact("users_for_factors", found.factors, factors), *about_devices)


def _notes(config: BgtConfig) -> Sequence[Note]:
    if config.release.noise == "exact":
        return ()
    found = plan.enough_users(config)
    return (Note(found.sentences[0], "useless" if found.biases is None else "warning"),)


WORDS = Words(
    trust="central, at the collector; hosted: the operator's rater workers see ratings in clear and make the reports "
    "(where users' devices make the reports, the workers see neither), then the one trusted collector sees every "
    "report without a name; everybody after it sees noised sums",
    erasure="hushstream forget drops the user's ratings: the user's reports are null from then on; records of ratings "
    "go with their topic's retention; reports that were summed name nobody and stay, under noise",
    result=Result(
        data="ratings of items by users, and predictions of their ratings",
        what="one model of items' biases and factors; a user's predictions follow from it and from their own ratings",
        product="recommendation model from a few rounds of aggregation",
        release="interactive to the operator's raters, at most three releases; published topics",
    ),
    example="Ann rated a film that hardly anybody else has seen",
)


EDGE_WORDS = replace(
    WORDS,
    trust="central, at the collector; edge: users' devices make the reports and seal them, and the one trusted "
    "collector opens every report without a name; everybody after it sees noised sums; no topic of the deployment "
    "holds ratings",
    erasure="the application drops the user's device, which holds all of the user's state; reports name no user and go "
    "with their topic's retention; reports that were summed stay, under noise",
)


ERASURE = Erasure(
    stays=(
        "reports of rounds that ended before: in sums, released with noise; the guarantee covers them",
        "that somebody takes part, under a tag, with how many rounds they answered: their further reports are null, "
        "and no allowance is refilled",
        "what was predicted for them, by event id: in the predictions journal, which names no user, until it is "
        "trimmed; event ids, which should name nobody either, also beside their tag among the rater's last 50,000",
    ),
    waits=(
        "the user's ratings in the rater's data directory, under a tag: until the next snapshot; sealed on "
        "state-rater: five days",
    ),
    names=names_user,
)

EDGE_ERASURE = replace(ERASURE, stays=ERASURE.stays[:1], waits=())

KIND = Kind(
    name=NAME,
    summary="users' ratings stay with them; three noised rounds of fixed-size reports make one model of items",
    config=BgtConfig,
    unit="user",
    keys={"partitions.learner": "partitions.rater", "partitions.shuffler": "partitions.collector", "budget.lift": None},
    topics=TOPICS,
    roles=ROLES,
    artefacts=(files.FEATURES, SEALING, SIGNING, AGREEMENT),
    inputs=(files.TABLE,),
    prepare=files.prepare,
    assemble=_assemble,
    priced=_priced,
    check=require_publishable,
    facts=_facts,
    notes=_notes,
    plan=lambda config, artefacts, audience: plan.plan(config, audience),
    published_keys=keys_published(None),
    study="hushstream.replay.studies.bgt.study:STUDY",
)
