"""What the topics of a PDOL deployment hold of persons: a function of what leaves a node."""

from __future__ import annotations

from collections.abc import Iterator

from hushstream.engine.declare.topics import contents_on
from hushstream.privacy.promises.contents import Content, Form
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.topics import TOPICS

TRUSTED = frozenset({"edge"})

_content = contents_on(TOPICS, TRUSTED)


def pdol_contents(config: PdolConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return tuple(_contents(config))


def _contents(config: PdolConfig) -> Iterator[Content]:
    yield _content("records", "labelled records", Form.CLEAR)
    yield _content("predictions", "what is predicted for each record", Form.CLEAR)
    if config.gossip is not None:
        yield _content("parameters", "each node's parameters after each record", Form.NOISED)
        return
    form = Form.CLEAR if config.sharing.counter == "exact" else Form.NOISED
    yield _content("releases", "each domain's sum of gradients", form)
    yield _content("models", "the weights of all, made of releases alone", form)
