"""The audits of BGTplanner: work, forks, slots and rounds, and configurations.

*Work.* The time of the collector's work on null slots and on slots with content is compared, for each kind of slot.

*Slots.* One hypothesis is a user, the other is null slots; the attacker sees all releases.

`PARALLEL_USERS` users have items of their own, so one deployment gives that many independent runs. A user rates so that
each of their slots reaches its clip. After each slot they delete everything, rate again and answer once more, to be
counted twice. The attacker knows all of this, and the sums without noise. It uses the likelihood ratio of the Gaussian
noise over all three releases. Agents draw no noise, so the slots of each hypothesis are made once; each run has its own
collectors and noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Cost, count_text, delta_units, epsilon_micro
from hushstream.privacy.audits import Attack, Family, gaussian_curve
from hushstream.privacy.filters import ConcentratedFilter
from hushstream.privacy.keys import Key, seeded_key
from hushstream.replay.audits.configured import AuditReport, gaussian_law, left_out, report_of, require_noise
from hushstream.replay.audits.readings import of_rho
from hushstream.replay.audits.recordings import AS_IT_WAS, Branch, PlayedRole, fresh_key, fresh_nonce, phase_end_fields
from hushstream.replay.audits.row import Audit, fork_row
from hushstream.replay.audits.tests import ForkTest, NeighbourTest, SizeTest, columns, side_by_side
from hushstream.replay.audits.work import SLOTS, Holds, Work, audit_of, has_content
from hushstream.replay.studies.bgt.experiments import EPSILON, PAPER_DELTA, PSEUDO, row_guarantee
from hushstream.schemas import codec
from hushstream.systems.bgt.artefacts import BgtSystem, bgt_address
from hushstream.systems.bgt.configuration import UNIT, BgtConfig, Kind, ReleaseConfig, ScaleConfig, bgt_digest
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.guarantee import epoch_guarantee
from hushstream.systems.bgt.records import (
    Float64,
    Model,
    Round,
    Slots,
    first_round,
    null_slots,
    packed_slots,
    round_fields,
)
from hushstream.systems.bgt.shuffler import Collector, CollectorMachine, Sums

_ITEMS, _FACTORS = 400, 4
_SMALL = 1 << 10
"""A value in lattice units; a slot of such values is within every clip."""


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """The work of a batch of ``slots`` slots for each kind of round, in the order of rounds."""
    config = BgtConfig("audit", _ITEMS, 0, ScaleConfig(0, 1), ReleaseConfig(factors=_FACTORS))
    system = BgtSystem.of(config, np.zeros((_ITEMS, 0)))
    none, some = (Model(np.zeros(_ITEMS), np.zeros((_ITEMS, kept))) for kept in (0, _FACTORS))
    top = np.arange(config.top)
    rounds = [Round(0, "items", none), Round(1, "pairs", none, top, np.ones(len(top))), Round(2, "factors", some)]
    return tuple(_work(system, rounds, number, slots) for number in range(len(rounds)))


def _work(system: BgtSystem, rounds: Sequence[Round], number: int, slots: int) -> Work:
    before = []
    for asked in rounds[: number + 1]:
        before.append(codec.encode("RatingRound", round_fields(asked, asked.number, system.digest)))
        if asked.number < number:
            before.append(codec.encode("Seal", _end_fields(system, asked.number)))
    kind = rounds[number].kind
    make = partial(CollectorMachine, system, 0, seeded_key(0, "shuffler"))
    about = f"nulls against slots of {kind}"
    batch = partial(_batch, system, kind, number, slots)
    return Work(f"time-of-{kind}", ("bgt", "collector"), about, make, before, batch)


def _batch(system: BgtSystem, kind: Kind, number: int, slots: int, holds: Holds) -> Sequence[bytes]:
    null, full = packed_slots(null_slots(1, system.config))[0], packed_slots(_slots(system.config, kind, slots))
    contents = [full[place] if has_content(holds, place) else null for place in range(slots)]
    fields = (slot_fields(system, number, place, content) for place, content in enumerate(contents))
    return [codec.encode("RatingSlot", one) for one in fields]


def slot_fields(system: BgtSystem, number: int, name: int, content: bytes) -> dict[str, Any]:
    """The fields of a record with one slot of a round."""
    head = {"slot_id": name.to_bytes(16, "big"), "config_digest": system.digest}
    return {**head, "round": number, "content": content}


def _slots(config: BgtConfig, kind: Kind, count: int) -> Slots:
    """Slots with different items, each filled as far as the round has items."""
    draw, slots = np.random.default_rng(1), null_slots(count, config)
    there = config.top if kind == "pairs" else config.items
    used = min(config.release.pairs, there)
    for row in range(count):
        slots.items[row, :used] = np.sort(draw.choice(there, used, replace=False))
    slots.values[:, :used] = draw.integers(1, _SMALL, (count, used))
    if kind == "items":
        slots.weights[:] = _SMALL
    if kind == "factors":
        slots.directions[:] = draw.integers(1, _SMALL, slots.directions.shape)
    return slots


def _end_fields(system: BgtSystem, number: int) -> dict[str, Any]:
    return {**phase_end_fields(system.digest, number), "origin": 0}


FORK_SLOTS = 4
CELLS = 100
"""The number of cells of a round that are compared; each is one run."""


def round_of(config: BgtConfig, rounds: tuple[Round, ...], number: int) -> ForkTest:
    """The fork of one round; the rounds before it hold null slots."""
    system, key, asked = BgtSystem.of(config, np.zeros((config.items, config.features))), fresh_key(), rounds[number]

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        role = PlayedRole(partial(CollectorMachine, system, 0, key), nonce, branch)
        for before in rounds[:number]:
            _answer(role, system, before, null_slots(FORK_SLOTS, config), AS_IT_WAS)
        slots = null_slots(FORK_SLOTS, config)
        if branch.other_contents:
            _fill(slots, asked.kind)
        _answer(role, system, asked, slots, branch)
        sums = Sums(asked, config)
        sums.add(slots)
        released = np.frombuffer(role.published("releases", "RatingSums")[-1]["sums"], "<i8")
        return columns((released - sums.cells().ravel())[:CELLS])

    return ForkTest("bgt", "collector", play, system.guarantee().cost)


def _fill(slots: Slots, kind: Kind) -> None:
    """Let the first slot rate two items, so that every kind of round has content to count."""
    slots.items[0, :2], slots.values[0, :2] = (0, 1), UNIT // 4
    if kind == "items":
        slots.weights[0] = UNIT // 16
    if kind == "factors":
        slots.directions[0, 0] = UNIT // 2


def _answer(role: PlayedRole, system: BgtSystem, asked: Round, slots: Slots, branch: Branch) -> None:
    """Send all slots of a round, then end it."""
    if asked.number:
        role.put("updates", "RatingRound", round_fields(asked, asked.number, system.digest))
    for place, content in enumerate(packed_slots(slots)):
        name = branch.number(place) + (asked.number << 60)
        role.put("updates", "RatingSlot", slot_fields(system, asked.number, name, content))
    role.put("updates", "Seal", _end_fields(system, asked.number))
    role.work()


def fork_rows(config: BgtConfig, rounds: tuple[Round, ...]) -> tuple[Audit, ...]:
    """All audits of forks, in the order of the table."""
    return tuple(
        fork_row(f"forked-round-{asked.kind}", "cells", partial(round_of, config, rounds, number))
        for number, asked in enumerate(rounds)
    )


PARALLEL_USERS, OWN_ITEMS = 10, 16
"""Users of an attacked deployment in the table, and the items that each of them rates."""

AUDITED_EPSILON = 8.0
_DELTA = 1e-5
_SEEN_ROUNDS, _ALL_ITEMS = 6, 1682
"""How many of the paper's hundred rounds the attacker sees, and the number of items of MovieLens-100K."""

