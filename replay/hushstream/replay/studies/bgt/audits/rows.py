"""Attacks on the three slots: one hypothesis is a user, the other is null slots; the attacker sees all releases.

`PARALLEL_USERS` users have items of their own, so one deployment gives that many independent runs. A user rates so that
each of their slots reaches its clip. After each slot they delete everything, rate again and answer once more, to be
counted twice. The attacker knows all of this, and the sums without noise. It uses the likelihood ratio of the Gaussian
noise over all three releases. Agents draw no noise, so the slots of each hypothesis are made once; each run has its own
collectors and noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Cost, delta_units, epsilon_micro
from hushstream.privacy.audits.audit import Attack, audit_attack
from hushstream.privacy.audits.laws import Family, gaussian_curve
from hushstream.privacy.filters import ConcentratedFilter
from hushstream.privacy.keys import Key
from hushstream.replay.audits.draws import fresh_key, fresh_nonce, side_by_side
from hushstream.replay.audits.mechanisms import of_rho
from hushstream.replay.audits.roles.work import audit_of
from hushstream.replay.audits.row import Attacked, Audit, Recipe, Run, made
from hushstream.replay.studies.bgt.audits.forks import fork_rows
from hushstream.replay.studies.bgt.audits.work import works
from hushstream.replay.studies.bgt.experiments.paper import EPSILON, PAPER_DELTA, PSEUDO, row_guarantee
from hushstream.systems.bgt.configuration import UNIT, BgtConfig, ReleaseConfig, ScaleConfig, bgt_digest
from hushstream.systems.bgt.deployment import bgt_address
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.price.guarantee import epoch_guarantee
from hushstream.systems.bgt.rounds import Model, Round, first_round
from hushstream.systems.bgt.shuffler.collector import Collector
from hushstream.systems.bgt.slots import Float64, Slots

PARALLEL_USERS, OWN_ITEMS = 10, 16
"""Users of an attacked deployment in the table, and the items that each of them rates."""

AUDITED_EPSILON = 8.0
_DELTA = 1e-5
_SEEN_ROUNDS, _ALL_ITEMS = 6, 1682
"""How many of the paper's hundred rounds the attacker sees, and the number of items of MovieLens-100K."""

_PAIRS = (0.01, 0.98, 0.01)
"""Shares that spend almost all of the budget on the slot of kind B."""


@dataclass(frozen=True, slots=True)
class Rig:
    """The attacked deployment; tests replace parts by others that break one rule.

    Attributes:
        config: the deployment's configuration.
        agent: the class that makes and remembers slots.
        collector: the class that takes and releases them.
    """

    config: BgtConfig
    agent: type[RatingAgent] = RatingAgent
    collector: type[Collector] = Collector

    @property
    def own(self) -> int:
        """The number of items that each user rates, at most as many as a slot holds."""
        return own_items(self.config)

    @property
    def parallel_users(self) -> int:
        """The number of users in one deployment; the top items are divided among them."""
        return self.config.top // self.own


def audited_config(shares: tuple[float, float, float] = ReleaseConfig().shares) -> BgtConfig:
    """The audited configuration: all items are top items, and ratings lie far from their predictions."""
    items = PARALLEL_USERS * OWN_ITEMS
    release = ReleaseConfig("gaussian", AUDITED_EPSILON, _DELTA, shares, pairs=OWN_ITEMS, top=items, factors=1)
    return BgtConfig("audit", items, scale=ScaleConfig(0.0, 1.0, 0.0), release=release)


def own_items(config: BgtConfig) -> int:
    """How many items an attacked user rates: with this many equal values, pairs reach 97 % of their bound."""
    return min(OWN_ITEMS, config.release.pairs, config.top)


