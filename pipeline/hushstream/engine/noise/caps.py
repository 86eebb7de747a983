"""The setting that limits how much of one person is counted, and its largest value at which the guarantee still says
something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hushstream.engine.noise.budget import largest_that
from hushstream.privacy.promises.promise import Cap, Guarantee
from hushstream.privacy.promises.sentence import Prices


def with_cap(promise: Guarantee, setting: str, life_of: Callable[[int], Prices]) -> Guarantee:
    """The same guarantee; where it promises little for a whole life, with the largest number of units that helps.

    Args:
        promise: of the configuration.
        setting: path of the setting that says how many units of a person there are.
        life_of: both prices of a life of so many units; they grow with the number.
    """
    units = promise.lifetime.units
    if units == 1 or life_of(units).weak is None or life_of(1).weak is not None:
        return promise
    most = largest_that(lambda count: life_of(count).weak is None, units)
    return replace(promise, lifetime=replace(promise.lifetime, cap=Cap(setting, most)))
