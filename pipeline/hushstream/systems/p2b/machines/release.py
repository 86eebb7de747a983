"""The release of a closed P2B window: its noise address, its sums, and the fields of its crowd record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.coins import bernoulli, probability_units
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    Parameter,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
)
from hushstream.systems.p2b.contribution.feature_slots import unpack_reports
from hushstream.systems.p2b.contribution.slots import unpack_all
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.summed import summed_of
from hushstream.systems.p2b.machines.running import RunningSums
from hushstream.systems.p2b.shuffler.linear_sums import linear_sums, noised_sums
from hushstream.systems.p2b.shuffler.sums import (
    CellSums,
    Domain,
    Reports,
    noised,
    paper,
    slot_sums,
    tuple_sums,
    tuples,
)
from hushstream.systems.p2b.shuffler.windows import ClosedWindow

FIRST_EPOCH = 0
"""A journal's first epoch. A key rotation opens the next one; inputs that differ from the journaled ones stop the role
(`ReplayMismatch`)."""


@dataclass(frozen=True, slots=True)
class WindowRelease:
    """The release of one window.

    Attributes:
        window_id: id of the window.
        crowd: the fields of its crowd record.
        forged: how many of its slots held neither a report nor null; zone-private.
    """

    window_id: bytes
    crowd: Mapping[str, Any]
    forged: int


def release_window(
    system: P2BSystem,
    key: Key,
    genesis_nonce: bytes,
    partition: int,
    closed: ClosedWindow,
    running: RunningSums | None = None,
    epoch: int = FIRST_EPOCH,
) -> WindowRelease:
    """Release a closed window: a function of its slots, the key and the journal's genesis, and of nothing else.

    The address of noise and coins contains the window and its content (`window_address`). If a journal is rolled back
    and closes the window again over other slots, both are drawn anew: a slot that is in both releases pays twice, and
    no more.

    Args:
        system: the deployment.
        key: the shuffler's key.
        genesis_nonce: of the partition's journal.
        partition: the home partition of the window.
        closed: the window.
        running: the counter over the partition's windows in this epoch, if there is one; the window is added to it.
        epoch: the epoch of noise.
    """
    terms, shape, release = terms_of(system), (2, *system.form.shape), system.config.release
    address = window_address(system, key, genesis_nonce, partition, closed, epoch)
    # The shuffler's secret coin for each slot of the window, nulls included.
    coins = bernoulli(KeyedStream(key, address.at("sampling")), terms.sampling_units, len(closed.contents))
    codes = release.form == "codes"
    # Sums are exact here, and zone-private until there is noise on them. Counts above a threshold leave as they are.
    sums, forged = _of_codes(system, closed, coins) if codes else _of_features(system, closed, coins)
    if release.mode in ("tuples", "paper"):
        variance = 0.0
    elif running is not None:
        step = running.step(np.concatenate([sums.ones.ravel(), sums.zeros.ravel()]))
        (ones, zeros), variance = step.sums.reshape(shape), step.variance
        sums = replace(sums, ones=ones, zeros=zeros)
    else:
        assert terms.scale is not None
        numerator, denominator = terms.scale
        noise = discrete_laplace(KeyedStream(key, address), numerator, denominator, math.prod(shape)).reshape(shape)
        variance = laplace_variance(numerator, denominator)
        sums = noised(sums, noise) if codes else noised_sums(sums, noise)
    window_id = key.digest(
        "window-id", genesis_nonce, closed.window.to_bytes(8, "little"), partition.to_bytes(4, "little")
    )
    crowd = {
        **terms.crowd,
        **system.stated[system.as_stated(key.reproducible)],
        "window_id": window_id,
        "slots": len(closed.contents),
        "ones": sums.ones.astype("<i8").tobytes(),
        "zeros": sums.zeros.astype("<i8").tobytes(),
        "variance": variance,
        **({} if closed.item_rows is None else closed.item_rows._asdict()),
    }
    return WindowRelease(window_id, crowd, forged)


@dataclass(frozen=True, slots=True)
class ReleaseTerms:
    """The values that all releases of a deployment share; they follow from the configuration alone.

    Attributes:
        mechanism: its name, in journals and addresses.
        sampling_units: probability that a report is kept (`hushstream.privacy.mechanisms.coins`).
        scale: the scale of the noise of a sum (of slot sums in units of 1/M), as a fraction; None in other modes.
        parameters: every parameter that the noise depends on, as whole numbers.
        text: the parameters as the journal has them: canonical JSON.
        domain: of reports of codes; None for declared features.
        crowd: the fields that are equal in all crowds.
    """

    mechanism: str
    sampling_units: int
    scale: tuple[int, int] | None
    parameters: Mapping[str, int | str]
    text: str
    domain: Domain | None
    crowd: Mapping[str, Any]


@lru_cache(maxsize=64)
def terms_of(system: P2BSystem) -> ReleaseTerms:
    """The terms of a deployment, computed once."""
    config, parameters = system.config, _parameters(system)
    release, mechanism = config.release, summed_of(config).mechanism
    return ReleaseTerms(
        mechanism=mechanism,
        sampling_units=probability_units(release.sampling),
        scale=laplace_scale(system.noise_epsilon, summed_of(config).sums[1]) if release.mode == "slot-sums" else None,
        parameters=parameters,
        text=json.dumps(parameters, sort_keys=True, separators=(",", ":")),
        domain=Domain(*system.form.shape, release.levels) if release.form == "codes" else None,
        crowd={
            "config_digest": system.digest,
            "mode": mechanism,
            **system.form.domain,
        },
    )


def release_address(
    system: P2BSystem,
    genesis_nonce: bytes,
    partition: int,
    epoch: int = FIRST_EPOCH,
    window: int | None = None,
    content: bytes = b"",
) -> NoiseAddress:
    """The address of the noise of a partition's releases in one epoch; of one window if ``window`` is given."""
    mechanism, parameters = terms_of(system).mechanism, terms_of(system).parameters
    place = (genesis_nonce, epoch, partition, window, content)
    return system.noise_address("release-noise", mechanism, parameters, *place)


