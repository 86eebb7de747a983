"""What is prepared for a P-DAP deployment: nothing but its configuration, from which all that is public follows."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine.declare.artefacts import Artefacts, Given
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.deployment import PdapSystem


def prepare(config: PdapConfig, given: Given) -> Mapping[str, bytes]:
    """No file is made."""
    return {}


def assemble(config: PdapConfig, artefacts: Artefacts) -> PdapSystem:
    """A deployment from its configuration.

    Raises:
        ConfigurationError: the mark of a replay is damaged, or what follows from the configuration cannot be.
    """
    return PdapSystem.of(config, artefacts.public_dataset is not None)
