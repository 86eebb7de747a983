"""What the topics of a BGTplanner deployment hold of persons: a function of what leaves a user."""

from __future__ import annotations

from collections.abc import Iterator

from hushstream.privacy.promises.contents import Content, Form
from hushstream.systems.bgt.configuration import BgtConfig


def bgt_contents(config: BgtConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return tuple(_contents(config))


def _contents(config: BgtConfig) -> Iterator[Content]:
    yield Content("ratings", "ratings, with the user's name", Form.CLEAR, "edge", True)
    yield Content("predictions", "what each question's user is expected to rate", Form.CLEAR, "edge", True)
    yield Content("updates", "slots, without a name", Form.CLEAR, "shuffler", True)
    form = Form.CLEAR if config.release.noise == "exact" else Form.NOISED
    yield Content("releases", "sums over all users of a round", form, "published", False)
    yield Content("models", "biases and factors of items, made of releases alone", form, "published", False)
    yield Content("rounds", "what is asked for next, made of releases alone", form, "published", False)
