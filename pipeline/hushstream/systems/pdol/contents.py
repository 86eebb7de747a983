"""What the topics of a PDOL deployment hold of persons: a function of what leaves a node."""

from __future__ import annotations

from collections.abc import Iterator

from hushstream.privacy.promises.contents import Content, Form
from hushstream.systems.pdol.configuration import PdolConfig


def pdol_contents(config: PdolConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return tuple(_contents(config))


def _contents(config: PdolConfig) -> Iterator[Content]:
    yield Content("records", "labelled records", Form.CLEAR, "edge", True)
    yield Content("predictions", "what is predicted for each record", Form.CLEAR, "edge", True)
    if config.gossip is not None:
        yield Content("parameters", "each node's parameters after each record", Form.NOISED, "published", False)
        return
    form = Form.CLEAR if config.sharing.counter == "exact" else Form.NOISED
    yield Content("releases", "each domain's sum of gradients", form, "published", False)
    yield Content("models", "the weights of all, made of releases alone", form, "published", False)