_PAIRS = (0.01, 0.98, 0.01)
"""Shares that spend almost all of the budget on the slot of kind B."""


def audited_config(shares: tuple[float, float, float] = ReleaseConfig().shares) -> BgtConfig:
    """The audited configuration: all items are top items, and ratings lie far from their predictions."""
    items = PARALLEL_USERS * OWN_ITEMS
    release = ReleaseConfig("gaussian", AUDITED_EPSILON, _DELTA, shares, pairs=OWN_ITEMS, top=items, factors=1)
    return BgtConfig("audit", items, scale=ScaleConfig(0.0, 1.0, 0.0), release=release)


def own_items(config: BgtConfig) -> int:
    """How many items an attacked user rates: with this many equal values, pairs reach 97 % of their bound."""
    return min(OWN_ITEMS, config.release.pairs, config.top)


def parallel_users(config: BgtConfig) -> int:
    """The number of users in one deployment; the top items are divided among them."""
    return config.top // own_items(config)


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


def users_of(config: BgtConfig, key: Key) -> list[RatingAgent]:
    """All attacked users, before the first round."""
    return [RatingAgent(config, key.derive("user", user), _forgets) for user in range(parallel_users(config))]


def _forgets(answered: int) -> None:
    """Restore nothing: no user starts again here."""


