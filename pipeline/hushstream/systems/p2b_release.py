"""What a sealed P2B window releases, what it costs, and the records that say so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.contribution.slots import Report, unpack
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.privacy.coins import bernoulli, probability_units
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import (
    KeyedStream,
    NoiseAddress,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
)
from hushstream.shuffling.release import (
    CellSums,
    Domain,
    Reports,
    noised,
    paper,
    slot_sums,
    tuple_sums,
    tuples,
)
from hushstream.shuffling.windows import Sealed
from hushstream.systems.p2b import P2BSystem

EPOCH = 0
"""A journal has one epoch: inputs that do not give the journaled release again stop the role (`ReplayMismatch`)."""


@dataclass(frozen=True, slots=True)
class WindowRelease:
    """The release of one window as record fields: crowd, debit, ledger entry, and the mechanism's full name."""

    mechanism: str
    parameters: str
    debit: Mapping[str, Any]
    crowd: Mapping[str, Any]
    ledger_entry: Mapping[str, Any]


def release_window(system: P2BSystem, key: Key, genesis_nonce: bytes, partition: int, sealed: Sealed) -> WindowRelease:
    """Release a sealed window: a function of its slots, the key and the journal's genesis, and of nothing else.

    Args:
        system: the deployment.
        key: the shuffler's key.
        genesis_nonce: of the partition's journal.
        partition: the home partition of the window.
        sealed: the window.
    """
    parameters = _parameters(system)
    address = NoiseAddress(
        purpose="release-noise",
        deployment=system.config.deployment,
        genesis_nonce=genesis_nonce,
        system="p2b",
        mechanism=system.config.release.mode,
        parameters=parameters,
        config_digest=system.digest,
        epoch=EPOCH,
        window=sealed.window,
        partition=partition,
    )
    sums, variance = _release(system, key, address, sealed)
    window_id = key.digest(
        "window-id", genesis_nonce, sealed.window.to_bytes(8, "little"), partition.to_bytes(4, "little")
    )
    return _records(system, key, parameters, window_id, sums, variance, len(sealed.contents))


def _release(system: P2BSystem, key: Key, address: NoiseAddress, sealed: Sealed) -> tuple[CellSums, float]:
    release = system.config.release
    reports = _sampled(system, key, address, sealed)
    everyone = np.ones(len(reports), dtype=np.bool_)
    if release.mode == "tuples":
        return tuple_sums(reports.domain, tuples(reports, everyone, system.threshold)), 0.0
    if release.mode == "paper":
        return tuple_sums(reports.domain, paper(reports, system.threshold)), 0.0
    numerator, denominator = laplace_scale(system.noise_epsilon, release.levels)
    shape = (2, system.codes, system.config.arms)
    noise = discrete_laplace(KeyedStream(key, address), numerator, denominator, int(np.prod(shape)))
    return noised(slot_sums(reports), noise.reshape(shape)), laplace_variance(numerator, denominator)


def _sampled(system: P2BSystem, key: Key, address: NoiseAddress, sealed: Sealed) -> Reports:
    """The reports of the slots that the shuffler's secret coins kept; the coins are thrown for nulls, too."""
    release = system.config.release
    coins = bernoulli(
        KeyedStream(key, address.at("sampling")), probability_units(release.sampling), len(sealed.contents)
    )
    kept: list[Report] = []
    for content, keep in zip(sealed.contents, coins.tolist(), strict=True):
        report = unpack(content, system.codes, system.config.arms, release.levels)
        if keep and report is not None:
            kept.append(report)
    columns = np.array(kept, dtype=np.int64).reshape(-1, 3)
    domain = Domain(system.codes, system.config.arms, release.levels)
    return Reports(domain, columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy())


def _parameters(system: P2BSystem) -> dict[str, int | str]:
    """Every parameter that the noise depends on, as whole numbers."""
    release = system.config.release
    parameters: dict[str, int | str] = {
        "codes": system.codes,
        "arms": system.config.arms,
        "levels": release.levels,
        "sampling_units": str(probability_units(release.sampling)),
    }
    if release.mode == "slot-sums":
        numerator, denominator = laplace_scale(system.noise_epsilon, release.levels)
        return {**parameters, "scale_numerator": numerator, "scale_denominator": denominator}
    return {**parameters, "threshold": system.threshold}


def _records(
    system: P2BSystem,
    key: Key,
    parameters: Mapping[str, int | str],
    window_id: bytes,
    sums: CellSums,
    variance: float,
    slots: int,
) -> WindowRelease:
    config = system.config
    price = system.guarantee()
    mechanism = config.release.mode
    # Under a seeded key anyone can draw the noise again (PRIVACY rule 9).
    as_stated = price.private_as_stated and not key.reproducible
    debit = {
        "scope": f"window/{window_id.hex()}",
        "mechanism": mechanism,
        "epsilon_micro": price.epsilon_micro,
        "delta_units": delta_to_bytes(price.delta_units),
        "relation": price.relation,
        "unit": price.unit,
    }
    crowd = {
        "window_id": window_id,
        "config_digest": system.digest,
        "mode": mechanism,
        "codes": system.codes,
        "arms": config.arms,
        "levels": config.release.levels,
        "slots": slots,
        "ones": sums.ones.astype("<i8").tobytes(),
        "zeros": sums.zeros.astype("<i8").tobytes(),
        "variance": variance,
        "epsilon_micro": price.epsilon_micro,
        "delta_units": delta_to_bytes(price.delta_units),
        "private_as_stated": as_stated,
    }
    ledger_entry = {
        "deployment": config.deployment,
        "entry_id": window_id,
        "debit": debit,
        "config_digest": system.digest,
        "private_as_stated": as_stated,
    }
    canonical = json.dumps(dict(parameters), sort_keys=True, separators=(",", ":"))
    return WindowRelease(mechanism, canonical, debit, crowd, ledger_entry)
