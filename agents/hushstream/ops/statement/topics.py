"""The statement's part about topics: content about persons, its form, its readers, and how long it is kept.

It is read from the guarantee's own list (`Guarantee.contents`) and from the declaration of topics.
"""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.flows import beside_workers, readers, writers
from hushstream.engine.state.published import SLOTS
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.promise import Promises
from hushstream.schemas.topics import DAY_MS, PUBLISHED, Topic, common_name

Fact = tuple[str, str]

_WHOSE = "each party's"


def content_facts(system: System, promises: Promises) -> list[Fact]:
    """One fact for each topic with content of persons, and its form; one fact for all other topics."""
    contents = promises.releases.contents
    facts = []
    for content in contents:
        leaves = "; LEAVES UN-NOISED: no figure of this statement speaks of it" if content.leaves_unnoised else ""
        spec = next(spec for spec in system.topics if common_name(spec.name) == content.topic)
        whose = f"{_WHOSE} own " if spec.party and spec.zone != PUBLISHED else ""
        readable = f"{whose}{content.zone} zone{leaves}; {kept(spec)}"
        facts.append((f"{content.topic}, {content.form}: {content.what}", readable))
    states = [topic for topic in system.topics if topic.holds_state]
    facts += [
        (
            f"{topic.name}, sealed: what workers of the role hold in memory",
            f"{topic.zone} zone, {_sealed_under(topic, system)}; {kept(topic)}",
        )
        for topic in states
    ]
    held = {content.topic for content in contents}
    others = [spec.name for spec in system.topics if not spec.holds_state and common_name(spec.name) not in held]
    reason = "no content of persons: prices, positions, keyed digests and reasons of refusal"
    return [*facts, (f"on {', '.join(others)}", reason)]


def reader_facts(system: System) -> list[Fact]:
    """Who may read and write the topics of the private zones, and which topics are published."""
    private = [topic for topic in system.topics if topic.zone in {role.key_zone for role in system.roles}]
    facts = [
        (
            f"topic {topic.name}",
            f"readable by {_names(system, topic, readers(topic, system.roles), 'Read')}; "
            f"written by {_names(system, topic, writers(topic, system.roles), 'Write')}",
        )
        for topic in private
    ]
    published = ", ".join(topic.name for topic in system.topics if topic.zone == PUBLISHED)
    return [*facts, ("published topics", published)]


def retention_facts(system: System) -> list[Fact]:
    """How long each topic is kept, and what an erasure does."""
    facts = [(f"topic {spec.name}", f"{kept(spec)}; zone: {spec.zone}") for spec in system.topics]
    return [
        *facts,
        ("erasure of a user", system.words.erasure),
        ("another retention", "set on the broker is reported by hushstream topics check"),
    ]


def kept(spec: Topic) -> str:
    """How long a topic keeps its records."""
    if spec.replaced_ms is not None:
        days = 1 + SLOTS + spec.replaced_ms // DAY_MS
        return (
            f"the newest {SLOTS} are kept; replaced at least daily while a worker runs, and gone within "
            f"{count_text(days, 'day')}"
        )
    if spec.retention_ms is None:
        return "kept for the life of the deployment"
    return f"deleted after {count_text(spec.retention_ms // DAY_MS, 'day')}"


def _sealed_under(topic: Topic, system: System) -> str:
    (role,) = (role for role in system.roles if role.state.name == topic.name)
    if role.key_zone is None:
        return "public values alone, closed with a key that anybody can make"
    return f"under a key of the {role.key_zone} zone"


def _names(system: System, topic: Topic, named: Sequence[str], right: str) -> str:
    """Who reads or writes a topic; first those who act under the name of a role without workers."""
    relays = ["whoever relays for users' devices" for held in system.outside.values() if held.get(topic.name) == right]
    told = [name for name in named if name in system.role_names or name in beside_workers(system)]
    return ", ".join([*relays, *told])
