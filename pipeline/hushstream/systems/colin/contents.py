"""What the topics of a collaborative deployment hold of persons: a function of how rewards are released.

Rewards alone are protected. Who was shown which features is held to be public by the relation, yet it is of persons:
it stands in clear on published topics, and is said to.
"""

from __future__ import annotations

from collections.abc import Iterator

from hushstream.engine.declare.topics import contents_on
from hushstream.privacy.promises.contents import Content, Form
from hushstream.systems.colin.configuration import ContinualConfig
from hushstream.systems.colin.topics import TOPICS

TRUSTED = frozenset({"edge", "counter"})

_content = contents_on(TOPICS, TRUSTED)


def collaborative_contents(release: ContinualConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return (*_edge(), *_released(release))


def _edge() -> Iterator[Content]:
    yield _content("contexts", "features of the arms on offer, with the user's name", Form.PUBLIC)
    yield _content("clicks", "what a user was shown and how it was rewarded, with the user's name", Form.CLEAR)
    yield _content("decisions", "the arm decided for each event id", Form.PUBLIC)


def _released(release: ContinualConfig) -> Iterator[Content]:
    if release.noise_at == "server":
        yield _content("rewards", "each reward, with the user's number and the features shown", Form.CLEAR)
    form = Form.CLEAR if release.mechanism == "exact" else Form.NOISED
    yield _content("releases", "each user's sums of feature times reward, by the user's number", form)
    yield _content("releases", "which features each user was shown, by the user's number", Form.PUBLIC)
    yield _content("models", "each user's parameters, made of releases alone", form)
