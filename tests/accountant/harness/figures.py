"""Every figure of a guarantee beside what `formulas` makes of the same configuration.

A `Figure` has what the product says and the least and the most that it may say. Most are one number; a delta of tables
may be off by the product's own allowance of a unit or two of 2^-80. A price that enters another figure (of an epoch,
into what all epochs cost) is checked first and then taken as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from hushstream_test_accountant_configurations import Drawn, drawn
from hushstream_test_accountant_formulas import (
    MICRO,
    UNITS,
    Filter,
    crowd_delta,
    decimal,
    epsilon_of_rho,
    gaussian_off,
    k_norm_off,
    laplace_off,
    largest,
    micro,
    rho_of_epsilon,
    tail_units,
    toeplitz_length,
    toeplitz_rounding,
    tree_levels,
    worst_split,
)
from mpmath import mp, mpf

from hushstream.agents.worker.deployment import parse_config
from hushstream.counting import BadPlan
from hushstream.counting.buffered import BufferedToeplitz
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.noise.budget import filter_of
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee, tuples_guarantee
from hushstream.privacy.promises.page import DELTAS, conversion_rows, page_json
from hushstream.privacy.promises.promise import Guarantee
from hushstream.systems.bgt.guarantee import rho_micro, squared_clip, variance_of
from hushstream.systems.catalogue import kind_of
from hushstream.systems.colin.configuration import local_reward_of
from hushstream.systems.colin.configuration import plan_of as colin_plan
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.guarantee import resolve_threshold, window_tree_of
from hushstream.systems.p2b.lift import guardrail_tree, lift_tree, required_lift
from hushstream.systems.p2b.machines.shuffler import _parameters as p2b_parameters
from hushstream.systems.pdap.algorithm.blocks import block_scales
from hushstream.systems.pdol.algorithm.counters import plan_of as pdol_plan
from hushstream.systems.pdol.guarantee import person_prices

DEEPEST = 64
"""Up to so many slots in one crowd are priced together; beyond, group privacy bounds them."""


_SLOTS_TO_SEND = 70
"""Lives of so many slots are lived; longer ones would take too long."""


class Figure(NamedTuple):
    """``got`` has to lie from ``low`` to ``high``, or to be ``low`` where it is exact."""

    name: str
    got: Any
    low: Any
    high: Any
    exact: bool = False

    @property
    def right(self) -> bool:
        return bool(self.got == self.low if self.exact else self.low <= self.got <= self.high)


Figures = Iterator[Figure]


@dataclass(frozen=True)
class Refused:
    """The budget pays for nothing, or no counter is that coarse."""


@cache
def compared(system: str, first: int, count: int) -> tuple[tuple[Drawn, list[Figure] | Refused], ...]:
    """Configurations by number, each with its figures."""
    found = [drawn(system, number) for number in range(first, first + count)]
    return tuple((one, checked(one)) for one in found)


def checked(one: Drawn) -> list[Figure] | Refused:
    """All figures of a configuration; `Refused` where the product refuses its budget, rightly so."""
    config = parse_config(one.values)
    kind = kind_of(one.system)
    nothing = Artefacts("drawn", {})
    try:
        promises = kind.guarantee(config, nothing)
        budgets = kind.budgets(config, nothing)
    except BadPlan:
        # So little rho that no buffered counter draws its noise: it is refused before anything runs.
        return Refused()
    except ConfigurationError as error:
        if not str(error).startswith("privacy.lifetime:"):
            raise
        free = replace(config, budget=None)
        _require_no_room(one.system, config, kind.guarantee(free, nothing))
        return Refused()
    found = [*_OF[one.system](config, promises, budgets)]
    if one.devices > 1:
        found += _devices(config, one.devices)
    for promise in promises.each:
        found += _conversions(promise)
    if config.budget is not None:
        found += _limits(config.budget)
    found += _in_json(promises)
    return found


def same(name: str, got: Any, want: Any) -> Figure:
    return Figure(name, got, want, want, exact=True)


def near(name: str, got: Any, want: float, part: float = 1e-9) -> Figure:
    return Figure(name, got, want - abs(want) * part, want + abs(want) * part)


def price(name: str, got: Any, epsilon: int, low: int, high: int | None = None) -> Figures:
    """An (epsilon, delta); delta from ``low`` to ``high`` units, give or take what rounding up twice makes."""
    high = low if high is None else high
    yield same(f"{name}, epsilon", got.epsilon_micro, epsilon)
    yield Figure(f"{name}, delta", got.delta_units, min(UNITS, low) - 1, min(UNITS, high + 2 + (high >> 60)))


# Over epochs of noise, under a budget: colin, pdol, bgt, pdap.


class Epochs(NamedTuple):
    """How many whole epochs fit, how many steps of one more, and what they cost together."""

    fit: int
    begun: int
    epsilon: int
    delta: int

    @property
    def most(self) -> int:
        return self.fit + bool(self.begun)


def epochs_of(one: Guarantee, planned: int, budget: Any, steps: tuple[Guarantee, ...] = ()) -> Epochs:
    """``one`` is of an epoch, and was checked."""
    if budget is None:
        return Epochs(planned, 0, planned * one.epsilon_micro, planned * one.delta_units)
    limit = Filter(budget.filter, budget.epsilon, budget.delta)
    whole = _priced(limit, one, one, budget)
    fit = min(planned, limit.room(whole))
    parts = [_priced(limit, step, one, budget) for step in steps]
    sums = [(fit * whole[0] + part[0], fit * whole[1] + part[1]) for part in parts] if fit < planned else []
    begun = sum(limit.admits(found) for found in sums)
    return Epochs(fit, begun, *limit.cost(sums[begun - 1] if begun else (fit * whole[0], fit * whole[1])))


def _priced(limit: Filter, part: Guarantee, whole: Guarantee, budget: Any) -> tuple[int, int]:
    """A Gaussian epoch goes by its rho; beside it stands the tables' part, weighed by the budget's epsilon."""
    if limit.kind == "basic" or whole.rho_micro is None:
        return limit.price(part.epsilon_micro, part.delta_units)
    most = mpf(math.floor(decimal(budget.epsilon) * MICRO)) / MICRO
    own = mpf(whole.epsilon_micro) / MICRO
    beside = mp.ceil(whole.truncation_units * (1 + mp.exp(most)) / (1 + mp.exp(own)))
    return limit.price_of_rho(part.rho_micro, min(UNITS, int(beside)))


def over_epochs(
    promise: Guarantee, one: Guarantee, planned: int, budget: Any, facts: Any, exchange_alike: bool, per: int = 1
) -> Figures:
    """Figures of all epochs, given those of one (``per`` releases in each that are charged for themselves)."""
    found = epochs_of(one, planned, budget)
    limit_of = (found.epsilon, found.delta)
    yield same("epochs that fit", facts.fits, found.fit * per)
    yield from _budget(facts, planned * per, budget, limit_of)
    if found.most == 1:
        return
    yield from _many(promise, one, found, exchange_alike)


def _many(promise: Guarantee, one: Guarantee, found: Epochs, exchange_alike: bool) -> Figures:
    """``one`` is the guarantee of an epoch, found by the same code without a budget and checked by itself."""
    assert promise.redraws is not None, "several epochs fit"
    yield same("redraws", promise.redraws.most, found.most)
    yield same("price of an epoch", promise.redraws.price, one.cost)
    yield from price("all epochs", promise.cost, found.epsilon, found.delta)
    if exchange_alike:
        yield from price("exchange, all epochs", promise.replace_one, found.epsilon, found.delta)
    else:
        yield from _repeated("exchange, all epochs", promise.replace_one, one.replace_one, found.most)
    yield from _repeated("life, all epochs", promise.lifetime.cost, one.lifetime.cost, found.most)
    yield from _repeated("life, exchange, all epochs", promise.lifetime.exchange, one.lifetime.exchange, found.most)
    least = min(promise.delta_units, found.most * one.truncation_units)
    yield Figure("truncation error, all epochs", promise.truncation_units, least, promise.delta_units)


def _repeated(name: str, got: Any, one: Any, times: int) -> Figures:
    yield from price(name, got, times * one.epsilon_micro, times * one.delta_units)


def _budget(facts: Any, planned: int, budget: Any, ceiling: tuple[int, int]) -> Figures:
    yield same("planned", facts.planned, planned)
    limit = facts.limit.epsilon_micro, facts.limit.delta_units
    if budget is not None:
        ceiling = math.floor(decimal(budget.epsilon) * MICRO), math.floor(decimal(budget.delta) * UNITS)
    yield same("limit", limit, ceiling)


def _require_no_room(system: str, config: Any, free: Guarantee) -> None:
    """The product refused: by the formulas, too, not one unit of it fits.

    Raises:
        AssertionError: one fits.
    """
    budget = config.budget
    limit = Filter(budget.filter, budget.epsilon, budget.delta, 1 - decimal(budget.lift))
    if system == "p2b":
        one = free.cost
        room = limit.admits(limit.price(one.epsilon_micro, one.delta_units))
        if config.counted is not None:
            share = Filter(budget.filter, budget.epsilon, budget.delta, decimal(budget.lift))
            lift = kind_of("p2b").guarantee(replace(config, budget=None), Artefacts("drawn", {})).lift
            room = room and share.admits(share.price(lift.cost.epsilon_micro, lift.cost.delta_units))
    elif system == "bgt":
        one, steps = _bgt_epoch(config)
        found = epochs_of(one, config.release.epochs, budget, steps)
        room = bool(found.most)
    else:
        one = _one_epoch(system, config)
        room = bool(limit.room(_priced(limit, one, one, budget)))
    assert not room, f"refused, although the budget has room: {config}"


def _one_epoch(system: str, config: Any) -> Guarantee:
    """The guarantee of one epoch: the same configuration, of which one is planned and no budget is kept."""
    part = {"colin": "release", "pdol": "sharing", "bgt": "release"}.get(system)
    if part is not None:
        config = replace(config, **{part: replace(getattr(config, part), epochs=1)})
    return kind_of(system).guarantee(replace(config, budget=None), Artefacts("drawn", {}))


# p2b.


def _p2b(config: Any, promises: Any, budgets: Any) -> Figures:
    yield from {"slot-sums": _slot_sums, "tuples": _tuples, "paper": _paper}[config.release.mode](
        config, promises, promises.lifetime.units
    )
    slots = promises.lifetime.units
    yield same("slots in a life", slots, _slots_that_fit(config))
    lift, slot_facts = promises.lift, budgets[0]
    yield same("slots that fit", slot_facts.fits, slots)
    if config.slot.renew_every_seconds is not None and slots <= _SLOTS_TO_SEND:
        yield same("slots that fall due in a life", _due_in_a_life(config, slots), slots)
    life = promises.lifetime.cost
    yield from _budget(slot_facts, config.slot.lifetime_slots, config.budget, (life.epsilon_micro, life.delta_units))
    against, exchanged = [life], [promises.lifetime.exchange]
    if config.counted is not None:
        yield from _lift(config, lift)
        yield same("charges of the lift", (budgets[1].planned, budgets[1].fits), (1, 1))
        yield same("releases of the lift", budgets[1].releases, config.measurement.releases)
        against.append(lift.lifetime.cost)
        exchanged.append(lift.lifetime.exchange)
    yield same("slots and lift", _pair(promises.together.zero_out), _sum(against))
    yield same("slots and lift, exchange", _pair(promises.together.which), _sum(exchanged))


def _due_in_a_life(config: Any, slots: int) -> int:
    """How many slots of a user fall due who comes back after each renewal, and twice more."""
    system = P2BSystem.of(config, np.zeros((config.encoder.codes, config.context.dimension), dtype=np.int64))
    agent = EdgeAgent(system.edge_terms(), seeded_key(1, "edge").derive("user", "ann"), "private")
    context = np.eye(1, config.context.dimension, dtype=np.float32)[0]
    every, due = round(config.slot.renew_every_seconds * 1000), 0
    for visit in range((slots + 2) * config.slot.after_interactions):
        now_ms = visit * every
        for event in [event for event, decision in agent.open.items() if decision.deadline_ms <= now_ms]:
            agent.expire(event)
        due += agent.decide(f"visit-{visit}", context, now_ms).slot_due
    return due


class _Slots(NamedTuple):
    """Slot sums: epsilon of the noise and of a kept slot, in millionths; total variation of the sums that differ."""

    noise: int
    kept: int
    off: Fraction


@cache
def _slots_of(config: Any) -> _Slots:
    release = config.release
    goal, chance = micro(release.epsilon), _chance(release.sampling)

    def amplified(noise: int) -> int:
        if chance == 1:
            return noise
        return int(
            mp.ceil(mp.log(1 + mpf(chance.numerator) / chance.denominator * mp.expm1(mpf(noise) / MICRO)) * MICRO)
        )

    noise = largest(lambda one: amplified(one) <= goal)
    levels, _ = _window_levels(config)
    return _Slots(noise, amplified(noise), levels * laplace_off(release.levels * levels * MICRO, noise))


def _chance(sampling: float) -> Fraction:
    return Fraction(math.ceil(decimal(sampling) * 2**64), 2**64)


def _window_levels(config: Any) -> tuple[int, Any]:
    """Nodes that hold a window, and the counter, if there is one."""
    tree = window_tree_of(config)
    return (1, None) if tree is None else (tree_levels(tree.base, tree.horizon), tree)


def _slot_sums(config: Any, promise: Guarantee, slots: int) -> Figures:
    one, release = _slots_of(config), config.release
    levels, tree = _window_levels(config)
    yield same("sensitivity", promise.sensitivity, release.levels)
    yield from price("slot", promise.cost, one.kept, tail_units(2 * one.off, one.kept))
    yield same("truncation error", promise.truncation_units, promise.delta_units)
    yield from price("exchange", promise.replace_one, 2 * one.kept, tail_units(4 * one.off, 2 * one.kept))
    life = slots * one.kept
    yield from price("life", promise.lifetime.cost, life, tail_units(2 * slots * one.off, life))
    yield from price("life, exchange", promise.lifetime.exchange, 2 * life, tail_units(4 * slots * one.off, 2 * life))
    scale = Fraction(release.levels * levels * MICRO, one.noise)
    if tree is not None:
        yield same("scale", Fraction(tree.noise.numerator, tree.noise.denominator), scale)
        yield same("nodes of a window", tree.levels, levels)
        yield same("coordinates", tree.dimension, 2 * config.encoder.codes * config.arms)
        expected = -(-config.expected_slots * config.slot.lifetime_slots
                     // (release.window_slots * config.partitions.shuffler))  # fmt: skip
        if release.window_seconds is not None:
            expected = max(expected, release.windows)
        yield same(
            "windows", tree.horizon, release.windows if release.sums == "counter" else max(release.windows, expected)
        )
    else:
        assert release.sums != "counter"
        lattice = np.zeros((config.encoder.codes, config.context.dimension), dtype=np.int64)
        found = p2b_parameters(P2BSystem.of(config, lattice))
        yield same("scale", Fraction(found["scale_numerator"], found["scale_denominator"]), scale)


def _crowd_epsilon(config: Any) -> int:
    chance = _chance(config.release.sampling)
    return int(mp.ceil(-mp.log(1 - mpf(chance.numerator) / chance.denominator) * MICRO))


def _crowd_units(config: Any, slots: int) -> float:
    epsilon = min(64.0, slots * _crowd_epsilon(config) / MICRO)
    return crowd_delta(resolve_threshold(config), config.release.sampling, epsilon, slots)


def _approximately(name: str, got: int, delta: float, slots: int = 1) -> Figure:
    """Binomials in floats: a part in a million; and 1e-15 of what a sum of probabilities loses."""
    low, high = delta * (1 - 1e-6) - 1e-14, delta * (1 + 1e-6) + 1e-14 * slots
    return Figure(name, got, min(UNITS, int(low * UNITS)), min(UNITS, int(high * UNITS) + 2 * slots))


def _tuples(config: Any, promise: Guarantee, slots: int) -> Figures:
    epsilon, release = _crowd_epsilon(config), config.release
    if release.threshold == "auto":
        least = resolve_threshold(config)
        target, kept = release.target_delta, release.sampling
        yield Figure("threshold is enough", crowd_delta(least, kept, epsilon / MICRO, 1), 0, target * (1 + 1e-6))
        if least > 1:
            fewer = crowd_delta(least - 1, kept, epsilon / MICRO, 1)
            yield Figure("threshold is the least", fewer, target * (1 - 1e-6), 1)
    one = _crowd_units(config, 1)
    yield same("slot, epsilon", promise.epsilon_micro, epsilon)
    yield _approximately("slot, delta", promise.delta_units, one)
    yield same("exchange, epsilon", promise.replace_one.epsilon_micro, 2 * epsilon)
    yield _approximately("exchange, delta", promise.replace_one.delta_units, 2 * one)
    yield same("life, epsilon", promise.lifetime.cost.epsilon_micro, slots * epsilon)
    life = _crowd_life(config, slots)
    yield _approximately("life, delta", promise.lifetime.cost.delta_units, life, slots)
    yield same("life, exchange, epsilon", promise.lifetime.exchange.epsilon_micro, 2 * slots * epsilon)
    yield _approximately("life, exchange, delta", promise.lifetime.exchange.delta_units, 2 * life, 2 * slots)
    yield same("truncation error", promise.truncation_units, 0)


def _crowd_life(config: Any, slots: int) -> float:
    if slots <= DEEPEST:
        return min(1.0, worst_split(slots, lambda part: _crowd_units(config, part)))
    exponent = (slots - 1) * _crowd_epsilon(config) / MICRO
    return 1.0 if exponent > 90 else min(1.0, slots * _crowd_units(config, 1) * math.exp(exponent))


def _paper(config: Any, promise: Guarantee, slots: int) -> Figures:
    epsilon, chance = _crowd_epsilon(config), _chance(config.release.sampling)
    yield from price("slot", promise.cost, epsilon, math.ceil(chance * UNITS))
    yield from price("exchange", promise.replace_one, 2 * epsilon, math.ceil(chance * UNITS))
    never = mp.power(1 - mpf(chance.numerator) / chance.denominator, slots)
    some = int(mp.ceil((1 - never) * UNITS))
    yield from price("life", promise.lifetime.cost, slots * epsilon, some)
    yield from price("life, exchange", promise.lifetime.exchange, 2 * slots * epsilon, some)
    yield same("private as stated", promise.private_as_stated, False)


def _life_of(config: Any, slots: int) -> tuple[int, int]:
    if config.release.mode == "slot-sums":
        one = _slots_of(config)
        return slots * one.kept, tail_units(2 * slots * one.off, slots * one.kept)
    return slots * _crowd_epsilon(config), math.ceil(_crowd_life(config, slots) * UNITS)


def _slots_that_fit(config: Any) -> int:
    budget, planned = config.budget, config.slot.lifetime_slots
    if budget is None:
        return planned
    limit = Filter(budget.filter, budget.epsilon, budget.delta, 1 - decimal(budget.lift))
    return largest(lambda slots: limit.admits(limit.price(*_life_of(config, slots))), planned)


def _lift(config: Any, promise: Guarantee) -> Figures:
    """Of both counters if there is a guardrail: they divide the epsilon, and each has its own tables' error."""
    lift, rewards, cells = required_lift(config)
    epsilon, moved = micro(lift.epsilon), rewards * lift.decisions_per_user
    harm = 0 if lift.guardrail is None else math.floor(decimal(lift.guardrail_share) * epsilon)
    counters = [(lift_tree, epsilon - harm)] + ([] if lift.guardrail is None else [(guardrail_tree, harm)])
    against = exchanged = 0
    for plan, part in counters:
        tree = plan(*required_lift(config))
        levels = tree_levels(tree.base, tree.horizon)
        scale = Fraction(levels * moved * MICRO, part)
        off = (
            min(2 * cells, moved)
            * levels
            * min(lift.decisions_per_user, lift.releases)
            * laplace_off(scale.numerator, scale.denominator)
        )
        against += tail_units(off, part)
        exchanged += tail_units(2 * off, 2 * part)
        yield same("lift, horizon", tree.horizon, lift.releases)
        yield same("lift, scale", Fraction(tree.noise.numerator, tree.noise.denominator), scale)
    yield same("lift, sensitivity", promise.sensitivity, moved)
    yield from price("lift", promise.cost, epsilon, against)
    yield same("lift, truncation error", promise.truncation_units, promise.delta_units)
    yield from price("lift, exchange", promise.replace_one, 2 * epsilon, exchanged)
    yield from price("lift, life", promise.lifetime.cost, epsilon, against)
    yield same("lift, life, exchange", promise.lifetime.exchange, promise.replace_one)


