"""The report on the model's lift over the hold-out, from the published lift topic alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.privacy.amounts import count_text, delta_from_bytes, delta_text, epsilon_text
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import LiftConfig
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.lift import GroupRate, Lift, lift_of

_BASIS = "Decisions that wait for a reward are left out. The 95 % hold however alike the decisions of one user are."


@dataclass(frozen=True, slots=True)
class LiftReport:
    """The lift, and the releases that it was computed from.

    Attributes:
        lift: rates of both groups.
        releases: number of releases of all counters together.
        epsilon_micro: the most epsilon that one user has spent on it.
        delta_units: the most delta that one user has spent on it.
        private_as_stated: False if a release was made under a seeded key.
    """

    lift: Lift
    releases: int
    epsilon_micro: int
    delta_units: int
    private_as_stated: bool

    @property
    def exit_code(self) -> int:
        """0 if the uplift is known; 1 if too little was shown to distinguish it from the noise."""
        return 0 if self.lift.uplift is not None else 1

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; null if too little was shown."""
        uplift = self.lift.uplift
        return {
            "model": _rate(self.lift.model),
            "holdout": _rate(self.lift.holdout),
            "uplift": None if uplift is None else {"difference": uplift[0], "ci95": uplift[1]},
            "decisions_needed": self.lift.needed,
            "decisions_more": self.lift.decisions_more,
            "releases": self.releases,
            "epsilon_micro": self.epsilon_micro,
            "delta_units": str(self.delta_units),
            "private_as_stated": self.private_as_stated,
        }

    def as_text(self) -> str:
        """The figures, one a line."""
        lines = [] if self.private_as_stated else ["REPRODUCIBLE, NOT PRIVATE"]
        groups = (("Model", self.lift.model), ("Hold-out", self.lift.holdout))
        for (name, rate), counted in zip(groups, self.lift.counted, strict=True):
            if rate is None:
                lines.append(
                    f"{name}: too little was shown to distinguish it from the noise: about "
                    f"{count_text(max(0.0, counted), 'decision', '.0f')} "
                    f"counted, some {self.lift.needed:.0f} needed, so {math.ceil(self.lift.needed - counted)} more."
                )
            else:
                about = f"95 % within {rate.half_width:.4f}; about {rate.shown:.0f} shown"
                lines.append(f"{name}: {rate.rate:.4f} a decision ({about}).")
        uplift = self.lift.uplift
        if uplift is not None:
            lines += [f"Uplift: {uplift[0]:+.4f} (95 % within {uplift[1]:.4f}).", _how_many_more(self.lift)]
        lines.append(_BASIS)
        price = f"epsilon {epsilon_text(self.epsilon_micro)}, delta {delta_text(self.delta_units)}"
        lines.append(f"From {count_text(self.releases, 'release')}; together they cost one user {price}.")
        return "\n".join(lines) + "\n"


def _how_many_more(lift: Lift) -> str:
    more = lift.decisions_more
    if more is None:
        return "There is no difference at all: no number of decisions would show one."
    if not more:
        return "The interval excludes 0: that is enough."
    share = lift.counted[1] / sum(lift.counted)
    return (
        f"About {count_text(more, 'decision')} more until the interval excludes 0, if the uplift and the groups' "
        f"shares stay; {share * more:.0f} of them in the hold-out."
    )


def read_lift(values: Iterable[bytes], system: P2BSystem) -> LiftReport:
    """The lift of a deployment.

    Args:
        values: the bytes of the records on the lift's topic.
        system: the deployment.

    Raises:
        HushstreamError: nothing was released yet.
    """
    newest = newest_releases(values, system, system.config.lift)
    found = [(np.frombuffer(f["sums"], "<i8"), f["variance"], f["levels"]) for f in newest]
    return LiftReport(
        lift_of(found, system.config.lift.decisions_per_user),
        sum(fields["leaf"] for fields in newest),
        max(fields["epsilon_micro"] for fields in newest),
        max(delta_from_bytes(fields["delta_units"]) for fields in newest),
        all(fields["private_as_stated"] for fields in newest),
    )


def newest_releases(values: Iterable[bytes], system: P2BSystem, lift: LiftConfig) -> Sequence[Mapping[str, Any]]:
    """The newest release of each counter.

    Raises:
        HushstreamError: nothing was released yet.
    """
    newest: dict[bytes, Mapping[str, Any]] = {}
    for _, fields in codec.readable(values, frozenset({"Lift"})):
        held = newest.get(fields["counter"])
        if fields["config_digest"] == system.digest and (held is None or fields["leaf"] > held["leaf"]):
            newest[fields["counter"]] = fields
    if not newest:
        window = system.config.feedback.attribution_window_seconds
        wait = window + lift.every_seconds
        raise HushstreamError(
            f"lift: expected at least one release, got none: a decision counts once its wait for a reward is over "
            f"({window:g} s), and releases are {lift.every_seconds:g} s "
            f"apart, so the first comes within some {wait:g} s of the first decision, as soon as others come after it"
        )
    return list(newest.values())


def _rate(rate: GroupRate | None) -> dict[str, float] | None:
    if rate is None:
        return None
    return {"shown": rate.shown, "rewards": rate.rewards, "rate": rate.rate, "ci95": rate.half_width}
