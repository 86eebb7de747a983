"""The attacker: one who sees contexts with users and times on one side, the raw log of slots on the other.

Its task is two users and two slots, of which each user has sent one: which is whose? Pairs share no user, so trials
are independent, and whoever knows nothing is right with probability exactly 1/2 in each.

It is a classifier over what may link the two sides: names found in what a record carries, and products of ranks (who
came first, when a slot fell due, what it should hold, against order, partition, times, size, producer). It learns the
weights from pairs whose truth is known (accounts of its own), and is tried on others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, rankdata
from sklearn.linear_model import LogisticRegression

from hushstream.schemas.topics import partition_of


@dataclass(frozen=True, slots=True)
class EdgeView:
    """What the attacker knows of one user: their name, when they came and fell due, and what their slot should hold."""

    user: str
    came_ms: int
    due_ms: int
    expected: bytes


@dataclass(frozen=True, slots=True)
class SlotView:
    """What the attacker sees of one slot; ``client`` is not in the log, but the broker sees it with each request."""

    partition: int
    offset: int
    created_ms: int
    appended_ms: int
    size: int
    key: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    producer: int
    client: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the attacker did on pairs not seen before.

    Attributes:
        right: pairs told correctly, of ``pairs``.
    """

    right: int
    pairs: int

    @property
    def accuracy(self) -> float:
        """Share of pairs told correctly; 1/2 for one who knows nothing."""
        return self.right / self.pairs

    def interval(self, confidence: float = 1 - 1e-6) -> tuple[float, float]:
        """The exact interval of Clopper and Pearson for the attacker's accuracy."""
        found = binomtest(self.right, self.pairs).proportion_ci(confidence, method="exact")
        return float(found.low), float(found.high)

    def chance(self) -> float:
        """The probability with which guessing does as well: one-sided, exact."""
        return float(binomtest(self.right, self.pairs, 0.5, alternative="greater").pvalue)


def least_right(pairs: int, false_alarm: float) -> int:
    """From how many right answers on guessing is less likely than ``false_alarm``."""
    return next(k for k in range(pairs + 1) if binomtest(k, pairs, 0.5, alternative="greater").pvalue < false_alarm)


def attack(
    edges: Sequence[EdgeView], slots: Sequence[SlotView], pairs: Sequence[tuple[int, int]], partitions: int, seed: int
) -> Verdict:
    """Learn from the first half of the pairs, and be tried on the second.

    Args:
        edges: users; the slot of ``edges[i]`` is ``slots[i]`` (the truth, seen in the first half alone).
        slots: what is seen of the slots.
        pairs: of users, none in two pairs.
        partitions: of the slots' topic.
        seed: of the order in which the two slots of a pair are put before the attacker.
    """
    linked = _links(edges, slots, partitions)
    difference = np.array([linked(u, u) + linked(v, v) - linked(u, v) - linked(v, u) for u, v in pairs])
    generator = np.random.default_rng(seed)
    straight = np.where(generator.random(len(pairs)) < 0.5, 1.0, -1.0)
    shown = difference * straight[:, None]
    shown /= np.maximum(np.abs(shown).max(axis=0, keepdims=True), 1e-12)
    half = len(pairs) // 2
    model = LogisticRegression(C=1.0, fit_intercept=False, max_iter=1000)
    model.fit(np.vstack([shown[:half], -shown[:half]]), np.concatenate([straight[:half], -straight[:half]]))
    said = shown[half:] @ model.coef_[0]
    said = np.where(np.abs(said) < 1e-12, generator.random(len(said)) - 0.5, said)
    return Verdict(int((np.sign(said) == straight[half:]).sum()), len(said))


def _id_of(slot: SlotView) -> int:
    """The first bytes of the report id, which stands in clear behind the ten bytes of the schema's mark."""
    return int.from_bytes(slot.value[10:18], "big")


def _links(
    edges: Sequence[EdgeView], slots: Sequence[SlotView], partitions: int
) -> Callable[[int, int], NDArray[np.float64]]:
    """What the attacker computes of user i and slot j."""
    names = [edge.user.encode() for edge in edges]
    homes = [partition_of(edge.user, partitions) for edge in edges]
    ranks = _ranks([(edge.came_ms, edge.due_ms, len(edge.expected.rstrip(b"\0"))) for edge in edges])
    seen = _ranks(
        [
            (slot.partition, slot.offset, slot.created_ms, slot.appended_ms, slot.size, slot.producer, _id_of(slot))
            for slot in slots
        ]
    )

    def link(i: int, j: int) -> NDArray[np.float64]:
        slot = slots[j]
        named = (
            slot.key is not None and names[i] in slot.key,
            any(names[i] in name or names[i] in (value or b"") for name, value in slot.headers),
            edges[i].user in slot.client,
            homes[i] == slot.partition,
            edges[i].expected in slot.value,
        )
        return np.concatenate([np.array(named, dtype=np.float64), np.outer(ranks[i], seen[j]).ravel()])

    return link


def _ranks(rows: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
    """Columns as ranks from -1/2 to 1/2; equal values share a rank."""
    columns = [rankdata([float(value) for value in column]) / len(rows) - 0.5 for column in zip(*rows, strict=True)]
    return np.column_stack(columns)


def pairs_of(groups: Sequence[object], seed: int) -> list[tuple[int, int]]:
    """As many disjoint pairs within groups as there are, in random order."""
    members: dict[object, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    generator = np.random.default_rng(seed)
    pairs: list[tuple[int, int]] = []
    for found in members.values():
        mixed = generator.permutation(found).tolist()
        pairs += list(zip(mixed[0::2], mixed[1::2], strict=False))
    return [pairs[place] for place in generator.permutation(len(pairs))]
