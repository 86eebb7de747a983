"""The audit of one PDOL configuration."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Cost, count_text, epsilon_micro
from hushstream.replay.audits.configured import Noise, first_draw, laplace_law, report_of
from hushstream.replay.audits.draws import fresh_key, fresh_nonce
from hushstream.replay.audits.report import AuditReport
from hushstream.replay.audits.row import Attacked
from hushstream.replay.studies.pdol.audits.rows import (
    FEATURES,
    GOSSIP_ROUNDS,
    Domain,
    ParallelAttacks,
    domain_attack,
    domain_family,
    gossip_attack,
    gossip_family,
    opened_node,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.algorithm.counters import plan_of
from hushstream.systems.pdol.algorithm.gossip import (
    PARAMETER_BITS,
    GossipNode,
    draw_noise,
    gossip_address,
    noise_law,
)
from hushstream.systems.pdol.algorithm.rows import null_rows
from hushstream.systems.pdol.configuration import GossipConfig, PdolConfig, RecordConfig, pdol_digest
from hushstream.systems.pdol.guarantee import epoch_guarantee

MOST_FEATURES, MOST_SUMS = 512, 1 << 22
"""The most features of a domain, and the most sums of all domains together; larger configurations are reduced."""

_LEAVES, _LEAST_LEAVES = 4_000, 5
"""Leaves of each hypothesis over all runs together, and the least leaves of one run."""


def audit_config(config: PdolConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration: its counter at its epsilon, delta and horizon, its slots and features.

    Raises:
        HushstreamError: the configuration adds no noise.
    """
    if config.gossip is not None:
        return _audit_gossip(config, config.gossip, runs, false_alarm)
    sharing = config.sharing
    if sharing.counter == "exact":
        raise HushstreamError(
            "audit: expected a release.mechanism that adds noise, got exact, which guarantees nothing and is "
            "for public data alone"
        )
    dimension, slots = min(config.records.dimension, MOST_FEATURES), config.slots_of(0)
    attacked = replace(config, records=replace(config.records, dimension=dimension))
    if config.domains * dimension > MOST_SUMS:
        attacked = replace(attacked, nodes=1, sharing=replace(sharing, domains=None, slots_per_release=slots))
    # The plan is that of all features, as their number decides the part of delta for the tails that noise tables omit.
    domain = Domain(plan=replace(plan_of(sharing, config.records.dimension), dimension=dimension))
    features = min(dimension, max(1, slots // 2))
    leaves = min(sharing.horizon, max(_LEAST_LEAVES, _LEAVES // -(-runs // features)))
    lanes = ParallelAttacks(features, slots // features, leaves)
    settings = {
        "system": config.system,
        "epsilon": sharing.epsilon,
        "delta": sharing.delta,
        "dimension": dimension,
        "slots": slots,
        "horizon": sharing.horizon,
        "releases": leaves,
    }
    attacked_steps = (
        f"the first {leaves} of at most {count_text(sharing.horizon, 'release')} of one counter, and the "
        f"models made of them; {features} of {dimension} features have a record to be distinguished from null"
    )
    return report_of(
        sharing.counter,
        settings,
        Attacked(domain_attack(attacked, domain, lanes), epoch_guarantee(config).cost, domain_family(attacked, lanes)),
        _noise_of(attacked, domain, epoch_guarantee(config).cost),
        epoch_guarantee(config),
        runs,
        false_alarm,
        attacked_steps,
        _reduced(config, dimension),
    )


def _reduced(config: PdolConfig, dimension: int) -> tuple[str, ...]:
    fewer = config.records.dimension - dimension
    return (
        *(
            [f"{count_text(fewer, 'feature')}, as each sum has noise of its own, of one size for all features"]
            if fewer
            else []
        ),
        *(
            [f"records of all domains but one, as each of the {config.domains} has a counter and noise of its own"]
            if config.domains > 1
            else []
        ),
    )


def _noise_of(config: PdolConfig, domain: Domain, price: Cost) -> Noise:
    """The noise in a domain's release of a leaf of null slots."""
    assert domain.plan is not None
    unit, law = first_draw(domain.plan)
    key, model = fresh_key(), np.zeros(config.records.dimension, dtype=np.int32)

    def read() -> NDArray[np.float64]:
        node = opened_node(config, domain, key)
        node.fold(null_rows(node.capacity_left), model)
        return np.asarray(np.abs(node.release().values) / unit)

    return Noise(read, law, price)


def _audit_gossip(config: PdolConfig, gossip: GossipConfig, runs: int, false_alarm: float) -> AuditReport:
    place, rounds = gossip.gradient_at, min(gossip.rounds, GOSSIP_ROUNDS[gossip.gradient_at])
    small = replace(config, records=RecordConfig(FEATURES), gossip=replace(gossip, rounds=rounds))
    # A threshold above the largest likelihood ratio of one round proves most where several rounds add information.
    sure = 1.5 * gossip.epsilon if place == "own" else 0.0
    guarantee = epoch_guarantee(config)
    return report_of(
        "gossip",
        {"system": config.system, "epsilon": gossip.epsilon, "gradient_at": place, "rounds": rounds},
        Attacked(gossip_attack(small, GossipNode, sure), guarantee.cost, gossip_family(place)),
        _noise_of_parameters(config, gossip),
        guarantee,
        runs,
        false_alarm,
        f"the first {rounds} of {count_text(gossip.rounds, 'round')} of one node, of records with {FEATURES} features",
        (
            "messages of neighbours, as a node mixes them after they were sent, and noise covers what the "
            "node sends next",
            *(
                [
                    f"{count_text(config.records.dimension - FEATURES, 'feature')}, as noise grows with the "
                    "square root of their number"
                ]
                if config.records.dimension > FEATURES
                else []
            ),
        ),
    )


def _noise_of_parameters(config: PdolConfig, gossip: GossipConfig) -> Noise:
    """The noise that a node adds to its parameters in the first round, on all features."""
    key, digest, dimension = fresh_key(), pdol_digest(config), config.records.dimension
    unit = 2 * gossip.step * math.sqrt(dimension) * (1 << PARAMETER_BITS)
    law = noise_law(gossip, 1, dimension)

    def read() -> NDArray[np.float64]:
        address = gossip_address(config, digest, fresh_nonce(), 0, 0, 1)
        return np.asarray(np.abs(draw_noise(law, [key], [address], dimension)[0]) / unit)

    # The noise of a round is calibrated to the paper's epsilon.
    return Noise(read, laplace_law(round(unit), gossip.epsilon), Cost(epsilon_micro(gossip.epsilon)))
