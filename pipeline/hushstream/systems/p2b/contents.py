"""What the topics of a p2b deployment hold of persons: a function of the configuration, and of whether it is a replay.

``hosted``: contexts, clicks and decisions stand in clear in the edge zone, whose workers are the operator's. ``edge``:
learners are agents on users' devices, there is no learner worker, and a slot is the first that the operator sees.
"""

from __future__ import annotations

from collections.abc import Iterator

from hushstream.engine.declare.topics import contents_on
from hushstream.privacy.promises.contents import Content, Form
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.summed import summed_of
from hushstream.systems.p2b.topics import TOPICS

TRUSTED = frozenset({"edge", "shuffler"})

_content = contents_on(TOPICS, TRUSTED)


def p2b_contents(config: P2BConfig, public_dataset: bool = False) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows.

    Args:
        config: the configuration.
        public_dataset: whether a public dataset is replayed: its interactions then travel in clear as well.
    """
    return (*_edge(config), *_beyond(config, public_dataset), *_lift(config), *_items(config))


def _edge(config: P2BConfig) -> Iterator[Content]:
    if config.kind == "hosted":
        yield _content("contexts", "every context, with the user's name", Form.CLEAR)
        yield _content("clicks", "what a user was shown and how it was rewarded, with the user's name", Form.CLEAR)
        yield _content("decisions", "the arm decided for each event id, which follows the user's clicks", Form.CLEAR)
    slot = f"one slot a user, without identity: {summed_of(config).in_a_slot}"
    yield _content("reports", slot, Form.SEALED if config.slot.sealed else Form.CLEAR)


def _beyond(config: P2BConfig, public_dataset: bool) -> Iterator[Content]:
    summed = summed_of(config)
    compared = public_dataset and summed.compares
    if compared:
        yield _content("interactions", "context, arm and reward of the interactions that slots report", Form.CLEAR)
    cells, form = summed.crowds
    yield _content("crowds", cells, form)
    yield _content("models", "the model, made of crowds alone", form)
    if summed.parts > 1:
        yield _content("model-parts", "the model's arrays, which are larger than a record, made of crowds alone", form)
    if config.devices:
        yield _content("statements", "the model as devices take it, made of crowds alone", form)
    if compared:
        yield _content("models", "the non-private track's model, made of exact interactions", Form.CLEAR)


def _lift(config: P2BConfig) -> Iterator[Content]:
    if config.lift.holdout:
        yield _content("lift", "running counts of what was shown and rewarded, by group", Form.NOISED)
    elif config.counted is not None:
        yield _content("lift", "running counts of answers, by item, by agreement and by reward", Form.NOISED)


def _items(config: P2BConfig) -> Iterator[Content]:
    if config.items_from_requests:
        what = "ids and public features of items as requests named them first, published without noise"
        yield _content("items", what, Form.PUBLIC)
