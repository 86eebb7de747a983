"""What every page about a deployment begins with: what it promises a person, in a sentence and a picture."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from hushstream.privacy.sentence import percent

_BEFORE = "What somebody who held a thing as likely as not may come to believe of it, at most:"


def promised(sentence: str, odds: Iterable[tuple[str, float]]) -> Markup:
    """The head of a page.

    Args:
        sentence: `Guarantee.sentence`.
        odds: `Guarantee.odds`, as label and share; none where nothing is promised.
    """
    head = Markup('<p class="promised"><strong>{}</strong></p>\n').format(sentence)
    bars = Markup("").join(_bar(label, share) for label, share in odds)
    if not bars:
        return head
    return head + Markup('<div class="odds"><p>{}</p>\n{}</div>\n').format(_BEFORE, bars)


def _bar(label: str, share: float) -> Markup:
    bar = Markup('<svg aria-hidden="true"><rect width="{:.1f}%" height="100%"/></svg>').format(100 * share)
    return Markup("<div><span>{}</span>{}<b>{}</b></div>\n").format(label, bar, percent(share))
