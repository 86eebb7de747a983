"""The interface of a world: users who have contexts and answer a chosen arm with a reward.

Runs of a closed loop can be compared (direct with stream, cold with warm) only if a user's context and answer to an arm
do not depend on the order of the calls. So every value of a world depends only on seed, user, round and arm.

*Blocked.* Computes a world in blocks of users, for thousands of users who act one by one and need one context at a
time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

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


BLOCK_USERS = 512
KEPT_BLOCKS = 64


class BlockedWorld:
    """Serves single users from blocks of users that are computed together.

    A world's values depend only on seed, user, round and arm, so the order of the calls does not matter.
    """

    def __init__(self, world: World) -> None:
        """Wrap a world; keep `KEPT_BLOCKS` blocks of `BLOCK_USERS` users and one round each."""
        self._world = world
        self._blocks: OrderedDict[tuple[int, int], _Block] = OrderedDict()

    def context(self, user: int, round_index: int) -> NDArray[np.float32] | Mapping[str, Any]:
        """The context of one user in one round: (d,) float32, or values by name where features have names."""
        block, row = self._find(user, round_index)
        context: NDArray[np.float32] | Mapping[str, Any] = block.contexts[row]
        return context

    def reward(self, user: int, round_index: int, arm: int) -> float:
        """The reward of that user for an arm in that round, in [0, 1]."""
        block, row = self._find(user, round_index)
        return block.reward(row, arm)

    def eligible(self, user: int, round_index: int) -> list[int] | None:
        """The arms that may be shown, or None for all."""
        block, row = self._find(user, round_index)
        return block.eligible(row)

    def _find(self, user: int, round_index: int) -> tuple[_Block, int]:
        number, row = divmod(user, BLOCK_USERS)
        block = self._blocks.get((number, round_index))
        if block is None:
            block = _Block(self._world, number, round_index)
            self._blocks[number, round_index] = block
            if len(self._blocks) > KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        return block, row


class _Block:
    """One block of users in one round."""

    def __init__(self, world: World, number: int, round_index: int) -> None:
        first = number * BLOCK_USERS
        self._world = world
        self._round = round_index
        self._users = np.arange(first, min(first + BLOCK_USERS, world.users), dtype=np.int64)
        self.contexts = world.contexts(self._users, round_index)
        self._masks = world.eligible(self._users, round_index)
        self._rewards: dict[int, NDArray[np.float64]] = {}

    def reward(self, row: int, arm: int) -> float:
        if self._masks is not None:
            # The arm may not be eligible for other users of the block, and a world may refuse it then: ask for this
            # user alone.
            user = self._users[row : row + 1]
            return float(self._world.rewards(user, self._round, np.array([arm], dtype=np.int64))[0])
        column = self._rewards.get(arm)
        if column is None:
            arms = np.full(len(self._users), arm, dtype=np.int64)
            column = self._rewards[arm] = self._world.rewards(self._users, self._round, arms)
        return float(column[row])

    def eligible(self, row: int) -> list[int] | None:
        if self._masks is None or not self._masks[row]:
            return None
        bits = np.unpackbits(np.frombuffer(self._masks[row], np.uint8), bitorder="little")
        return [int(arm) for arm in np.flatnonzero(bits)]
