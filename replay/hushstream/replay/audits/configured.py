"""The audit of one configuration: what a system of it releases, attacked at the epsilon and horizon that it names.

The sizes are those of the configuration, but for what the noise does not depend on: where centroids lie, how many
users there are and how they are tied. A counter that is too long for an audit is attacked by its first releases: its
noise is that of its whole horizon, and the curve is that of what these releases can tell.
"""

from __future__ import annotations

from hushstream.counting import Plan
from hushstream.schemas.errors import HushstreamError

_LEAVES = 40_000
"""Steps that an audit feeds to counters on each neighbour, all runs together: some seconds."""


def steps_for(runs: int, abreast: int, effort: int) -> int:
    """How many steps each counter may be fed, where one takes so many times the least effort.

    Raises:
        HushstreamError: so many runs of this configuration leave time for none.
    """
    steps = _LEAVES // (-(-runs // abreast) * effort)
    if not steps:
        raise HushstreamError(
            f"audit: expected at most {_LEAVES // effort * abreast} runs of this configuration, of which one release "
            f"gives {abreast}, got {runs}; with so many there is no time for even the first step of its counter, so "
            f"take fewer by --runs"
        )
    return steps


def seen(plan: Plan | None, steps: int, what: str) -> str:
    """Which part of a counter's life was attacked, in words; empty where there is no counter."""
    if plan is None:
        return ""
    least = f"the first {steps:,} of at most {plan.horizon:,} {what} of the counter"
    if steps >= plan.horizon:
        return f"{least}, all there are"
    return f"{least}, with noise for them all, against the curve of what these can tell"