def _devices(config: Any, devices: int) -> Figures:
    """What a person pays who has several devices: as many slots as all of them have."""
    release, slots = config.release, min(config.slot.lifetime_slots, 4)
    if release.mode == "slot-sums":
        one, (levels, _) = _slots_of(config), _window_levels(config)
        found = slot_sums_guarantee(
            Fraction(one.noise, MICRO), release.levels, release.sampling, slots, devices, tree_levels=levels
        )
        many = slots * devices
        yield from price(
            "devices", found.lifetime.cost, many * one.kept, tail_units(2 * many * one.off, many * one.kept)
        )
        return
    make = tuples_guarantee if release.mode == "tuples" else paper_guarantee
    found = make(resolve_threshold(config), release.sampling, slots, devices)
    many = slots * devices
    yield same("devices, epsilon", found.lifetime.cost.epsilon_micro, many * _crowd_epsilon(config))
    if release.mode == "tuples":
        yield _approximately("devices, delta", found.lifetime.cost.delta_units, _crowd_life(config, many), many)
    else:
        delta = 1 - (1 - release.sampling) ** many
        yield near("devices, delta", found.lifetime.cost.delta_units / UNITS, delta)


# colin.


def _colin(config: Any, promises: Any, budgets: Any) -> Figures:
    release, one = config.release, _one_epoch("colin", config)
    if release.mechanism == "exact":
        yield from _nothing(promises)
        return
    yield from (_noisy_reward if release.mechanism == "noisy-reward" else _counter)(config, one)
    yield from over_epochs(promises, one, release.epochs, config.budget, budgets[0], exchange_alike=True)


