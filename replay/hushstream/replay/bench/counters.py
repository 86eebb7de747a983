"""Measures the speed of the counters, in one thread, and the size of their errors: rows for ``make bench``.

Rates are per second of the thread's CPU time, medians over rounds; ratios are taken within a round. Errors are computed
by closed forms, which tests compare with the noise; one error is measured here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import (
    BinaryTree,
    BlockCounters,
    BlockPlan,
    BufferedToeplitz,
    Concentrated,
    HonakerTree,
    NegativeDigitTree,
    Plan,
    PureEpsilon,
    counter_rmse,
    fresh_rmse,
)
from hushstream.counting.buffered import lower_bound
from hushstream.counting.nodes import KeyedNodes
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.replay.experiments.rows import BenchRow, Progress, at_least, at_most, figure

DIMENSION = 25
BATCH = 256
BATCHES = 200
BATCHES = 4_000
BLOCKS = 100
GRID_BITS = 24
"""Sums of real numbers are rounded to a grid of 2^-GRID_BITS. A finer grid gives the noise more digits."""

MILLION = 1 << 20
RATE = "events/CPU s"

_PURE = PureEpsilon(1)
_ZCDP = Concentrated.for_epsilon(1, 1e-6)
_KEY = seeded_key(0, "counter")
_ADDRESS = NoiseAddress("counter-node", "bench", bytes(32), "bench", "counter", {}, bytes(16), 0)


def counter_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure errors, rates, blocks of users and noise.

    Args:
        progress: called with the name of each measurement.
        rounds: repetitions; figures are medians over them.
    """
    progress("counters: errors")
    rows = error_rows()
    progress("counters: rates")
    rows += rate_rows(rounds)
    progress("counters: blocks of users")
    rows += block_rows(rounds)
    progress("counters: noise")
    return rows + noise_rows(progress, rounds)


def error_rows() -> list[BenchRow]:
    """Root mean square errors over whole streams, as ratios."""
    default, binary = NegativeDigitTree(budget=_PURE), BinaryTree(budget=_PURE)
    rows = [
        at_most(
            "negative-digit tree over binary tree, RMSE at T=2^20, both for T_max=2^30, Laplace",
            [default.rmse(MILLION) / binary.rmse(MILLION)],
            "x",
            0.40,
        ),
        at_most(
            "slot sums, RMSE of the total of 1,000 windows, counter (T_max 1,024) over fresh noise, epsilon 1",
            [counter_rmse(1, 1000, 1024) / fresh_rmse(1, 1000)],
            "x",
            0.5,
        ),
    ]
    for exponent in (10, 14, 20):
        # Leaves on a grid of 2^-10, so that rounding the release to whole units is no part of the error.
        plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), horizon=1 << exponent, sensitivity=1 << 10)
        over = plan.rmse() / plan.sensitivity / lower_bound(1 << exponent)
        rows.append(at_most(f"BLT over the lower bound of factorisations, RMSE at T=2^{exponent}", [over], "x", 1.10))
    return [*rows, _measured_error()]


def _measured_error() -> BenchRow:
    """The measured error over 16,000 coordinates, so many that it is off by half a per cent at most."""
    plan, leaves = NegativeDigitTree(budget=_PURE, dimension=1_000), 256
    squares = 0.0
    for cell in range(16):
        counter = plan.open(_KEY, NoiseAddress("m", "bench", bytes(32), "bench", "m", {}, bytes(16), 0, cell=cell))
        noise = counter.release_each(np.zeros((leaves, plan.dimension), dtype=np.int64))
        squares += float(np.mean(noise.astype(np.float64) ** 2)) / 16
    off = abs(np.sqrt(squares) / plan.rmse(leaves) - 1) * 100
    return at_most("measured RMSE off the closed form, negative-digit tree, 16,000 x 256 releases", [off], "%", 3.0)


def rate_rows(rounds: int) -> list[BenchRow]:
    """Events per second with a release after each, and with one release for each closed batch."""
    each: dict[str, list[float]] = {}
    batched: dict[str, list[float]] = {}
    for number in range(rounds):
        leaves = _leaves(number)
        for plan in _plans():
            each.setdefault(plan.mechanism, []).append(_each_rate(plan, leaves))
            batched.setdefault(plan.mechanism, []).append(_batch_rate(plan, leaves))
    fine = NegativeDigitTree(budget=_PURE, dimension=DIMENSION, sensitivity=1 << GRID_BITS)
    gridded = [_each_rate(fine, _leaves(number)) for number in range(rounds)]
    single = [_one_rate(_plans()[0], _leaves(number)) for number in range(rounds)]
    default, binary = NegativeDigitTree.mechanism, BinaryTree.mechanism
    shape = f"d={DIMENSION}, sensitivity 1"
    rows = [
        at_least(f"{default}, a release per event, given {BATCH} at a time, {shape}", each[default], RATE, 400_000),
        at_least(f"{default}, a release per closed batch of {BATCH}, {shape}", batched[default], RATE, 2e7),
        figure(f"{default}, a release per event, given one at a time, {shape}", single, RATE),
        figure(
            f"{default}, a release per event, given {BATCH} at a time, d={DIMENSION}, sensitivity 2^{GRID_BITS}",
            gridded,
            RATE,
        ),
    ]
    for kind, rates in (("event", each), (f"closed batch of {BATCH}", batched)):
        others = [name for name in rates if name != default]
        rows += [figure(f"{name}, a release per {kind}, {shape}", rates[name], RATE) for name in others]
        ratios = [fast / slow for fast, slow in zip(rates[default], rates[binary], strict=True)]
        rows.append(figure(f"{default} over {binary}, a release per {kind}, {shape}", ratios, "x"))
    return rows


