"""What a machine knows of its deployment, in every system."""

from __future__ import annotations

from typing import Protocol

from hushstream.engine.configuration import PartitionConfig, PrivacyConfig


class DeploymentValues(Protocol):
    """What the configurations of all systems have in common."""

    @property
    def deployment(self) -> str: ...
    @property
    def system(self) -> str: ...
    @property
    def privacy(self) -> PrivacyConfig: ...


class DecidingValues(DeploymentValues, Protocol):
    """What those have in common that decide for users among arms."""

    @property
    def arms(self) -> int: ...
    @property
    def partitions(self) -> PartitionConfig: ...


class Core(Protocol):
    """The object that the machines of a deployment work from."""

    @property
    def config(self) -> DeploymentValues:
        """The configuration."""

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for the configuration and what was prepared."""


class DecidingCore(Core, Protocol):
    """The same of a deployment that decides for users."""

    @property
    def config(self) -> DecidingValues:
        """The configuration."""