def _nothing(promise: Guarantee) -> Figures:
    life = promise.lifetime
    for name, cost in (
        ("unit", promise.cost),
        ("exchange", promise.replace_one),
        ("life", life.cost),
        ("life, exchange", life.exchange),
    ):
        yield same(name, (cost.epsilon_micro, cost.delta_units), (0, UNITS))
    yield same("private as stated", promise.private_as_stated, False)


def _noisy_reward(config: Any, one: Guarantee) -> Figures:
    release = config.release
    epsilon, many, levels = micro(release.epsilon), release.rewards_per_user, release.reward_levels
    value = epsilon / MICRO
    rare, ratio = 1 / (1 + math.exp(value)), math.exp(-value / levels)
    coin = (rare * (1 - rare) if levels == 1 else 0.25) / math.tanh(value / 2) ** 2
    law = "response" if coin <= 2 * ratio / (1 - ratio) ** 2 / levels**2 else "laplace"
    yield same("law", local_reward_of(release).law, law)
    off = Fraction(0) if law == "response" else laplace_off(levels * MICRO, epsilon)
    yield same("sensitivity", one.sensitivity, levels)
    yield from price("reward", one.cost, epsilon, tail_units(off, epsilon) if off else 0)
    yield same("exchange", one.replace_one, one.cost)
    yield same("truncation error", one.truncation_units, one.delta_units)
    yield from price("life", one.lifetime.cost, many * epsilon, tail_units(many * off, many * epsilon) if off else 0)
    yield same("life, exchange", one.lifetime.exchange, one.lifetime.cost)


