"""The prepared file of a collaborative deployment: ``relation.json`` with its users in order, and their ties."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom
from hushstream.engine.values import ConfigurationError
from hushstream.systems.colin.configuration import CollaborativeConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph

RELATION = "relation.json"
GRAPH = PreparedFrom("graph", "public edge list of the users: user,user[,weight] a line")
USERS = PreparedFrom("users", "with the graph: all users, one a line, for those without ties")


def prepare(config: CollaborativeConfig, given: Given) -> Mapping[str, bytes]:
    """Copy the graph of the users.

    Raises:
        ConfigurationError: there is none, or another one was prepared before.
        RelationError: a line of the edge list cannot be read, or the lines make no graph of the listed users.
    """
    artefacts = given.artefacts
    if GRAPH.name not in given.inputs:
        if not artefacts.has(RELATION):
            raise ConfigurationError("prepare: expected --graph with the users' public ties, got none")
        return {}
    graph = _graph(given)
    if artefacts.has(RELATION) and read_relation(artefacts).canonical() != graph.canonical():
        raise ConfigurationError(f"{artefacts.path(RELATION)}: expected the given graph or none, got another one")
    return {RELATION: graph.canonical()}


def assemble(config: CollaborativeConfig, artefacts: Artefacts) -> CollaborativeSystem:
    """Join a configuration with the graph of its users.

    Raises:
        ConfigurationError: the graph is missing or damaged.
        RelationError: the file has no graph of its users.
    """
    return CollaborativeSystem.of(config, read_relation(artefacts), artefacts.public_dataset is not None)


def read_relation(artefacts: Artefacts) -> SocialGraph:
    """The relation graph in its canonical form; raises as `assemble` does."""
    content = artefacts.json(RELATION, "users and their ties")
    try:
        users = [str(user) for user in content[0]]
        ties = [(users[one], users[other], float(weight)) for one, other, weight in content[1]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        where = artefacts.path(RELATION)
        raise ConfigurationError(f"{where}: expected users and their ties, got {type(error).__name__}") from None
    return SocialGraph.of_edges(ties, users)


def inputs_of(graph: SocialGraph) -> Mapping[str, tuple[str, str]]:
    """A graph as the files that preparation takes."""
    users, weights = graph.users, graph.weights
    lines = [
        f"{users[one]},{users[other]},{float(weights[one, other])!r}"
        for one, other in zip(*np.nonzero(np.triu(weights)), strict=True)
    ]
    return {GRAPH.name: ("graph", "\n".join(lines)), USERS.name: ("users", "\n".join(users))}


def _graph(given: Given) -> SocialGraph:
    """From lines ``user,user`` or ``user,user,weight``."""
    names = None
    if USERS.name in given.inputs:
        names = [line.strip() for line in given.inputs[USERS.name][1].splitlines() if line.strip()]
    return SocialGraph.parse(given.inputs[GRAPH.name][1], names)
