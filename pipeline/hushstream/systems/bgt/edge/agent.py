"""`RatingAgent`: one user's ratings, on a device or in an application's process.

It only sends slots, one for each round, padded to one size; `hushstream.client.slots` takes them to the collector. A
slot's id is a pseudorandom function of only the user's key and the round's number, and the collector counts each id
once. So even if several copies of a state continue, one slot for each round counts. The agent stores that a round was
answered before it sends the slot. So after a restart it never sends a slot with other content. Erasing ratings restores
no allowance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.privacy.keys import Key
from hushstream.systems.bgt.configuration import BgtConfig, bgt_digest
from hushstream.systems.bgt.edge.making import make_slots
from hushstream.systems.bgt.edge.ratings import Ratings, ratings_of, require_numbers
from hushstream.systems.bgt.edge.solving import fit, predict
from hushstream.systems.bgt.errors import BgtError
from hushstream.systems.bgt.features import features_bytes
from hushstream.systems.bgt.rounds import ROUNDS, Model, Round
from hushstream.systems.bgt.slots import ID_BYTES, Float64, Slots, null_slots, packed_slots


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A slot and its id, by which it counts once.

    Attributes:
        slot_id: 16 bytes.
        round: the round that it answers.
        digest: of the configuration that the user agreed to; a collector refuses others.
        slot: the content, one slot.
    """

    slot_id: bytes
    round: int
    digest: bytes
    slot: Slots

    def fields(self) -> dict[str, Any]:
        """The fields of a `RatingSlot`."""
        return {
            "slot_id": self.slot_id,
            "config_digest": self.digest,
            "round": self.round,
            "content": packed_slots(self.slot)[0],
        }


class RatingAgent:
    """The ratings of one user, and the slots and predictions made from them. Not thread-safe."""

    __slots__ = ("_answered", "_config", "_digest", "_features", "_key", "_ratings", "_remember")

    def __init__(
        self,
        config: BgtConfig,
        key: Key,
        remember: Callable[[int], None],
        answered: int = 0,
        features: Float64 | None = None,
        digest: bytes | None = None,
    ) -> None:
        """Begin, or continue from the stored number of rounds.

        Args:
            config: the configuration that the user agrees to, for the agent's life.
            key: the user's key; it gives the ids, and chooses ratings if not all fit.
            remember: stores the number of answered rounds durably. It is called before a slot is sent.
            answered: the last stored number.
            features: (I, f) public features of items.
            digest: digest of the deployment that the user agrees to, for a replay of a public dataset; by default it is
                computed from configuration and features.

        Raises:
            BgtError: an impossible number of rounds, or features of another shape.
        """
        if not 0 <= answered <= ROUNDS:
            raise BgtError(f"answered: expected a number from 0 to {ROUNDS}, got {answered}")
        self._features = np.zeros((config.items, 0)) if features is None else features
        if self._features.shape != (config.items, config.features):
            expected = config.items, config.features
            raise BgtError(f"features: expected shape {expected}, got {self._features.shape}")
        self._digest = bgt_digest(config, features_bytes(self._features)) if digest is None else digest
        self._config, self._key = config, key
        self._remember, self._answered = remember, answered
        self._ratings: dict[int, float] = {}

    @property
    def answered(self) -> int:
        """Number of answered rounds; no erasure lowers it."""
        return self._answered

    @property
    def ratings(self) -> tuple[list[int], list[float]]:
        """Items and ratings, in the order in which items came, to store the agent's state."""
        return list(self._ratings), list(self._ratings.values())

    def rate(self, items: Sequence[int], ratings: Sequence[float]) -> None:
        """Take ratings, on the configured scale; a later one of the same item replaces it.

        Raises:
            BadRatings: an unknown item, or a rating off the scale; then no rating is taken.
        """
        ratings_of(np.zeros(len(items), dtype=np.int64), items, ratings, self._config, 1)
        self._ratings.update(zip(items, ratings, strict=True))

    def forget(self, items: Iterable[int] | None = None) -> None:
        """Drop the ratings of some items, or of all. Slots that were sent stay sent, and the allowance stays spent."""
        for item in list(self._ratings) if items is None else items:
            self._ratings.pop(item, None)

    def answer(self, asked: Round, digest: bytes) -> Sent:
        """The slot of a round; null if this round, or a later one, was answered before.

        Raises:
            BgtError: the user has not agreed to the configuration of the round.
        """
        if digest != self._digest:
            raise BgtError("round: expected the configuration that was agreed to, got another digest")
        slot_id = self._key.prf("bgt-slot", asked.number)[:ID_BYTES]
        if asked.number < self._answered:
            return Sent(slot_id, asked.number, digest, null_slots(1, self._config))
        self._remember(asked.number + 1)
        self._answered = asked.number + 1
        salt = np.frombuffer(self._key.prf("bgt-salt")[:8], dtype="<u8").astype(np.uint64)
        return Sent(slot_id, asked.number, digest, make_slots(self._own(), asked, self._config, salt))

    def predict(self, items: Iterable[int], model: Model) -> Float64:
        """Predicted ratings of items by the user, on the configured scale; nothing is sent.

        Raises:
            BadRatings: an unknown item.
        """
        wanted = np.array(list(items), dtype=np.int64)
        scale = self._config.scale
        require_numbers("item", wanted, self._config.items)
        own = fit(self._own(), model, self._features, self._config)
        found = predict(own, np.zeros_like(wanted), wanted, model, self._features, self._config)
        return np.asarray(scale.lowest + found * (scale.highest - scale.lowest))

    def __repr__(self) -> str:
        """The number of answered rounds, without ratings."""
        return f"RatingAgent(answered={self._answered})"

    def _own(self) -> Ratings:
        items = np.array(list(self._ratings), dtype=np.int64)
        values = list(self._ratings.values())
        return ratings_of(np.zeros_like(items), items, values, self._config, 1)
