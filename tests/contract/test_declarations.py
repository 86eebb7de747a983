"""What a system declares is what it does: every registered system, over the recorded logs of a small closed loop
(`recordings`). A system runs as well without what is missing here, so that nothing else would notice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from hushstream.agents.worker.roles import REASONS
from hushstream.engine.declare.declaration import System
from hushstream.privacy.promises.promise import Content
from hushstream.schemas import codec
from hushstream.schemas.topics import PUBLISHED, common_name
from hushstream.systems.catalogue import kinds
from machine_drive import Rig
from recordings import VARIANTS, Recording, every_home, recorded, require_all, unplayed

pytestmark = pytest.mark.slow

require_all(kinds())


HOMES = every_home()


def unnamed_inputs(system: System, contents: Collection[Content]) -> set[str]:
    """The inputs of roles that are not among the contents: a statement says that no content of persons is there."""
    there = {common_name(topic.name) for topic in system.topics}
    inputs = {common_name(topic) for role in system.roles for topic in role.inputs}
    return (inputs & there) - {content.topic for content in contents}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_guarantee_names_every_topic_that_a_role_takes_input_from(variant):
    with variant.registered():
        system = unplayed(variant).system
        contents = system.core.guarantee().contents
        missing = unnamed_inputs(system, contents)
        assert not missing, f"expected a Content in the guarantee for each input of a role, got none for {missing}"
        zones = {common_name(topic.name): common_name(topic.zone) for topic in system.topics}
        wrong = [content for content in contents if common_name(content.zone) != zones[content.topic]]
        assert not wrong, f"expected the zone that the topic is declared in, got {wrong}"


def unnamed_outputs(recording: Recording, contents: Collection[Content]) -> set[str]:
    """The topics with records of roles that are not among the contents: what a role writes follows from its inputs.

    Exempt are ledgers (prices), dead letters (positions), and the private journals of roles that release: what such a
    journal says of persons leaves by other topics.
    """
    found: set[str] = set()
    releasing = {role.journal for role in recording.system.roles if role.marks is not None}
    for topic in recording.system.topics:
        own = topic.name in releasing and topic.zone != PUBLISHED
        records = (record for (name, _), part in recording.records.items() if name == topic.name for record in part)
        written = any(record.value in recording.written for record in records)
        if written and not (own or topic.is_ledger or topic.holds_dead_letters):
            found.add(common_name(topic.name))
    return found - {content.topic for content in contents}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_guarantee_names_every_topic_that_a_role_writes_content_to(variant):
    with variant.registered():
        recording = recorded(variant)
        missing = unnamed_outputs(recording, recording.system.core.guarantee().contents)
        assert not missing, f"expected a Content in the guarantee for each output of a role, got none for {missing}"


def refused_own(recording: Recording) -> set[tuple[str, str, str]]:
    """(role, topic, reason) of each refusal of a record that a role of the deployment wrote."""
    found: set[tuple[str, str, str]] = set()
    for (topic, _), records in recording.records.items():
        for record in records if topic.startswith("dead-letters") else ():
            letter = codec.decode(record.value)[1]
            refused = recording.records[letter["topic"], letter["partition"]][letter["offset"]]
            if refused.value in recording.written:
                found.add((letter["role"], letter["topic"], letter["reason"]))
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_no_role_refuses_what_a_role_of_its_deployment_wrote(variant):
    """A journal begins with a Genesis, so its readers have to know that, too."""
    with variant.registered():
        found = refused_own(recorded(variant))
        assert not found, f"expected no refusal of a record of the deployment's own, got (role, topic, reason) {found}"


def undeclared_reasons(recording: Recording, shared: Collection[str]) -> set[tuple[str, str]]:
    """(role, reason) of each refusal whose reason is neither shared nor of the role: metrics would not name it."""
    found: set[tuple[str, str]] = set()
    own = {common_name(role.name): role.reasons for role in recording.system.roles}
    for (topic, _), records in recording.records.items():
        for record in records if topic.startswith("dead-letters") else ():
            letter = codec.decode(record.value)[1]
            if letter["reason"] not in (*shared, *own[letter["role"]]):
                found.add((letter["role"], letter["reason"]))
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_reason_of_a_refusal_is_declared(variant):
    with variant.registered():
        found = undeclared_reasons(recorded(variant), REASONS)
        assert not found, f"expected each reason of a role's own in its `reasons`, got others: {found}"


@pytest.mark.parametrize(("variant", "place"), HOMES)
def test_a_machine_names_the_role_that_declares_it(variant, place):
    """Its dead letters say that name."""
    with variant.registered():
        role, home = list(unplayed(variant).homes())[place]
        named = Rig(unplayed(variant), role, home).machine.chain.identity.role
        assert named == common_name(role.name), "the name in the machine's `Identity` is not that of its role"


# That the suite would notice.

(TOY,) = (variant for variant in VARIANTS if variant.name == "meanarm")


def test_a_topic_that_a_guarantee_leaves_out_is_noticed():
    with TOY.registered():
        system = unplayed(TOY).system
        contents = [content for content in system.core.guarantee().contents if content.topic != "slots"]
        assert unnamed_inputs(system, contents) == {"slots"}


@pytest.mark.parametrize("topic", ["answers", "slots", "sums", "models"])
def test_an_output_that_a_guarantee_leaves_out_is_noticed(topic):
    with TOY.registered():
        contents = [content for content in recorded(TOY).system.core.guarantee().contents if content.topic != topic]
        assert unnamed_outputs(recorded(TOY), contents) == {topic}


def test_a_refusal_of_a_record_of_the_deployments_own_is_noticed():
    with TOY.registered():
        as_if_of_a_role = replace(recorded(TOY), written=recorded(TOY).written | {b"no record"})
        junk = {("learner", "asks"), ("counter", "slots"), ("aggregator", "sums")}
        assert refused_own(as_if_of_a_role) == {(*place, "not_single_object") for place in junk}


def test_a_reason_that_nobody_declares_is_noticed():
    with TOY.registered():
        found = undeclared_reasons(recorded(TOY), ("not_single_object",))
        assert found == {("learner", "click_without_context")}