def audited_rounds(config: BgtConfig) -> tuple[Round, ...]:
    """The rounds, with models for which every slot reaches its clip; the first item of each user has a factor.

    Every second item is rated as high as possible and predicted below the scale; the other items have the lowest rating
    and a prediction above the scale.
    """
    biases = np.where(_high(np.arange(config.items)), -1.0, 1.0)
    factor = (np.arange(config.items) % own_items(config) == 0).astype(np.float64)[:, None]
    top = np.arange(config.top, dtype=np.int64)
    pairs = Round(1, "pairs", Model(biases, np.zeros((config.items, 0))), top, np.ones(config.top))
    return first_round(config), pairs, Round(2, "factors", Model(biases, factor))


def _high(items: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray(items % 2 == 0)


def users_of(rig: Rig, key: Key) -> list[RatingAgent]:
    """All attacked users, before the first round."""
    return [rig.agent(rig.config, key.derive("user", user), _forgets) for user in range(rig.parallel_users)]


def _forgets(answered: int) -> None:
    """Restore nothing: no user starts again here."""


Answers = Sequence[Sequence[tuple[Slots, list[bytes]]]]
"""For each round, what users send before everything is deleted, and after."""


def answers_of(rig: Rig, key: Key, present: bool) -> Answers:
    """The slots of all users in all rounds; ``present`` says whether they rate before each answer, or never."""
    users = users_of(rig, key)
    return [[_answers(users, asked, rig, present) for _ in range(2)] for asked in audited_rounds(rig.config)]


def transcript(rig: Rig, key: Key | None, sent: Answers) -> list[Float64]:
    """The releases of all rounds, as flat arrays; without noise where ``key`` is None."""
    config = rig.config if key is not None else replace(rig.config, release=replace(rig.config.release, noise="exact"))
    nonce, released = fresh_nonce(), []
    for asked, answers in zip(audited_rounds(rig.config), sent, strict=True):
        address = bgt_address(config, bgt_digest(config), nonce, 0)
        collector = rig.collector(asked, config, key, address)
        for slots, ids in answers:
            collector.take(slots, ids)
        released.append(collector.release().sums.astype(np.float64).ravel())
    return released


def _answers(users: Sequence[RatingAgent], asked: Round, rig: Rig, present: bool) -> tuple[Slots, list[bytes]]:
    """Let every user rate, answer and delete everything."""
    answers, scale = [], rig.config.scale
    for user, agent in enumerate(users):
        if present:
            items = np.arange(user * rig.own, (user + 1) * rig.own)
            agent.rate(items.tolist(), np.where(_high(items), scale.highest, scale.lowest).tolist())
        answers.append(agent.answer(asked, bgt_digest(rig.config)))
        agent.forget()
    slots = [one.slot for one in answers]
    columns = ("items", "values", "weights", "directions")
    joined = Slots(*(np.concatenate([getattr(slot, name) for slot in slots]) for name in columns))
    return joined, [one.slot_id for one in answers]


@lru_cache(maxsize=4)
def _moves(config: BgtConfig) -> tuple[Float64, ...]:
    """The change that each user makes in each cell of all rounds, in deviations of the noise, (users, cells)."""
    found = []
    product = Rig(config)
    for number, moved in enumerate(transcript(product, None, answers_of(product, fresh_key(), True))):
        rows = np.zeros((product.parallel_users, len(moved)))
        # A cell without ratings has no owner and does not change.
        owners = np.minimum(_owners(audited_rounds(config)[number], config), product.parallel_users - 1)
        rows[owners, np.arange(len(moved))] = moved / deviations(config)[number]
        found.append(rows)
    return tuple(found)


def _owners(asked: Round, config: BgtConfig) -> NDArray[np.int64]:
    """The owner of each cell; a pair belongs to its later item, as other users move none of a user's cells."""
    by_item = np.arange(config.items) // own_items(config)
    if asked.kind == "items":
        return np.concatenate((by_item, by_item))
    return by_item[np.tril_indices(config.top, -1)[0]] if asked.kind == "pairs" else by_item


def slots_attack(rig: Rig) -> Attack:
    """The likelihood ratio attack; see the module's docstring."""
    key = fresh_key()
    moves = _moves(rig.config)
    squares = sum((rows**2).sum(axis=1) for rows in moves)
    spreads = deviations(rig.config)
    sent = {present: answers_of(rig, key, present) for present in (False, True)}

    def scores(present: bool) -> Float64:
        seen = transcript(rig, key, sent[present])
        found = sum(rows @ (cells / one) for rows, cells, one in zip(moves, seen, spreads, strict=True))
        return np.asarray(found - squares / 2, dtype=np.float64)

    return side_by_side(scores, rig.parallel_users)


def deviations(config: BgtConfig) -> Sequence[float]:
    """The standard deviation that each round's noise must have, computed apart from the product's own calibration."""
    release = config.release
    bounds = (UNIT * release.clip, (UNIT * release.clip) ** 2 / 2**0.5, UNIT * release.factor_clip)
    return [
        bound / (2 * share * stated_rho(config)) ** 0.5 for bound, share in zip(bounds, release.shares, strict=True)
    ]


def stated_rho(config: BgtConfig) -> float:
    """The rho that the stated epsilon allows at half of delta."""
    release = config.release
    stated = Cost(epsilon_micro(release.epsilon), delta_units(release.delta))
    return ConcentratedFilter.for_cost(stated).rho_micro / 1e6


def slots_family(config: BgtConfig) -> Family:
    """Two normal distributions, at the distance between a user and null over all three releases."""
    apart = float(np.sqrt(np.mean(sum((rows**2).sum(axis=1) for rows in _moves(config)))))
    # Epsilon is stated for half of delta.
    return of_rho(
        lambda other: gaussian_curve(apart * (other / stated_rho(config)) ** 0.5), float(config.release.delta) / 2
    )


def audit_slots(rig: Rig) -> Run:
    """Attack a user against null slots; the attacker sees all releases."""
    return lambda runs, false_alarm: attacked_slots(rig)(runs, false_alarm)


def attacked_slots(rig: Rig) -> Attacked:
    """`audit_slots`, with the attack built."""
    return Attacked(slots_attack(rig), epoch_guarantee(rig.config).cost, slots_family(rig.config))


def audit_paper() -> Run:
    """Attack the paper's form, to see whether a client rated an item.

    Real items are in every round; pseudo items are drawn anew.
    """
    return partial(audit_attack, _ids_attack, row_guarantee().cost, None)


def _ids_attack(present: bool, runs: int) -> Float64:
    """Answer yes where the item is among the ids of all `_SEEN_ROUNDS` rounds."""
    draw, seen = np.random.default_rng(), np.ones(runs, dtype=bool)
    for _ in range(0 if present else _SEEN_ROUNDS):
        pseudo = draw.integers(0, _ALL_ITEMS, (runs, PSEUDO), dtype=np.int16)
        seen &= (pseudo == 0).any(axis=1)
    return np.where(seen, 1.0, -1.0)


def audits() -> tuple[Audit, ...]:
    """The audits of BGTplanner's slots and of the paper's form."""
    about = "a user against null, answering twice with everything erased between, all releases seen"
    whole, pairs = audited_config(), audited_config(_PAIRS)
    return (
        Audit("bgt-slots", "attack", about, 1_000, audit_slots(Rig(whole)), subjects=(whole.release,)),
        Audit("bgt-pairs", "attack", f"{about}, almost all spent on pairs", 3_000, audit_slots(Rig(pairs))),
        Audit(
            "bgt-paper",
            "release",
            "an item that a client rated, by the ids in clear",
            500_000,
            audit_paper(),
            factor=1,
            paper_claim=Cost(epsilon_micro(EPSILON), delta_units(PAPER_DELTA)),
        ),
        *map(audit_of, works()),
    )


def rows() -> tuple[Recipe, ...]:
    """Every audit of BGTplanner."""
    config = audited_config()
    return (*map(made, audits()), *fork_rows(config, audited_rounds(config)))