def _counter(config: Any, one: Guarantee) -> Figures:
    release, features = config.release, config.features
    plan, many = colin_plan(release, features), release.rewards_per_user
    width = features.norm
    if release.noise == "laplace":
        widest = math.sqrt(features.dimension) * features.norm
        width = widest if features.norm_l1 is None else features.norm_l1
    leaves = release.rewards_per_user if release.horizon == "auto" else release.horizon
    yield Figure("sensitivity", one.sensitivity, width * 2**24, width * 2**24 * (1 + 2**-29) + 1)
    yield same("sensitivity of the counter", plan.sensitivity, one.sensitivity)
    yield same("leaves", plan.horizon, leaves)
    yield from _counted(
        one, plan, micro(release.epsilon), release.delta, release.noise, features.dimension, many, alike=True
    )


def _counted(
    one: Guarantee,
    plan: Any,
    epsilon: int,
    delta: float,
    law: str,
    dimension: int,
    many: int,
    alike: bool,
    apart: Fraction = Fraction(4),
) -> Figures:
    """A counter of any kind: its noise, and what a unit, an exchange and a life cost."""
    if isinstance(plan, BufferedToeplitz):
        draws, moved = plan.horizon * dimension, _toeplitz_moved(plan, dimension)
    else:
        base = getattr(plan, "base", 2)
        levels = tree_levels(base, plan.horizon)
        yield same("nodes of a leaf", plan.levels, levels)
        draws, moved = levels * (1 if law == "k-norm" else dimension), float(levels)
    if law == "gaussian":
        rho = rho_of_epsilon(epsilon, math.ceil(decimal(delta) * UNITS))
        yield same("rho", one.rho_micro, rho)
        variance = Fraction(plan.noise.numerator, plan.noise.denominator)
        squared = moved**2 if isinstance(plan, BufferedToeplitz) else moved * plan.sensitivity**2
        yield near("variance", float(variance), squared * MICRO / (2 * rho), 1e-7)
        yield from _concentrated(one, rho, delta, variance, draws, many, alike, apart)
        return
    scale = Fraction(int(moved) * plan.sensitivity * MICRO, epsilon)
    yield same("scale", Fraction(plan.noise.numerator, plan.noise.denominator), scale)
    low = high = laplace_off(scale.numerator, scale.denominator) if law == "laplace" else None
    if law == "k-norm":
        low, high = k_norm_off(scale, dimension)
    yield same("no rho", one.rho_micro, None)
    for name, cost, units in (("unit", one.cost, 1), ("life", one.lifetime.cost, many)):
        tails = (tail_units(units * draws * off, units * epsilon) for off in (low, high))
        yield from price(name, cost, units * epsilon, *tails)
    yield same("exchange", one.replace_one, one.cost)
    yield same("life, exchange", one.lifetime.exchange, one.lifetime.cost)
    yield same("truncation error", one.truncation_units, one.delta_units)