def window_address(
    system: P2BSystem, key: Key, genesis_nonce: bytes, partition: int, closed: ClosedWindow, epoch: int = FIRST_EPOCH
) -> NoiseAddress:
    """The address of one window's noise: its number, and a keyed digest of the ids and contents of all its slots.

    The sums follow from ids, contents and coins. The digest covers the ids, so that equal noise reveals nothing about
    contents: two closings of a window have the same address only if they hold the same slots, and a slot's id stands
    for one content.

    Coins are drawn for the whole window, by position in the order of ids, and not for each slot by its id. With one
    coin for each id, a slot in two releases of a fork would have the same coin in both. That costs
    ln(1 + p (e^(2 eps) - 1)), more than the 2 ln(1 + p (e^eps - 1)) of two coins.
    """
    # Ids and contents have one size each, so the joined bytes can be read in one way.
    parts: tuple[bytes, ...] = (b"".join(closed.ids), b"".join(closed.contents))
    if closed.item_rows is not None:
        # Which slots count follows from the items of the rows: under another catalogue the same slots give other sums.
        parts = (*parts, closed.item_rows.catalogue.to_bytes(4, "little"), closed.item_rows.entries)
    content = key.digest("window-content", *parts)
    return release_address(system, genesis_nonce, partition, epoch, closed.window, content)


def _of_codes(system: P2BSystem, closed: ClosedWindow, coins: NDArray[np.bool_]) -> tuple[CellSums, int]:
    """The sums of a window of codes, and how many of its slots are forged: none, as each was checked on arrival."""
    release, domain = system.config.release, terms_of(system).domain
    assert domain is not None
    slots = unpack_all(closed.contents, domain.codes, domain.arms, domain.levels)
    # A report counts if its coin kept it.
    reports = Reports(domain, slots.codes, slots.arms, slots.levels, slots.held & coins)
    if release.mode == "tuples":
        everyone = np.ones(len(reports), dtype=np.bool_)
        return tuple_sums(reports.domain, tuples(reports, everyone, system.threshold)), 0
    if release.mode == "paper":
        return tuple_sums(reports.domain, paper(reports, system.threshold)), 0
    return slot_sums(reports), 0


def _of_features(system: P2BSystem, closed: ClosedWindow, coins: NDArray[np.bool_]) -> tuple[CellSums, int]:
    """The sums of a window of declared features, and how many of its slots held neither a report nor null."""
    layout = system.linear.layout
    reports, counted = unpack_reports(layout, closed.contents), coins
    if closed.item_rows is not None:
        counted = counted & closed.item_rows.current(reports.arms, reports.catalogues)
    return linear_sums(layout, reports, counted), int(reports.forged.sum())


def _parameters(system: P2BSystem) -> Mapping[str, int | str]:
    """Every parameter that the noise depends on, as whole numbers."""
    release = system.config.release
    parameters: dict[str, int | str] = {
        **system.form.parameters,
        "sampling_units": str(probability_units(release.sampling)),
    }
    tree = system.window_tree
    if tree is not None:
        return {**parameters, **_plain(tree.parameters)}
    if release.mode == "slot-sums":
        numerator, denominator = laplace_scale(system.noise_epsilon, summed_of(system.config).sums[1])
        return {**parameters, "scale_numerator": numerator, "scale_denominator": denominator}
    return {**parameters, "threshold": system.threshold}


def _plain(parameters: Mapping[str, Parameter]) -> dict[str, int | str]:
    return {name: value if isinstance(value, int) else str(value) for name, value in parameters.items()}
