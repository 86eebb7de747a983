"""The call that changes the catalogue, for operators: items come, change, go and come back while everything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hushstream.client.items import Item
from hushstream.client.items import Items as Catalogue
from hushstream.engine.catalogue import (
    LONGEST_CAP_SECONDS,
    MAX_TITLE_BYTES,
    MOST_CAP_SHOWS,
    Cap,
    CatalogueFull,
    ItemRefused,
    StaleCatalogue,
)
from hushstream.gateway.conversation.calls import Answered, Asked, Call
from hushstream.gateway.conversation.remembered import in_time
from hushstream.gateway.conversation.translation import Id
from hushstream.gateway.problems import Problem

MOST_AT_ONCE = 10_000
"""The most items of one request."""
ATTEMPTS = 3
"""How often a change is made anew that somebody else's came before."""


class CapPut(Asked):
    """How often one user is shown an item, at most."""

    shows: Annotated[int, Field(ge=1, le=MOST_CAP_SHOWS)]
    within_seconds: Annotated[int, Field(ge=1, le=LONGEST_CAP_SECONDS)]


class ItemPut(Asked):
    """An item as it shall be offered."""

    item: Annotated[Id, Field(description="Its id, as the application names it.")]
    title: Annotated[str, Field(max_length=MAX_TITLE_BYTES, description="The name that people read.")] = ""
    features: Annotated[
        dict[str, Any], Field(default_factory=dict, description="Its public features by name, as declared.")
    ]
    pinned: Annotated[bool, Field(description="Shown before all items that are not pinned, where allowed.")] = False
    cap: Annotated[CapPut | None, Field(description="Its cap for each user; null for none.")] = None


class CatalogueAsked(Asked):
    """Items to offer and items to stop showing."""

    items: Annotated[
        tuple[ItemPut, ...],
        Field(max_length=MOST_AT_ONCE, description="New or retired ones, or ones that change."),
    ] = ()
    retire: Annotated[tuple[Id, ...], Field(max_length=MOST_AT_ONCE, description="Ids that are shown no more.")] = ()


class CatalogueAnswered(Answered):
    """What became of the items."""

    version: Annotated[int, Field(description="Version of the catalogue with all of them.")]
    added: int
    changed: int
    restored: int
    retired: int
    unchanged: int


CATALOGUE = Call(
    "catalogue",
    "Change the catalogue (operators)",
    "Nothing is changed where one item cannot be taken. Half a megabyte of changes is one version, all or none; more "
    "are a few. Learners show the items from their next batch on; no worker restarts, no epsilon is spent. Decide by "
    "stock and contracts, not by clicks: the catalogue is public. `GET /v1/catalogue` shows it.",
    CatalogueAsked,
    CatalogueAnswered,
    ("not-an-operator", "bad-item", "catalogue-full", "catalogue-changed", "log-unavailable"),
    for_operators=True,
)


async def put(items: Catalogue, asked: CatalogueAsked, seconds: float) -> CatalogueAnswered:
    """Answer `CATALOGUE`.

    Args:
        items: the catalogue.
        asked: the body.
        seconds: how long the log may take.

    Raises:
        Problem: an item cannot be taken, there is no room, or others change the catalogue all the time.
    """
    if not items.named:
        raise Problem("bad-item", "items: expected a deployment whose items have names (`items.named`), got another")
    given = [
        Item(one.item, one.title, one.features, pinned=one.pinned, cap=Cap(**dict(one.cap)) if one.cap else None)
        for one in asked.items
    ]
    for _ in range(ATTEMPTS):
        try:
            found = await in_time(items.put(given, asked.retire), seconds)
        except StaleCatalogue:
            continue
        except CatalogueFull as error:
            raise Problem("catalogue-full", str(error)) from None
        except ItemRefused as error:
            raise Problem("bad-item", str(error)) from None
        return CatalogueAnswered(**found._asdict())
    raise Problem("catalogue-changed")


def whole(items: Catalogue) -> Mapping[str, Any]:
    """The content of ``GET /v1/catalogue``, as far as the catalogue was read."""
    rows = [
        {
            "item": one.item,
            "title": one.title,
            "features": dict(one.features),
            "offered": one.offered,
            "since": one.since,
            "pinned": one.pinned,
            "cap": None if one.cap is None else one.cap._asdict(),
        }
        for one in items.known()
    ]
    return {"version": items.version, "items": rows, "left_out": list(items.left_out())}
