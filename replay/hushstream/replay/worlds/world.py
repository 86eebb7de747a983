"""The interface of a world: users who have contexts and answer a chosen arm with a reward.

Runs of a closed loop can be compared (direct with stream, cold with warm) only if a user's context and answer to an arm
do not depend on the order of the calls. So every value of a world depends only on seed, user, round and arm.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hushstream.schemas.errors import HushstreamError

IntArray = npt.NDArray[np.integer]


class WorldError(HushstreamError):
    """A world does not have this option, or cannot give this value."""


@runtime_checkable
class World(Protocol):
    """A population in a closed loop; all methods are pure and take arrays.

    Attributes:
        name: name of the world and its variant in reports.
        dimension: d, the length of a context.
        arms: K, the number of arms.
        public: whether exact figures on its users may be shown (true for simulations and published datasets).
        users: how many users there are; they are numbered 0 .. users - 1.
        rounds: the number of rounds of each user; rounds are numbered 0 .. rounds - 1.
    """

    @property
    def name(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    @property
    def arms(self) -> int: ...
    @property
    def public(self) -> bool: ...
    @property
    def users(self) -> int: ...
    @property
    def rounds(self) -> int: ...

    def contexts(self, users: IntArray, round_index: int) -> npt.NDArray[Any]:
        """Return the (n, d) contexts of ``users`` (n,) at one round; (n,) values by name where features have names."""
        ...

    def rewards(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) rewards in [0, 1] of the arms (n,) shown to ``users`` (n,) at one round."""
        ...

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64] | None:
        """Return the (n,) mean rewards given context and arm, or None where they are not known."""
        ...

    def eligible(self, users: IntArray, round_index: int) -> list[bytes] | None:
        """Return one bitmask a user (bit a of byte a // 8 set: arm a may be shown), or None for all arms."""
        ...


def require_number(world: str, option: str, value: object, least: float, most: float) -> None:
    """Refuse an option that is no number within bounds; with integer bounds it must be a whole number.

    Raises:
        WorldError: names the world, the option, what it accepts and what it got.
    """
    whole = isinstance(least, int) and isinstance(most, int)
    if isinstance(value, bool) or not isinstance(value, int | (int if whole else float)):
        raise WorldError(f"{world}: {option} must be {'a whole number' if whole else 'a number'}, got {value!r}")
    # Written so that NaN, which compares false, is refused.
    if not least <= value <= most:
        raise WorldError(f"{world}: {option} must be in {least:.10g}..{most:.10g}, got {value!r}")


def check_request(world: World, users: IntArray, round_index: int, arms: IntArray | None = None) -> None:
    """Refuse users, rounds and arms that the world does not have.

    Raises:
        WorldError: an index is out of range, or ``arms`` and ``users`` have different lengths.
    """
    if not 0 <= round_index < world.rounds:
        raise WorldError(f"{world.name}: round must be in 0..{world.rounds - 1}, got {round_index}")
    _check_range(world, "user", np.asarray(users), world.users)
    if arms is not None:
        if np.shape(arms) != np.shape(users):
            raise WorldError(f"{world.name}: expected one arm a user {np.shape(users)}, got {np.shape(arms)}")
        _check_range(world, "arm", np.asarray(arms), world.arms)


def _check_range(world: World, what: str, values: IntArray, limit: int) -> None:
    if not values.size:
        return
    least, most = int(values.min()), int(values.max())
    if least < 0 or most >= limit:
        raise WorldError(f"{world.name}: every {what} must be in 0..{limit - 1}, got {least}..{most}")
