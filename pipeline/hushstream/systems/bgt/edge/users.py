"""The users of one rater: one agent for each, under the user's tag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hushstream.engine.state.parts import array, record
from hushstream.privacy.keys import Key
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.edge.agent import RatingAgent, Sent
from hushstream.systems.bgt.rounds import Model, Round
from hushstream.systems.bgt.slots import Float64

USERS = array(record("RatingUser", tag="bytes", answered="int", items="bytes", values="bytes"))
"""Avro type of `Users.dump`. It holds ratings in clear, so it is as sensitive as ratings."""


class Users:
    """Agents by tag. A tag is a keyed digest of the user's name, and is the same as long as the zone's key is."""

    def __init__(self, system: BgtSystem, key: Key) -> None:
        """Begin without users."""
        self._system = system
        self._key = key
        self._agents: dict[bytes, RatingAgent] = {}

    def __len__(self) -> int:
        """Number of users."""
        return len(self._agents)

    def rate(self, user: str, items: Sequence[int], values: Sequence[float]) -> None:
        """Take ratings of a user, who takes part from now on.

        Raises:
            BadRatings: an unknown item, or a rating off the scale; then no rating is taken.
        """
        tag = self.tag(user)
        agent = self._agents.get(tag) or self._agent(tag, 0)
        agent.rate(items, values)
        self._agents[tag] = agent

    def predict(self, tag: bytes, items: Sequence[int], model: Model) -> Float64:
        """Predicted ratings by the user of a tag; for a user without ratings, those of an average user.

        Raises:
            BadRatings: an unknown item.
        """
        return (self._agents.get(tag) or self._agent(tag, 0)).predict(items, model)

    def forget(self, user: str) -> None:
        """Drop a user's ratings. Their slots are null from now on, and their spent allowance stays spent."""
        agent = self._agents.get(self.tag(user))
        if agent is not None:
            agent.forget()

    def answers(self, asked: Round) -> Iterator[Sent]:
        """The slots of all users for a round, in the order of the slots' ids, which reveals nothing about users."""
        sent = [agent.answer(asked, self._system.digest) for agent in self._agents.values()]
        yield from sorted(sent, key=lambda one: one.slot_id)

    def dump(self) -> list[dict[str, Any]]:
        """The values of `USERS`."""
        return [_packed(tag, agent) for tag, agent in self._agents.items()]

    def load(self, users: Sequence[Mapping[str, Any]]) -> None:
        """Return to dumped users."""
        self._agents = {}
        for one in users:
            agent = self._agents[one["tag"]] = self._agent(one["tag"], one["answered"])
            items, values = np.frombuffer(one["items"], "<i4"), np.frombuffer(one["values"], "<f8")
            agent.rate(items.tolist(), values.tolist())

    def tag(self, user: str) -> bytes:
        """The tag of a user: a keyed digest of their name."""
        return self._key.digest("bgt-user", user.encode())

    def _agent(self, tag: bytes, answered: int) -> RatingAgent:
        # The journal remembers answered rounds: its record is acknowledged before any slot leaves.
        return RatingAgent(
            self._system.config,
            self._key.derive("bgt-agent", tag),
            _journaled,
            answered,
            self._system.features,
            self._system.digest,
        )


def _journaled(answered: int) -> None:
    """Do nothing: the answered rounds are in the state, which is restored from the journal."""


def _packed(tag: bytes, agent: RatingAgent) -> dict[str, Any]:
    items, values = agent.ratings
    return {
        "tag": tag,
        "answered": agent.answered,
        "items": np.array(items, dtype="<i4").tobytes(),
        "values": np.array(values, dtype="<f8").tobytes(),
    }
