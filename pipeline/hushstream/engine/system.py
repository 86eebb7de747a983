"""What every system gives to those who drive it: its roles, its counts, its identity, its promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, get_args

from hushstream.engine.budget import BudgetFacts, SpendingTerms
from hushstream.engine.configuration import PartitionConfig
from hushstream.privacy.guarantee import Guarantee

RoleName = Literal["learner", "shuffler", "counter", "aggregator"]
"""Every role of any system, in the order in which data flows."""

ALL_ROLES: tuple[RoleName, ...] = get_args(RoleName)


class DeploymentValues(Protocol):
    """What the configurations of all systems have in common."""

    @property
    def deployment(self) -> str: ...
    @property
    def arms(self) -> int: ...
    @property
    def public_dataset(self) -> bool: ...
    @property
    def partitions(self) -> PartitionConfig: ...


class System(Protocol):
    """A configuration joined with what was prepared for it."""

    @property
    def name(self) -> str:
        """``p2b`` or ``colin``."""

    @property
    def config(self) -> DeploymentValues:
        """The configuration."""

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for the configuration and what was prepared."""

    @property
    def roles(self) -> tuple[RoleName, ...]:
        """Its roles, in the order in which data flows."""

    @property
    def holdout(self) -> bool:
        """Whether some users are never answered by a model, and the lift over them is released."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions by what is counted: learner, shuffler, counter, lines, scopes."""

    def guarantee(self) -> Guarantee:
        """What the configured releases promise, to whom, over a lifetime."""

    @property
    def budgets(self) -> tuple[BudgetFacts, ...]:
        """What may be spent, and how much of what is planned fits; one for each thing that is released."""

    @property
    def ledgers(self) -> Mapping[str, SpendingTerms]:
        """What the releases cost that are entered on each ledger topic, and out of which limit."""
