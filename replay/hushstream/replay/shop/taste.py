"""The taste of the shop's visitors: they like goods for their country and for their age."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from hushstream.client.items import Item

COUNTRIES = ("fr", "de", "se")
AGES = ("young", "old")

STOCK = (
    Item("beret", "Beret", {"country": "fr", "age": "young"}),
    Item("novel", "Novel", {"country": "fr", "age": "old"}),
    Item("beer-mug", "Beer mug", {"country": "de", "age": "young"}),
    Item("clock", "Clock", {"country": "de", "age": "old"}),
    Item("ski-wax", "Ski wax", {"country": "se", "age": "young"}),
    Item("wool-blanket", "Wool blanket", {"country": "se", "age": "old"}),
)
"""The items of a new shop: each kind of visitor has one favourite."""

NOVELTY = Item("waffle-iron", "Waffle iron", {"country": "de", "age": "old"})
"""An item that may be added later: an old German visitor then has two favourites."""

_SELDOM, _LIKED = 0.05, 0.35


@dataclass(frozen=True, slots=True)
class Visitor:
    """A visitor, who comes several times."""

    name: str
    country: str
    age: str

    @property
    def context(self) -> dict[str, str]:
        """The context of a visit: what the shop knows about the visitor."""
        return {"country": self.country, "age": self.age}

    def chance(self, made_for: Mapping[str, Any]) -> float:
        """The probability that an item with these features is bought when it is shown."""
        liked = sum(bool(made_for.get(name) == value) for name, value in self.context.items())
        return _SELDOM + _LIKED * liked


KINDS = tuple(Visitor("", country, age) for country, age in product(COUNTRIES, AGES))
"""One visitor of each kind; all kinds are equally frequent."""


def visitors(count: int, draws: random.Random) -> list[Visitor]:
    """Draw ``count`` visitors of random kinds."""
    return [Visitor(f"visitor-{number}", draws.choice(COUNTRIES), draws.choice(AGES)) for number in range(count)]


def blind_chance(goods: Iterable[Mapping[str, Any]]) -> float:
    """The probability that an item picked at random among items with these features is bought; 0 without items."""
    found = [kind.chance(one) for one in goods for kind in KINDS]
    return sum(found) / len(found) if found else 0.0


def best_chance(goods: Iterable[Mapping[str, Any]]) -> float:
    """The probability that each visitor's favourite among items with these features is bought; 0 without items."""
    each = list(goods)
    return sum(max(map(kind.chance, each)) for kind in KINDS) / len(KINDS) if each else 0.0
