"""A deployment's own check of what devices attest: an entry point of the group `hushstream.attestations`.

    [project.entry-points."hushstream.attestations"]
    play = "shop.attestation:Check"

The class is made without arguments; its ``admits`` gets the header `Hushstream-Attestation` (None without one) and a
digest of the body that it should be for. Evidence that differs from device to device is an id: whoever asks for such
evidence learns who sends a slot, and the guarantee says nothing of that.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol

from hushstream.engine.values import ConfigurationError

GROUP = "hushstream.attestations"
HEADER = "Hushstream-Attestation"


class Attestation(Protocol):
    """Says whether a request may come in."""

    async def admits(self, evidence: str | None, body_digest: bytes) -> bool:
        """Whether evidence is good, for a body with this SHA-256."""


def attestation_of(name: str | None) -> Attestation | None:
    """The check of a name; None where none is asked for.

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