def _toeplitz_moved(plan: Any, dimension: int) -> float:
    """How far one leaf moves all draws, in fine units: by the column's length, and by roundings in each coordinate."""
    pairs = [(float(weight), float(gap)) for weight, gap in plan.shape.decimals]
    fine = 2**plan.fine_bits * plan.sensitivity
    return toeplitz_length(pairs, plan.horizon) * fine + toeplitz_rounding(pairs, plan.horizon) * (
        math.isqrt(plan.horizon * dimension) + 1
    )


def _concentrated(
    one: Guarantee, rho: int, delta: float, variance: Fraction, draws: int, many: int, alike: bool, apart: Fraction
) -> Figures:
    """n times as far costs n^2 times the rho, an exchange ``apart``; the tables' part is beside the stated delta."""
    stated, offs = math.ceil(decimal(delta) * UNITS), gaussian_off(variance)
    costs = [("unit", one.cost, 1, Fraction(1)), ("life", one.lifetime.cost, many, Fraction(many**2))]
    if alike:
        yield same("exchange", one.replace_one, one.cost)
        yield same("life, exchange", one.lifetime.exchange, one.lifetime.cost)
    else:
        costs += [
            ("exchange", one.replace_one, 2, apart),
            ("life, exchange", one.lifetime.exchange, 2 * many, apart * many**2),
        ]
    for name, cost, times, squares in costs:
        epsilon = epsilon_of_rho(math.ceil(squares * rho), stated)
        tails = [stated + tail_units(times * draws * off, epsilon) for off in offs]
        yield from price(name, cost, epsilon, *tails)
    yield same("truncation error", one.truncation_units, one.delta_units - stated)


