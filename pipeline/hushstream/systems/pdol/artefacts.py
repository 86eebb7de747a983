"""What is prepared for a PDOL deployment: nothing; graph and counters follow from the configuration alone."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine.declare.artefacts import Artefacts, Given
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.deployment import PdolSystem


def prepare(config: PdolConfig, given: Given) -> Mapping[str, bytes]:
    """Refuse what cannot be deployed; there is nothing to make.

    Raises:
        ConfigurationError: see `PdolSystem.of`.
        BadGraph: see `PdolSystem.of`.
    """
    PdolSystem.of(config)
    return {}


def assemble(config: PdolConfig, artefacts: Artefacts) -> PdolSystem:
    """The deployment of a configuration; raises as `PdolSystem.of`."""
    return PdolSystem.of(config, artefacts.public_dataset is not None)
