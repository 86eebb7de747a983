"""Measures the speed of the counters, in one thread: rows for ``make bench``.

Rates are per second of the thread's CPU time, medians over rounds; ratios are taken within a round.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BinaryTree, NegativeDigitTree, Plan, PureEpsilon
from hushstream.counting.nodes import KeyedNodes
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.replay.experiments.rows import BenchRow, Progress, at_least, cpu_seconds, figure

DIMENSION = 25
BATCH = 256
BATCHES = 4_000
RATE = "events/CPU s"

_KEY = seeded_key(0, "counter")
_ADDRESS = NoiseAddress("counter-node", "bench", bytes(32), "bench", "counter", {}, bytes(16), 0)


def counter_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure releases and noise.

    Args:
        progress: called with the name of each measurement.
        rounds: repetitions; figures are medians over them.
    """
    progress("counters: rates")
    rows = rate_rows(rounds)
    progress("counters: noise")
    return rows + noise_rows(progress, rounds)


def rate_rows(rounds: int) -> list[BenchRow]:
    """Events per second with a release after each, and with one release for each closed batch, beside a binary tree."""
    rows, budget = list[BenchRow](), PureEpsilon(1)
    for kind, rate, target in (
        (f"event, given {BATCH} at a time", _each_rate, 400_000),
        (f"closed batch of {BATCH}", _batch_rate, 2e7),
    ):
        rates, binary = (
            [rate(plan, _leaves(number)) for number in range(rounds)]
            for plan in (
                NegativeDigitTree(budget=budget, dimension=DIMENSION),
                BinaryTree(budget=budget, dimension=DIMENSION),
            )
        )
        name = f"{NegativeDigitTree.mechanism}, a release per {kind}, d={DIMENSION}, sensitivity 1"
        ratios = [fast / slow for fast, slow in zip(rates, binary, strict=True)]
        rows += [at_least(name, rates, RATE, target), figure(f"{name}, over {BinaryTree.mechanism}", ratios, "x")]
    return rows


def noise_rows(progress: Progress, rounds: int) -> list[BenchRow]:
    """Rates of keyed noise, and of as many integers from OpenDP's sampler."""
    plan = NegativeDigitTree(budget=PureEpsilon(1), dimension=DIMENSION)
    nodes = KeyedNodes(_KEY, _ADDRESS, plan.mechanism, plan.parameters, plan.noise, DIMENSION)
    count, size = 400, plan.groups_per_block * (plan.base - 1)
    rates = []
    for number in range(rounds):
        blocks = [(0, number * count + block) for block in range(count)]
        rates.append(count * size / cpu_seconds(_draw_each, nodes, blocks, size) / 1000)
    rows = [at_least(f"keyed nodes of Laplace noise, d={DIMENSION}, {size} at a time", rates, "nodes/CPU ms", 20.0)]
    if find_spec("opendp") is None:
        progress("counters: OpenDP's sampler is not compared: the package opendp is not installed")
        return rows
    oracle = _opendp_sampler(plan.noise.numerator / plan.noise.denominator)
    few = count * size * DIMENSION // 100
    ratios = [rate * DIMENSION * 1000 / (few / cpu_seconds(oracle, [0] * few)) for rate in rates]
    return [*rows, at_least("keyed Laplace integers over OpenDP's sampler", ratios, "x", 10.0)]


def _draw_each(nodes: KeyedNodes, blocks: list[tuple[int, ...]], size: int) -> None:
    for block in blocks:
        nodes.draw([block], size)


def _opendp_sampler(scale: float) -> Callable[..., object]:
    opendp = import_module("opendp.prelude")
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=opendp.i64)), opendp.l1_distance(T=opendp.i64)
    sampler: Callable[..., object] = opendp.m.make_laplace(*space, scale=scale)
    return sampler


def _leaves(seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(-(1 << 32), 1 << 32, (BATCH, DIMENSION))


def _each_rate(plan: Plan, leaves: NDArray[np.int64]) -> float:
    counter = plan.open(_KEY, _ADDRESS)
    counter.release_each(leaves)
    return BATCHES * BATCH / cpu_seconds(lambda: [counter.release_each(leaves) for _ in range(BATCHES)])


def _batch_rate(plan: Plan, leaves: NDArray[np.int64]) -> float:
    counter = plan.open(_KEY, _ADDRESS)

    def run() -> None:
        for _ in range(BATCHES):
            counter.add_batch(leaves)
            counter.release()

    return BATCHES * BATCH / cpu_seconds(run)