# pdap.


def _pdap(config: Any, promises: Any, budgets: Any) -> Figures:
    release, one = config.release, _one_epoch("pdap", config)
    # eps0 m^(alpha l), to nine places of its decimal, in millionths.
    epsilons = [
        math.ceil(decimal(round(release.epsilon * config.cells.branching ** (release.level_growth * level), 9)) * MICRO)
        for level in range(config.cells.levels + 1)
    ]
    scales = [Fraction(release.reward_levels * MICRO, epsilon) for epsilon in epsilons]
    yield same("scales", [Fraction(*scale) for scale in block_scales(config)], scales)
    most, many = max(epsilons), release.events_per_person
    off = max(laplace_off(scale.numerator, scale.denominator) for scale in scales)
    yield same("sensitivity", one.sensitivity, release.reward_levels)
    yield from price("reward", one.cost, most, tail_units(off, most))
    yield same("exchange", one.replace_one, one.cost)
    yield same("truncation error", one.truncation_units, one.delta_units)
    yield same("events of a person", one.lifetime.units, many)
    yield from price("life", one.lifetime.cost, many * most, tail_units(many * off, many * most))
    yield same("life, exchange", one.lifetime.exchange, one.lifetime.cost)
    # Nobody plans epochs here: a budget alone says how many there may be.
    budget, facts = config.budget, budgets[0]
    found = epochs_of(one, 1 if budget is None else 1_000_000, budget)
    yield same("epochs that fit", facts.fits, found.fit)
    yield from _budget(facts, 1, budget, (found.epsilon, found.delta))
    if found.most > 1:
        yield from _many(promises, one, found, exchange_alike=True)


# pdol.


def _pdol(config: Any, promises: Any, budgets: Any) -> Figures:
    one, many = _one_epoch("pdol", config), config.records.records_per_user
    sharing = config.sharing
    if sharing.counter == "exact":
        yield from _nothing(promises)
        return
    dimension = config.records.dimension
    plan = pdol_plan(sharing, dimension)
    # Up to 128 features: moments (y x, 1.2 svec(x x')) on 2^-16, of squared norm 2.44, two of them 2.15 times as far.
    length, apart = 4096, Fraction(4)
    if dimension <= 128:
        length, apart = math.ceil(65536 * math.sqrt(2.44)), Fraction("2.15")
        dimension += dimension * (dimension + 1) // 2
    yield same("sensitivity", (one.sensitivity, plan.sensitivity), (length, length))
    yield same("leaves", plan.horizon, sharing.horizon)
    epsilon = micro(sharing.epsilon)
    yield from _counted(one, plan, epsilon, sharing.delta, "gaussian", dimension, many, alike=False, apart=apart)
    yield from _persons(config, one, plan, apart)
    yield from over_epochs(promises, one, sharing.epochs, config.budget, budgets[0], exchange_alike=False)


