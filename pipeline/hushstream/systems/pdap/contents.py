"""What the topics of a P-DAP deployment hold of persons.

Rewards alone are protected. Which cell a context lies in, its home, which arm was shown and when is held to be public
by the relation, yet it is of persons: where it stands in clear on published topics, it is said to.
"""

from __future__ import annotations

from hushstream.engine.declare.topics import contents_on
from hushstream.privacy.promises.contents import Content, Form
from hushstream.systems.pdap.topics import TOPICS

TRUSTED = frozenset({"edge", "counter"})

_content = contents_on(TOPICS, TRUSTED)


def pdap_contents() -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return (
        _content("contexts", "each context, with the user's name and home vendor", Form.PUBLIC),
        _content("clicks", "what a user was shown and how it was rewarded, with the user's name", Form.CLEAR),
        _content("decisions", "the arm decided for each event id", Form.PUBLIC),
        _content("outcomes", "each reward, with cell and arm, by an opaque name of its event", Form.CLEAR),
        _content("forwards", "cell, home vendor and arm of contexts that got another vendor's arm", Form.PUBLIC),
        _content("releases", "sums of rewards of disjoint blocks of events, by cell and arm", Form.NOISED),
        _content("releases", "how many events each block has, and how many contexts came to each cell", Form.PUBLIC),
        _content("models", "tickets of each cell, made of releases alone", Form.NOISED),
    )