Answers = Sequence[Sequence[tuple[Slots, list[bytes]]]]
"""For each round, what users send before everything is deleted, and after."""


def answers_of(config: BgtConfig, key: Key, present: bool) -> Answers:
    """The slots of all users in all rounds; ``present`` says whether they rate before each answer, or never."""
    users = users_of(config, key)
    return [[_answers(users, asked, config, present) for _ in range(2)] for asked in audited_rounds(config)]


def transcript(config: BgtConfig, key: Key | None, sent: Answers) -> list[Float64]:
    """The releases of all rounds, as flat arrays; without noise where ``key`` is None."""
    nonce, released = fresh_nonce(), []
    rounds = audited_rounds(config)
    if key is None:
        config = replace(config, release=replace(config.release, noise="exact"))
    for asked, answers in zip(rounds, sent, strict=True):
        address = bgt_address(config, bgt_digest(config), nonce, 0)
        collector = Collector(asked, config, key, address)
        for slots, ids in answers:
            collector.take(slots, ids)
        released.append(collector.release().sums.astype(np.float64).ravel())
    return released


def _answers(users: Sequence[RatingAgent], asked: Round, config: BgtConfig, present: bool) -> tuple[Slots, list[bytes]]:
    """Let every user rate, answer and delete everything."""
    answers, scale, own = [], config.scale, own_items(config)
    for user, agent in enumerate(users):
        if present:
            items = np.arange(user * own, (user + 1) * own)
            agent.rate(items.tolist(), np.where(_high(items), scale.highest, scale.lowest).tolist())
        answers.append(agent.answer(asked, bgt_digest(config)))
        agent.forget()
    slots = [one.slot for one in answers]
    columns = ("items", "values", "weights", "directions")
    joined = Slots(*(np.concatenate([getattr(slot, name) for slot in slots]) for name in columns))
    return joined, [one.slot_id for one in answers]


@lru_cache(maxsize=4)
def _moves(config: BgtConfig) -> tuple[Float64, ...]:
    """The change that each user makes in each cell of all rounds, in deviations of the noise, (users, cells)."""
    found, users = [], parallel_users(config)
    for number, moved in enumerate(transcript(config, None, answers_of(config, fresh_key(), True))):
        rows = np.zeros((users, len(moved)))
        # A cell without ratings has no owner and does not change.
        owners = np.minimum(_owners(audited_rounds(config)[number], config), users - 1)
        rows[owners, np.arange(len(moved))] = moved / deviations(config)[number]
        found.append(rows)
    return tuple(found)


def _owners(asked: Round, config: BgtConfig) -> NDArray[np.int64]:
    """The owner of each cell; a pair belongs to its later item, as other users move none of a user's cells."""
    by_item = np.arange(config.items) // own_items(config)
    if asked.kind == "items":
        return np.concatenate((by_item, by_item))
    return by_item[np.tril_indices(config.top, -1)[0]] if asked.kind == "pairs" else by_item


