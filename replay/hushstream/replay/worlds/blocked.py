"""Computes a world in blocks of users, for thousands of users who act one by one and need one context at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.worlds.world import World

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