def block_rows(rounds: int) -> list[BenchRow]:
    """Rates of an object that holds a counter for each of many users."""
    plan = BlockPlan(plan=NegativeDigitTree(budget=_PURE, dimension=DIMENSION), blocks=BLOCKS)
    batched, each = [], []
    for number in range(rounds):
        leaves = _leaves(number)
        users = np.random.default_rng(number).integers(0, BLOCKS, (BATCHES, BATCH))
        batched.append(users.size / _seconds(_all_per_batch, _opened(plan), users, leaves))
        few = users[: BATCHES // 4]
        each.append(few.size / _seconds(_one_per_event, _opened(plan), few, leaves))
    shape = f"{BLOCKS} users, d={DIMENSION}"
    return [
        figure(f"blocks, a release of all per batch of {BATCH}, {shape}", batched, RATE),
        figure(f"blocks, a release per event, batches of {BATCH}, {shape}", each, RATE),
    ]


def noise_rows(progress: Progress, rounds: int) -> list[BenchRow]:
    """Rates of keyed noise, and of as many integers from OpenDP's sampler."""
    plan = NegativeDigitTree(budget=_PURE, dimension=DIMENSION)
    nodes = KeyedNodes(_KEY, _ADDRESS, plan.mechanism, plan.parameters, plan.noise, DIMENSION)
    count, size = 400, plan.groups_per_block * (plan.base - 1)
    rates = []
    for number in range(rounds):
        blocks = [(0, number * count + block) for block in range(count)]
        rates.append(count * size / _seconds(_draw_each, nodes, blocks, size) / 1000)
    rows = [at_least(f"keyed nodes of Laplace noise, d={DIMENSION}, {size} at a time", rates, "nodes/CPU ms", 20.0)]
    if find_spec("opendp") is None:
        progress("counters: OpenDP's sampler is not compared: the package opendp is not installed")
        return rows
    oracle = _opendp_sampler(plan.noise.numerator / plan.noise.denominator)
    few = count * size * DIMENSION // 100
    ratios = [rate * DIMENSION * 1000 / (few / _seconds(oracle, [0] * few)) for rate in rates]
    return [*rows, at_least("keyed Laplace integers over OpenDP's sampler", ratios, "x", 10.0)]


def _opened(plan: BlockPlan) -> BlockCounters:
    """Counters of which each has a leaf, so that the first nodes of every level are drawn already."""
    counters = plan.open(_KEY, _ADDRESS)
    counters.release_each(np.arange(BLOCKS), np.zeros((BLOCKS, DIMENSION), dtype=np.int64))
    return counters


def _all_per_batch(counters: BlockCounters, users: NDArray[np.int64], leaves: NDArray[np.int64]) -> None:
    for row in users:
        counters.add(row, leaves)
        counters.release()


def _one_per_event(counters: BlockCounters, users: NDArray[np.int64], leaves: NDArray[np.int64]) -> None:
    for row in users:
        counters.release_each(row, leaves)


def _draw_each(nodes: KeyedNodes, blocks: list[tuple[int, ...]], size: int) -> None:
    for block in blocks:
        nodes.draw([block], size)


def _opendp_sampler(scale: float) -> Callable[..., object]:
    opendp = import_module("opendp.prelude")
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=opendp.i64)), opendp.l1_distance(T=opendp.i64)
    sampler: Callable[..., object] = opendp.m.make_laplace(*space, scale=scale)
    return sampler


def _plans() -> list[Plan]:
    return [
        NegativeDigitTree(budget=_PURE, dimension=DIMENSION),
        BinaryTree(budget=_PURE, dimension=DIMENSION),
        HonakerTree(budget=_PURE, dimension=DIMENSION),
        BufferedToeplitz(budget=_ZCDP, dimension=DIMENSION),
    ]


def _leaves(seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(-(1 << 32), 1 << 32, (BATCH, DIMENSION))


def _each_rate(plan: Plan, leaves: NDArray[np.int64]) -> float:
    counter = plan.open(_KEY, _ADDRESS)
    counter.release_each(leaves)
    return BATCHES * BATCH / _seconds(lambda: [counter.release_each(leaves) for _ in range(BATCHES)])


def _one_rate(plan: Plan, leaves: NDArray[np.int64]) -> float:
    counter = plan.open(_KEY, _ADDRESS)
    rows = [leaves[row : row + 1] for row in range(BATCH)]

    def run() -> None:
        for _ in range(BATCHES // 4):
            for row in rows:
                counter.add(row)
                counter.release()

    return BATCHES // 4 * BATCH / _seconds(run)


def _batch_rate(plan: Plan, leaves: NDArray[np.int64]) -> float:
    counter = plan.open(_KEY, _ADDRESS)

    def run() -> None:
        for _ in range(BATCHES):
            counter.add_batch(leaves)
            counter.release()

    return BATCHES * BATCH / _seconds(run)


def _seconds(work: Callable[..., object], *given: object) -> float:
    begin = time.thread_time()
    work(*given)
    return time.thread_time() - begin