def slots_attack(config: BgtConfig) -> Attack:
    """The likelihood ratio attack; see the module's docstring."""
    key = fresh_key()
    moves = _moves(config)
    squares = sum((rows**2).sum(axis=1) for rows in moves)
    spreads = deviations(config)
    sent = {present: answers_of(config, key, present) for present in (False, True)}

    def scores(present: bool) -> Float64:
        seen = transcript(config, key, sent[present])
        found = sum(rows @ (cells / one) for rows, cells, one in zip(moves, seen, spreads, strict=True))
        return np.asarray(found - squares / 2, dtype=np.float64)

    return side_by_side(scores, parallel_users(config))


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


def audit_slots(config: BgtConfig) -> NeighbourTest:
    """Attack a user against null slots; the attacker sees all releases."""
    return NeighbourTest(slots_attack(config), epoch_guarantee(config).cost, slots_family(config))


def audit_paper() -> NeighbourTest:
    """Attack the paper's form, to see whether a client rated an item.

    Real items are in every round; pseudo items are drawn anew.
    """
    return NeighbourTest(_ids_attack, row_guarantee().cost)


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
        Audit("bgt-slots", "attack", about, 1_000, partial(audit_slots, whole), subjects=(whole.release,)),
        Audit("bgt-pairs", "attack", f"{about}, almost all spent on pairs", 3_000, partial(audit_slots, pairs)),
        Audit(
            "bgt-paper",
            "release",
            "an item that a client rated, by the ids in clear",
            500_000,
            audit_paper,
            factor=1,
            paper_claim=Cost(epsilon_micro(EPSILON), delta_units(PAPER_DELTA)),
        ),
        *map(audit_of, works()),
    )


def rows() -> tuple[Audit, ...]:
    """Every audit of BGTplanner."""
    config = audited_config()
    return (*audits(), *fork_rows(config, audited_rounds(config)))


MOST_ITEMS = 4_096
"""The most items of an attacked deployment; noise of items without ratings takes time and reveals nothing."""


def audit_config(config: BgtConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration: all three rounds, with its slots, clips, shares, items and top items.

    Raises:
        HushstreamError: the configuration adds no noise.
    """
    release = config.release
    require_noise(release.noise)
    attacked = replace(config, items=min(config.items, max(MOST_ITEMS, config.top)), features=0)
    settings = {
        "system": config.system,
        "epsilon": release.epsilon,
        "delta": release.delta,
        "shares": list(release.shares),
        "items": attacked.items,
        "top": config.top,
        "pairs": release.pairs,
    }
    attacked_rounds = (
        f"all three releases, of {parallel_users(attacked)} users who each rate {own_items(attacked)} of "
        f"{attacked.items} items, "
        f"up to each clip"
    )
    return report_of(
        "three-slots",
        settings,
        audit_slots(attacked),
        _noise_of(attacked),
        epoch_guarantee(config),
        runs,
        false_alarm,
        attacked_rounds,
        _reduced(config, attacked),
    )


def _reduced(config: BgtConfig, attacked: BgtConfig) -> tuple[str, ...]:
    fewer = config.items - attacked.items
    more = config.release.factors - 1
    return left_out(
        (fewer, f"{count_text(fewer, 'item')}, as each sum has noise of its own, of one size for all items"),
        (config.features, "public features of items, as slots do not hold them"),
        (more, f"{more} of {config.release.factors} factors of an item, as the clip is of all"),
    )


def _noise_of(config: BgtConfig) -> SizeTest:
    """The noise of all three rounds, released for users who rated nothing."""
    key, spreads = fresh_key(), deviations(config)
    sent = answers_of(config, key, False)

    def read() -> NDArray[np.float64]:
        released = transcript(config, key, sent)
        return np.asarray(np.abs(np.concatenate([cells / one for cells, one in zip(released, spreads, strict=True)])))

    # Epsilon is stated for half of delta.
    law = gaussian_law(stated_rho(config), float(config.release.delta) / 2)
    return SizeTest(read, epoch_guarantee(config).cost, law)
