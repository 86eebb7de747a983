"""Whether nodes gain by sharing, from a run; where they do not, from which epsilon on they would have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.configuration import LARGEST_EPSILON
from hushstream.replay.report.payoff import Gap, Payoff, paired_gap
from hushstream.replay.studies.pdol.play import predicted_labels
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.systems.pdol.configuration import PdolConfig

TRIED = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, LARGEST_EPSILON)
"""Epsilons at which the same records are played where sharing does not pay, up to the first at which it does."""

Rights = NDArray[np.bool_]


def payoff(stream: RecordStream, config: PdolConfig, right: Rights, alone: Rights, seed: int) -> Payoff:
    """Shared predictions against those of nodes that keep apart; nodes are the sample.

    Args:
        stream: the records.
        config: of the run.
        right: (n,) which labels were predicted right.
        alone: (n,) which ones nodes that learn alone have right.
        seed: of the keys of further plays.
    """
    gap = _gap(stream, right, alone)
    pays = gap.low is not None and gap.low > 0
    return Payoff(
        what="share of labels right",
        value=float(right.mean()),
        baseline="nodes that keep apart",
        reference=float(alone.mean()),
        gap=gap,
        units="nodes",
        otherwise="" if pays else _otherwise(stream, config, alone, seed),
    )


def _gap(stream: RecordStream, right: Rights, alone: Rights) -> Gap:
    groups = np.asarray(stream.nodes, dtype=np.int64)
    return paired_gap(right.astype(np.float64), alone.astype(np.float64), groups)


def _otherwise(stream: RecordStream, config: PdolConfig, alone: Rights, seed: int) -> str:
    """What to do: the least epsilon of `TRIED` at which sharing pays on these very records, or to keep apart."""
    if config.gossip is not None or config.sharing.counter == "exact":
        return "keep apart"
    model = replace(config.model, releases_per_version=None)
    tried = [epsilon for epsilon in TRIED if epsilon > config.sharing.epsilon]
    for epsilon in tried:
        larger = replace(config, sharing=replace(config.sharing, epsilon=epsilon), model=model)
        low = _gap(stream, predicted_labels(stream, larger, seed) == stream.rows.labels, alone).low
        if low is not None and low > 0:
            return f"keep apart, or take an epsilon of at least {epsilon:g}, at which sharing pays on these records"
    most = f", at no epsilon up to {tried[-1]:g} does sharing pay on these records" if tried else ""
    return f"keep apart{most}"
