"""Polls as a system: all that hushstream knows of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom
from hushstream.engine.declare.declaration import Erasure, Fact, Kind, Result, System, Words, names_user
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.role import MetricClass, Role, publishing_role, ringed, spending_gauges
from hushstream.engine.values import ConfigurationError
from hushstream_poll.board import MALFORMED_TALLY, REPEATED_TALLY, BoardMachine
from hushstream_poll.configuration import NAME, PollConfig
from hushstream_poll.core import PollSystem
from hushstream_poll.promise import priced
from hushstream_poll.tally import REPEATED_VOTE, TALLY, UNKNOWN_OPTION, VOTE, TallyMachine
from hushstream_poll.topics import BALLOTS, BOARD, TOPICS

OPTIONS = PreparedFrom("options", "what can be voted for, one a line")
QUESTION = "question.json"

_OUTCOMES: Mapping[str, MetricClass] = {
    VOTE: "slot-public",
    REPEATED_VOTE: "slot-public",
    TALLY: "slot-public",
    REPEATED_TALLY: "slot-public",
    **{name: OUTCOMES[name] for name in ("model", "rejected", "tick", "forgotten", "allowance_spent")},
    "release_withheld": "slot-public",
}


ROLES = (
    Role(
        name="tally",
        zone=BALLOTS,
        key_zone=BALLOTS,
        inputs=("votes",),
        journal="journal-ballots",
        writes=("tallies", "spent-on-votes", "dead-letters-ballots"),
        marks="marks-ballots",
        homes="ballots",
        make=ringed(TallyMachine),
        gauges=partial(spending_gauges, "vote"),
        scope_classes=("vote",),
        private_work=False,
        outcomes=_OUTCOMES,
        reasons=(UNKNOWN_OPTION,),
    ),
    publishing_role(
        BOARD,
        BoardMachine,
        name="board",
        inputs=("tallies",),
        journal="standings",
        outcomes=_OUTCOMES,
        reasons=(MALFORMED_TALLY,),
    ),
)

_ERASURE = Erasure(
    stays=("tallies that their vote is in, with noise", "how often they voted, under a digest of their name"),
    waits=("their vote in an open window, in the tally's data directory: until its next snapshot",),
    names=names_user,
)
_WORDS = Words(
    trust="central, at the tally: the operator's tally workers see votes in clear",
    erasure="hushstream forget drops a vote whose window is open; what was released stays, noised",
    example="Ann voted for the first option and not for the second",
    result=Result(
        data="votes of users",
        what="how an open vote stands",
        product="running standing of a poll",
        release="repeated; published topics",
    ),
)


def declare(core: PollSystem) -> System:
    """A deployment."""
    return System(
        core=core,
        roles=ROLES,
        topics=TOPICS,
        erasure=_ERASURE,
        words=_WORDS,
        facts={"options": len(core.options)},
    )


def _prepare(config: PollConfig, given: Given) -> Mapping[str, bytes]:
    if OPTIONS.name not in given.inputs:
        if not given.artefacts.has(QUESTION):
            raise ConfigurationError("prepare: expected --options with what can be voted for, got none")
        return {}
    options = [line.strip() for line in given.inputs[OPTIONS.name][1].splitlines() if line.strip()]
    if len(options) < 2:
        raise ConfigurationError(f"prepare: expected two options or more, got {len(options)}")
    return {QUESTION: json.dumps(options).encode()}


def _assemble(config: PollConfig, artefacts: Artefacts) -> System:
    options = tuple(artefacts.json(QUESTION, "what can be voted for"))
    return declare(PollSystem.of(config, options, artefacts.public_dataset is not None))


def _facts(config: PollConfig, artefacts: Artefacts) -> Sequence[Fact]:
    noise: Any = 1 / config.epsilon
    return (Fact("scale", noise, f"Scale of the noise of a count: {noise:g} votes."),)


KIND = Kind(
    name=NAME,
    summary="how an open vote stands, from noised counts",
    config=PollConfig,
    topics=TOPICS,
    roles=ROLES,
    artefacts=(QUESTION,),
    inputs=(OPTIONS,),
    prepare=_prepare,
    assemble=_assemble,
    priced=lambda config, artefacts: priced(config),
    facts=_facts,
)
