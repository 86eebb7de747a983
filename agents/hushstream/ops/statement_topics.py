"""What a statement says topic by topic: what of persons stands there, in which form, who reads it, how long it is kept.

It is read from the guarantee's own list (`Guarantee.contents`) and from the declaration of topics.
"""

from __future__ import annotations

from hushstream.privacy.promise import Promises
from hushstream.schemas.topics import TOPICS, Role, TopicSpec, Zone, topics_of
from hushstream.systems.collaborative import CollaborativeSystem
from hushstream.systems.system import ALL_ROLES, System

Fact = tuple[str, str]

_DAY_MS = 24 * 60 * 60 * 1000
_PRIVATE_ZONES = {Zone.EDGE, Zone.SHUFFLER, Zone.COUNTER}
_COLLABORATIVE_TRUST = {
    "edge": "central, at the learners; hosted: the operator's learner workers see rewards in clear; everybody after "
    "them sees noised values",
    "server": "central, at the counter; hosted: the operator's learner workers, then the trusted counter, see rewards "
    "in clear; everybody after them sees noised sums",
}


def deployed_topics(system: System) -> list[TopicSpec]:
    """The topics that a deployment has."""
    return [TOPICS[name] for name in topics_of(system.name, system.roles, system.public_dataset, system.holdout)]


def content_facts(system: System, promises: Promises) -> list[Fact]:
    """One fact for each topic and form in which content of persons stands on it, and one for the other topics."""
    contents = promises.releases.contents
    facts = []
    for content in contents:
        leaves = "; LEAVES UN-NOISED: no figure of this statement speaks of it" if content.leaves_unnoised else ""
        readable = f"{content.zone} zone{leaves}; {kept(TOPICS[content.topic])}"
        facts.append((f"{content.topic}, {content.form}: {content.what}", readable))
    held = {content.topic for content in contents}
    others = [spec.name for spec in deployed_topics(system) if spec.name not in held]
    reason = "no content of persons: prices, positions, keyed digests and reasons of refusal"
    return [*facts, (f"on {', '.join(others)}", reason)]


def reader_facts(system: System) -> list[Fact]:
    """Who may read and write the topics of the private zones, and which ones are published."""
    topics = deployed_topics(system)
    facts = [
        (
            f"topic {spec.name}",
            f"readable by {_names(system, spec.readers)}; written by {_names(system, spec.writers)}",
        )
        for spec in topics
        if spec.zone in _PRIVATE_ZONES
    ]
    return [*facts, ("published topics", ", ".join(spec.name for spec in topics if spec.zone is Zone.PUBLISHED))]


def retention_facts(system: System) -> list[Fact]:
    """How long each topic is kept, and what an erasure does."""
    facts = [(f"topic {spec.name}", f"{kept(spec)}; zone: {spec.zone}") for spec in deployed_topics(system)]
    return [
        *facts,
        ("erasure of a user", _erasure(system)),
        ("another retention", "set on the broker is reported by hushstream topics check"),
    ]


def kept(spec: TopicSpec) -> str:
    """How long a topic keeps its records."""
    if spec.retention_ms is None:
        return "kept for the life of the deployment"
    return f"deleted after {spec.retention_ms // _DAY_MS} days"


def trust_model(system: System) -> str:
    """Who is trusted with what, in a sentence."""
    if isinstance(system, CollaborativeSystem):
        release = system.config.release
        if release.mechanism == "exact":
            return "none: rewards are public data, and their sums are published without noise"
        return _COLLABORATIVE_TRUST[release.trust]
    if has_learners(system):
        return (
            "shuffled, with a trusted curator at the shuffler; hosted: the operator's workers hold contexts and clicks "
            "in clear"
        )
    return (
        "shuffled, with a trusted curator at the shuffler; edge: learners are agents on users' devices, and only "
        "padded slots leave them; no topic of the deployment holds contexts, clicks or decisions"
    )


def has_learners(system: System) -> bool:
    """Whether workers of the operator run the learners; else they are agents on users' devices."""
    return "learner" in system.roles


def _erasure(system: System) -> str:
    if isinstance(system, CollaborativeSystem):
        return (
            "hushstream forget drops the user's state; the user's records go with their topics' retention; what was "
            "released stays, and no release names the user again; the erasure stays known, by the user's number in the "
            "public graph"
        )
    if has_learners(system):
        return (
            "hushstream forget drops the user's state; the user's records go with their topics' retention; what was "
            "released stays, noised; that the allowance is spent stays, under a keyed hash"
        )
    return (
        "the application drops the user's agent, on the device that holds all of the user's state; slots name no user "
        "and go with their topic's retention; what was released stays, noised"
    )


def _names(system: System, roles: tuple[Role, ...]) -> str:
    """Those of them that the deployment has: the roles that it runs, and whoever is not a role of any system."""
    relay = {} if has_learners(system) else {Role.LEARNER: "whoever relays for users' devices"}
    absent = {str(role) for role in ALL_ROLES} - set(system.roles)
    return ", ".join(relay.get(role, str(role)) for role in roles if role in relay or str(role) not in absent)
