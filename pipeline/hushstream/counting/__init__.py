"""Continual-release counters: noised prefix sums of a stream of integer vectors."""

from hushstream.counting.blocks import BlockCounters, BlockPlan
from hushstream.counting.buffered import BufferedToeplitz
from hushstream.counting.calibration import Budget, Concentrated, PureEpsilon, PureLength
from hushstream.counting.counter import Counter, Factorisation, Plan, Release
from hushstream.counting.digits import DEFAULT_HORIZON, Neighbours
from hushstream.counting.errors import BadLeaves, BadPlan, BadState, CountingError, HorizonReached
from hushstream.counting.tree import BinaryTree, NegativeDigitTree, best_tree, choose_release, counter_rmse, fresh_rmse

__all__ = [
    "DEFAULT_HORIZON",
    "BadLeaves",
    "BadPlan",
    "BadState",
    "BinaryTree",
    "BlockCounters",
    "BlockPlan",
    "Budget",
    "BufferedToeplitz",
    "Concentrated",
    "Counter",
    "CountingError",
    "Factorisation",
    "HorizonReached",
    "NegativeDigitTree",
    "Neighbours",
    "Plan",
    "PureEpsilon",
    "PureLength",
    "Release",
    "best_tree",
    "choose_release",
    "counter_rmse",
    "fresh_rmse",
]