def _persons(config: Any, one: Guarantee, plan: Any, apart: Fraction) -> Figures:
    """Records of a person at several nodes: the sum of the squares."""
    stated = math.ceil(decimal(config.sharing.delta) * UNITS)
    draws = plan.horizon * plan.dimension
    if not isinstance(plan, BufferedToeplitz):
        draws = tree_levels(plan.base, plan.horizon) * plan.dimension
    for records in ((1,), (2, 1), (3, 3, 1)):
        prices = person_prices(config, records)
        low, high = gaussian_off(Fraction(plan.noise.numerator, plan.noise.denominator))
        for cost, times, steps in ((prices.which, apart, 2), (prices.zero_out, Fraction(1), 1)):
            draws_apart = steps * sum(records) * draws
            epsilon = epsilon_of_rho(math.ceil(times * one.rho_micro * sum(count**2 for count in records)), stated)
            together = epsilon_of_rho(one.rho_micro * (steps * sum(records)) ** 2, stated)
            least = stated + tail_units(draws_apart * low, epsilon)
            yield from price(
                f"records {records}", cost, epsilon, least, stated + tail_units(draws_apart * high, together)
            )


# bgt.

_DISTANCES: Mapping[str, Fraction] = {"items": Fraction(1), "pairs": Fraction(1, 2), "factors": Fraction(1)}
"""Delta^2 of a slot of squared norm 1, by kind: of the strict lower triangle it is half of the norm's fourth power."""


def _bgt(config: Any, promises: Any, budgets: Any) -> Figures:
    release = config.release
    if release.noise == "exact":
        yield from _nothing(promises)
        return
    half = math.ceil(decimal(release.delta) * UNITS) // 2
    total = rho_of_epsilon(micro(release.epsilon), half)
    rhos = []
    for number, kind in enumerate(("items", "pairs", "factors")):
        rhos.append(rho_micro(number, release))
        share = total * release.shares[number]
        yield Figure(f"rho of round {number}", rhos[-1], min(1, share - 1e-6), max(1, share * (1 + 1e-12)))
        yield Figure(f"rho of round {number}, least", rhos[-1], max(1, math.floor(share) - 1), max(1, share))
        for one in {kind, "items"} if number == 2 else {kind}:
            clip = release.factor_clip if one == "factors" else release.clip
            length = (clip * 2**20) ** (4 if one == "pairs" else 2) * float(_DISTANCES[one])
            top, bottom = variance_of(number, one, config)
            yield near(f"variance of {one}", top / bottom, length * MICRO / (2 * rhos[-1]), 1e-6)
            yield Figure(f"norm of {one}", squared_clip(one, release), (clip * 2**20) ** 2 - 1, (clip * 2**20) ** 2)
    one, steps = _bgt_epoch(config)
    for rounds, step in enumerate(steps, start=1):
        yield same(f"rho of {rounds} rounds", step.rho_micro, sum(rhos[:rounds]))
        yield from _bgt_price(f"{rounds} rounds", step.cost, config, rhos[:rounds], 1, half)
        yield same(f"{rounds} rounds, truncation error", step.truncation_units, step.delta_units - half)
    yield from _bgt_price("exchange", one.replace_one, config, rhos, 2, half)
    yield same("life", one.lifetime.cost, one.cost)
    yield same("life, exchange", one.lifetime.exchange, one.replace_one)
    yield same("sensitivity", one.sensitivity, math.ceil(release.clip * 2**20))
    found = epochs_of(one, release.epochs, config.budget, steps)
    facts, promise = budgets[0], promises
    yield same("rounds that fit", facts.fits, 3 * found.fit + found.begun)
    yield from _budget(facts, 3 * release.epochs, config.budget, (found.epsilon, found.delta))
    if not found.fit:
        yield same("some rounds alone", promise.cost, steps[found.begun - 1].cost)
        yield same("some rounds alone, rho", promise.rho_micro, steps[found.begun - 1].rho_micro)
        yield from _bgt_price("some rounds, exchange", promise.replace_one, config, rhos[: found.begun], 2, half)
    elif found.most > 1:
        yield from _many(promise, one, found, exchange_alike=False)
    else:
        yield same("one epoch", promise, one)


def _bgt_epoch(config: Any) -> tuple[Guarantee, tuple[Guarantee, ...]]:
    """Of an epoch, and of its first rounds: configurations whose budget pays for so many are not needed for it."""
    from hushstream.systems.bgt.guarantee import epoch_guarantee

    steps = tuple(epoch_guarantee(config, rounds=rounds) for rounds in (1, 2, 3))
    return steps[-1], steps


