"""The setting that limits how many units of a person are counted, and its largest useful value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hushstream.engine.noise.budget import largest_that
from hushstream.privacy.promises.promise import Cap, Guarantee
from hushstream.privacy.promises.sentence import Prices


def with_cap(promise: Guarantee, setting: str, life_of: Callable[[int], Prices]) -> Guarantee:
    """The same guarantee. If it promises little for a whole life, it also names the largest useful number of units.

    Args:
        promise: of the configuration.
        setting: path of the setting for the number of units of a person.
        life_of: both prices of a life with a number of units; they grow with it.
    """
    units = promise.lifetime.units
    if units == 1 or life_of(units).weak is None or life_of(1).weak is not None:
        return promise
    most = largest_that(lambda count: life_of(count).weak is None, units)
    return replace(promise, lifetime=replace(promise.lifetime, cap=Cap(setting, most)))
