"""Rewrites a ``deployment.yaml`` to the current names of keys; comments and values stay as they are written.

Only names and places of keys change, so the configuration and its digest stay the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path as FilePath
from typing import Any

import yaml

from hushstream.agents.worker.deployment import artefacts_of, parse_attributes, parse_config, system_named
from hushstream.agents.yaml_file import read_yaml
from hushstream.engine.configuration import canonical_form
from hushstream.engine.language import Language, Path
from hushstream.engine.values import ConfigurationError

_WIDTH = 118
"""A section of at most this many characters is written on one line."""


@dataclass(frozen=True, slots=True)
class Migration:
    """The result of a migration.

    Attributes:
        text: the new text of the file.
        renamed: the new name of each key that has another name or place now; None for a key that is no longer written.
        prepared: whether the digests are those of the whole deployment; otherwise they are of its configuration only.
        before: digest of the configuration in the old file.
        after: digest of the configuration in ``text``.
    """

    text: str
    renamed: Mapping[str, str | None]
    prepared: bool
    before: bytes
    after: bytes

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        digests = {"digest_before": self.before.hex(), "digest_after": self.after.hex()}
        return {"renamed": dict(self.renamed), "prepared": self.prepared, **digests}

    def as_text(self) -> str:
        """The result as lines of text."""
        what = "the deployment" if self.prepared else "the configuration"
        digests = f"digest of {what} before {self.before.hex()}, after {self.after.hex()}"
        if not self.renamed:
            return f"every key has its current name; {digests}"
        names = [f"  {old} is now {new}" if new else f"  {old} is gone" for old, new in self.renamed.items()]
        return "\n".join([f"keys with another name or place: {len(names)}; {digests}", *names])


def migrate(path: FilePath) -> Migration:
    """Read a configuration that may have former names of keys, and make its new text; nothing is written.

    Raises:
        ConfigurationError: the file cannot be read, or has a key that was never valid, or the new text would have
            another digest.
    """
    values, source = read_yaml(path), str(path)
    kind = system_named(values, source)
    try:
        text, renamed = migrated(path.read_text(encoding="utf-8-sig"), kind.language)
        before = parse_attributes(kind, kind.language.nested(kind.language.leaves(values)))
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None
    after = parse_config(yaml.safe_load(text), source)
    artefacts = artefacts_of(path.parent)
    prepared = any(artefacts.has(name) for name in kind.artefacts)

    def digest(config: Any) -> bytes:
        if prepared:
            return kind.assemble(config, artefacts).digest
        form = canonical_form(config, artefacts.public_dataset is not None)
        return hashlib.blake2b(form, digest_size=16).digest()

    found = Migration(text, renamed, prepared, digest(before), digest(after))
    if before != after or before.privacy != after.privacy or found.before != found.after:
        raise ConfigurationError(
            f"{source}: expected plain YAML, without anchors, aliases and tags, got something else"
        )
    return found


@dataclass
class _Leaf:
    """The text of a value, with the comments above it and behind it."""

    path: Path
    text: str
    value: Any
    line: int
    above: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)


def migrated(text: str, language: Language) -> tuple[str, Mapping[str, str | None]]:
    """Rewrite the text of a configuration with the current names of keys; also returns which keys were renamed.

    Args:
        text: a YAML mapping with each key once, as `hushstream.agents.yaml_file` reads it.
        language: the keys of its system.

    Raises:
        ConfigurationError: the text has a key that was never valid, or a value that no current key can express.
    """
    tree = yaml.compose(text, yaml.SafeLoader)
    found = list(_leaves(tree, (), text, language))
    places = language.renewed({one.path: one.value for one in found})
    head, tail = _comments(text, found, {one.path for one in found if (places[one.path][0] or ())[:1] == one.path[:1]})
    kept = [_renewed(one, *places[one.path]) for one in found if places[one.path][0] is not None]
    _hand_on([one for one in found if places[one.path][0] is None], found, kept)
    flow = any(isinstance(node, yaml.MappingNode) and node.flow_style for node in _nodes(tree))
    lines = [line for top in _tops(kept) for line in _written(top, kept, flow)]
    renamed = {old: new for old, (new, _) in places.items() if old != new}
    names = {".".join(old): None if new is None else ".".join(new) for old, new in renamed.items()}
    return ("\n".join([*head, *lines, *tail]) + "\n" if renamed else text), names


def _renewed(one: _Leaf, path: Path | None, value: Any) -> _Leaf:
    assert path is not None
    text = one.text if value == one.value else yaml.safe_dump(value).splitlines()[0]
    return _Leaf(path, text, value, one.line, one.above, one.behind)


def _hand_on(dropped: list[_Leaf], found: list[_Leaf], kept: list[_Leaf]) -> None:
    """Move the comments of removed keys to the next key, or to the last one, so that no comment is lost."""
    for one in dropped:
        after = [other for other in kept if other.line >= one.line] or kept[-1:]
        for other in after[:1]:
            other.above[:0] = [*one.above, *one.behind]


def _nodes(node: yaml.Node | None) -> Iterator[yaml.Node]:
    if node is not None:
        yield node
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _nodes(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _nodes(value)


def _leaves(node: yaml.Node | None, above: Path, text: str, language: Language) -> Iterator[_Leaf]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*above, str(key.value))
            declared = language.declares(path, _plain(value))
            if _has_below(value) and language.holds_keys(path) and not declared:
                yield from _leaves(value, path, text, language)
            else:
                yield _Leaf(path, _text(value, text), _plain(value), key.start_mark.line)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _leaves(value, (*above, str(number)), text, language)


def _has_below(node: yaml.Node) -> bool:
    """Whether a node has keys below it; an empty section counts as a value."""
    if isinstance(node, yaml.SequenceNode):
        return bool(node.value) and all(isinstance(item, yaml.MappingNode) for item in node.value)
    return isinstance(node, yaml.MappingNode) and bool(node.value)


def _plain(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    return loader.construct_document(node)


def _text(node: yaml.Node, text: str) -> str:
    """The text of a value, put on one line."""
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(_text(item, text) for item in node.value)}]"
    written = text[node.start_mark.index : node.end_mark.index].strip()
    # An anchor or a tag belongs to the text of its value.
    if isinstance(node, yaml.ScalarNode) and node.style is None and written.split("\n") == [node.value]:
        return written
    plain = yaml.safe_dump(_plain(node), default_flow_style=True, sort_keys=False, width=10**6)
    return plain.splitlines()[0]


def _comments(text: str, leaves: list[_Leaf], staying: Collection[Path]) -> tuple[list[str], list[str]]:
    """Give each comment to the value behind or above which it is written; returns those of the file's head and end.

    If several values are on one line, its comments go to the first value that stays in its section.
    """
    ends: dict[int, int] = {}
    for token in yaml.scan(text, yaml.SafeLoader):
        if token.end_mark.index > token.start_mark.index:
            ends[token.end_mark.line] = max(ends.get(token.end_mark.line, 0), token.end_mark.column)
    lines = text.splitlines()
    head = list(takewhile(lambda line: not line.strip() or line.startswith("#"), lines))
    above: list[str] = []
    for number in range(len(head), len(lines)):
        line = lines[number]
        said = line[ends.get(number, 0) :].strip()
        here = [one for one in leaves if one.line == number]
        if here:
            first = next((one for one in here if one.path in staying), here[0])
            first.above += above
            first.behind += [said] if said.startswith("#") else []
            above = []
        elif said.startswith("#"):
            above.append(said)
        elif not line.strip():
            above.append("")
    return head, above


def _tops(leaves: list[_Leaf]) -> list[str]:
    return list(dict.fromkeys(one.path[0] for one in leaves))


def _written(top: str, leaves: list[_Leaf], flow: bool) -> list[str]:
    """The lines of one top-level section."""
    mine = [one for one in leaves if one.path[0] == top]
    above = [line for one in mine[:1] for line in one.above]
    said = [comment for one in mine for comment in one.behind]
    later = any(one.above for one in mine[1:])
    inline = f"{top}: {_flow(_tree(mine)[top])}"
    fits = flow and len(said) < 2 and not later and len(inline) <= _WIDTH
    if fits or mine[0].path == (top,):
        return [*above, "  ".join([inline, *said])]
    return [*above, *_block({top: _tree(mine)[top]}, "", mine[0])]


def _tree(leaves: list[_Leaf]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for one in leaves:
        place = tree
        for part in one.path[:-1]:
            place = place.setdefault(part, {})
        place[one.path[-1]] = one
    return tree


def _is_list(tree: dict[str, Any]) -> bool:
    return bool(tree) and all(name.isdigit() for name in tree)


def _flow(tree: Any) -> str:
    if isinstance(tree, _Leaf):
        return tree.text
    if _is_list(tree):
        return f"[{', '.join(_flow(below) for below in tree.values())}]"
    return f"{{{', '.join(f'{name}: {_flow(below)}' for name, below in tree.items())}}}"


def _block(tree: dict[str, Any], indent: str, first: _Leaf) -> Iterator[str]:
    """The lines of a section; the comments above ``first`` are already written above the section."""
    for name, below in tree.items():
        if isinstance(below, _Leaf):
            yield from (f"{indent}{line}" if line else "" for line in below.above if below is not first)
            yield "  ".join([f"{indent}{name}: {below.text}", *below.behind])
        elif _is_list(below):
            yield f"{indent}{name}:"
            for item in below.values():
                yield f"{indent}- {_flow(item)}"
                yield from (f"{indent}  {comment}" for comment in _said(item, first))
        else:
            yield f"{indent}{name}:"
            yield from _block(below, f"{indent}  ", first)


def _said(tree: Any, first: _Leaf) -> Iterator[str]:
    if isinstance(tree, _Leaf):
        yield from (() if tree is first else [line for line in tree.above if line])
        yield from tree.behind
    else:
        for below in tree.values():
            yield from _said(below, first)
