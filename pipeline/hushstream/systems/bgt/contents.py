"""What the topics of a BGTplanner deployment hold of persons: a function of what leaves a user."""

from __future__ import annotations

from collections.abc import Iterator

from hushstream.engine.declare.topics import contents_on
from hushstream.privacy.promises.contents import Content, Form
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.topics import TOPICS

TRUSTED = frozenset({"edge", "shuffler"})

_content = contents_on(TOPICS, TRUSTED)


def bgt_contents(config: BgtConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return tuple(_contents(config))


def _contents(config: BgtConfig) -> Iterator[Content]:
    yield _content("ratings", "ratings, with the user's name", Form.CLEAR)
    yield _content("predictions", "what each question's user is expected to rate", Form.CLEAR)
    yield _content("updates", "slots, without a name", Form.CLEAR)
    form = Form.CLEAR if config.release.noise == "exact" else Form.NOISED
    yield _content("releases", "sums over all users of a round", form)
    yield _content("models", "biases and factors of items, made of releases alone", form)
    yield _content("rounds", "what is asked for next, made of releases alone", form)
