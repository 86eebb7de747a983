"""Loads a deployment's own check of devices' attestations, from the entry points `hushstream.attestations`.

    [project.entry-points."hushstream.attestations"]
    play = "shop.attestation:Check"

The class is made without arguments. Its ``admits`` gets the header `Hushstream-Attestation` (None if it is absent) and
a digest of the body that it should belong to. Evidence that differs from device to device is an id: a deployment that
requires such evidence learns who sends a slot, which the guarantee does not cover.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol

from hushstream.engine.values import ConfigurationError

GROUP = "hushstream.attestations"
HEADER = "Hushstream-Attestation"


class Attestation(Protocol):
    """Decides whether a request is accepted."""

    async def admits(self, evidence: str | None, body_digest: bytes) -> bool:
        """Whether the evidence is valid for a body with this SHA-256."""


def attestation_of(name: str | None) -> Attestation | None:
    """The check with this name; None if ``name`` is None.

    Raises:
        ConfigurationError: nothing of that name is installed.
    """
    if name is None:
        return None
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted(one.name for one in entry_points(group=GROUP))) or "none"
        raise ConfigurationError(f"devices.attestation: expected one that is installed ({known}), got {name}")
    made: Attestation = next(iter(found)).load()()
    return made
