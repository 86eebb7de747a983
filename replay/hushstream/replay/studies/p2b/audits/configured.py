"""The audit of one P2B configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import epsilon_float
from hushstream.privacy.audits.laws import Sizes
from hushstream.replay.audits.configured import Noise, first_draw, laplace_law, report_of, seen, steps_for
from hushstream.replay.audits.draws import fresh_key
from hushstream.replay.audits.readings import reading_of
from hushstream.replay.audits.report import AuditReport
from hushstream.replay.audits.row import Attacked
from hushstream.replay.studies.p2b.audits import linear, releases
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.feature_layout import UNITS
from hushstream.systems.p2b.contribution.feature_slots import pack_null
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.summed import summed_of

_Attack: TypeAlias = Callable[[P2BSystem, int], Attacked]
_Read: TypeAlias = Callable[[P2BSystem], NDArray[np.int64]]

_SUMS = 1 << 21
"""The most noised sums that an audit draws from one counter over windows, over all steps."""


def audit_config(config: P2BConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration.

    Raises:
        HushstreamError: the noise of its mode cannot be attacked at any size, or this number of runs takes too long.
    """
    release = config.release
    if release.mode != "slot-sums":
        raise HushstreamError(
            f"audit: expected release.mechanism slot-sums, whose noise can be attacked at any size, got "
            f"{release.mode}; hushstream audit --only {release.mode} attacks that mode in a small deployment"
        )
    form = _FORMS[release.form]
    system = form.deployed(config)
    tree, cells = system.window_tree, math.prod(system.form.shape)
    most = min(_SUMS // cells, steps_for(runs, cells, 1)) if tree is not None else 1
    settings: dict[str, Any] = {
        "system": config.system,
        "epsilon": release.epsilon,
        "levels": release.levels,
        "sampling": release.sampling,
        "sums": "fresh" if tree is None else "counter",
        "horizon": None if tree is None else tree.horizon,
        "steps": 1 if tree is None else reading_of(tree, most).steps,
    }
    return report_of(
        summed_of(config).mechanism,
        settings,
        form.attack(system, most),
        _noise_of(system, form),
        system.guarantee(),
        runs,
        false_alarm,
        seen(tree, settings["steps"], "window"),
        form.reduced,
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """How slots of one form (codes or features) are attacked.

    Attributes:
        deployed: makes the deployment of a configuration.
        attack: the attack on neighbours, with the most windows of a counter that it may feed.
        read: publishes the sums of one window of null slots.
        step: how far a report moves a sum, from the number of reward levels.
        reduced: which parts of the configuration are left out.
    """

    deployed: Callable[[P2BConfig], P2BSystem]
    attack: _Attack
    read: _Read
    step: Callable[[int], int]
    reduced: tuple[str, ...]


def _of_codes(config: P2BConfig) -> P2BSystem:
    return releases.stand_in(replace(config, slot=replace(config.slot, sealed=False)))


def _null_codes(system: P2BSystem) -> NDArray[np.int64]:
    return np.asarray(releases.published(system, fresh_key(), [[None]]))


def _null_features(system: P2BSystem) -> NDArray[np.int64]:
    return linear.published(system, [[pack_null(system.linear.layout)]])


_FORMS: Mapping[str, _Form] = {
    "codes": _Form(
        _of_codes,
        releases.audit_slot_sums_release,
        _null_codes,
        lambda levels: levels,
        (
            "how the encoder was fitted, as a slot names one code wherever centroids lie",
            "the sealing of slots, as the shuffler opens them before it sums",
        ),
    ),
    "features": _Form(P2BSystem.declared, linear.audit_linear_sums, _null_features, lambda levels: levels * UNITS, ()),
}


def _noise_of(system: P2BSystem, form: _Form) -> Noise:
    unit, law = _law(system, form.step(system.config.release.levels))

    def read() -> NDArray[np.float64]:
        return np.abs(form.read(system)).ravel() / unit

    return Noise(read, law, system.guarantee().cost)


def _law(system: P2BSystem, step: int) -> tuple[float, Sizes]:
    """The unit and the distribution of a sum's noise; a slot is kept with the configured probability."""
    tree, kept = system.window_tree, system.config.release.sampling

    def drawn(epsilon: float) -> float:
        return math.log1p(math.expm1(epsilon) / kept)

    claim = epsilon_float(system.guarantee().cost.epsilon_micro)
    unit, law = (step, laplace_law(step, drawn(claim))) if tree is None else first_draw(tree)
    family = replace(law.family, smallest=claim / 4)
    return unit, Sizes(lambda epsilon: law.law(drawn(epsilon)), family)