def _bgt_price(name: str, cost: Any, config: Any, rhos: list[int], times: int, half: int) -> Figures:
    epsilon = epsilon_of_rho(times**2 * sum(rhos), half)
    tails = []
    for end in (0, 1):
        variation = sum(_bgt_off(config, number, rho)[end] for number, rho in enumerate(rhos))
        tails.append(half + tail_units(times * variation, epsilon))
    yield from price(name, cost, epsilon, *tails)


def _bgt_off(config: Any, number: int, rho: int) -> tuple[Fraction, Fraction]:
    """Total variation of all cells that a slot moves; the last round may be of kind A again, whichever is worse."""
    release = config.release
    both, top = min(release.pairs, config.items, release.top), release.pairs
    moved = {"items": 2 * top, "pairs": both * (both - 1) // 2, "factors": top * release.factors}
    kinds = (("items",), ("pairs",), ("factors", "items"))[number]
    offs = []
    for kind in kinds:
        clip = decimal(release.factor_clip if kind == "factors" else release.clip) * 2**20
        squared = clip ** (4 if kind == "pairs" else 2) * _DISTANCES[kind]
        offs.append([moved[kind] * off for off in gaussian_off(squared * MICRO / (2 * rho))])
    return max(off[0] for off in offs), max(off[1] for off in offs)


# What stands beside every guarantee.


def _limits(budget: Any) -> Figures:
    """Of the whole budget, of what is left beside a lift, and of the lift's share."""
    for share in {Fraction(1), 1 - decimal(budget.lift), decimal(budget.lift)} - {Fraction(0)}:
        ours, theirs = Filter(budget.filter, budget.epsilon, budget.delta, share), filter_of(budget, share)
        names = {
            "basic": ("limit.epsilon_micro", "limit.delta_units"),
            "zcdp": ("rho_micro", "truncation_units"),
            "renyi": ("divergence_micro", "truncation_units"),
        }[budget.filter]
        yield same("limits", tuple(attrgetter(name)(theirs) for name in names), ours.limits)
        if budget.filter != "basic":
            yield same("delta of the limit", theirs.delta_units, ours.half)
        if budget.filter == "renyi":
            yield same("order of the limit", theirs.order, ours.order)


def _conversions(promise: Guarantee) -> Figures:
    """n units of one person: n epsilon, n^2 rho; epochs add; the least of the pure epsilon and of what rho gives."""
    rows = conversion_rows(promise)
    gaussian = promise.rho_micro is not None
    if not gaussian and (promise.delta_units != promise.truncation_units or promise.claimed is not None):
        yield same("no conversions", rows, ())
        return
    epochs = 1 if promise.redraws is None else promise.redraws.most
    one = promise.cost if promise.redraws is None else promise.redraws.price
    units = promise.lifetime.units * promise.lifetime.devices
    # Whoever pays a delta of 1 has no row: it would print an epsilon that bounds nothing.
    life = promise.lifetime.cost.delta_units < UNITS
    yield same("rows of conversions", len(rows), 1 + (units > 1 and life))
    for row, count in zip(rows, (1, units), strict=False):
        if gaussian:
            rho, pure = epochs * count**2 * promise.rho_micro, None
        else:
            pure = epochs * count * one.epsilon_micro
            rho = epochs * math.ceil(Fraction((count * one.epsilon_micro) ** 2, 2 * MICRO))
        yield same("rho, converted", row.rho_micro, rho)
        yield same("pure epsilon, converted", row.pure_micro, pure)
        for delta, got in zip(DELTAS, row.at_micro, strict=True):
            want = epsilon_of_rho(rho, math.ceil(decimal(float(delta)) * UNITS))
            yield same(f"epsilon at {delta}", got, want if pure is None else min(pure, want))


def _in_json(promises: Any) -> Figures:
    """The same whole numbers stand in the JSON form."""
    told, releases, lift = page_json(promises), promises, promises.lift
    public, life = releases.any_content, releases.lifetime
    prices = [
        ("unit", public, releases.replace_one, releases.cost),
        ("person", public, promises.together.which, promises.together.zero_out),
    ]
    if lift is None:
        prices.append(("person", public, life.exchange, life.cost))
    else:
        prices.append(("lift", lift.any_content, lift.replace_one, lift.cost))
    for group, is_public, which, zero_out in prices:
        yield same(f"JSON, {group}, which", _told(told[group]["which"]), _pair(which))
        want = "public" if is_public else _pair(zero_out)
        yield same(f"JSON, {group}, zero-out", _told(told[group]["zero_out"]), want)
    if releases.redraws is not None:
        yield same("JSON, one epoch", _told(told["unit"]["one_epoch"]), _pair(releases.redraws.price))


def _told(price: Any) -> Any:
    return price if price == "public" else (price["epsilon_micro"], int(price["delta_units"]))


def _pair(cost: Any) -> tuple[int, int]:
    return cost.epsilon_micro, cost.delta_units


def _sum(costs: list[Any]) -> tuple[int, int]:
    """Basic composition."""
    return sum(cost.epsilon_micro for cost in costs), min(UNITS, sum(cost.delta_units for cost in costs))


_OF = {"p2b": _p2b, "colin": _colin, "pdap": _pdap, "pdol": _pdol, "bgt": _bgt}
