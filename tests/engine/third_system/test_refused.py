"""A declaration that leaves something open, or does not hold together, gets past no import and no start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import require_live
from hushstream.engine.declare import topics
from hushstream.engine.declare.declaration import Kind
from hushstream.engine.declare.role import DeclarationError, releasing_role
from hushstream.engine.values import ConfigurationError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PartitionRule

FIND = "from hushstream.systems.catalogue import kinds; print(*kinds())"
FLAGS = ("noised", "names_users", "tombstones", "ticks", "private_lag")


def started(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process that finds this package beside the product."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )


@pytest.fixture
def edited(package: Path, tmp_path: Path) -> Any:
    """A copy of the other package with one place of a file changed."""

    def edit(file: str, old: str, new: str) -> Path:
        shutil.copytree(package, tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__"))
        path = tmp_path / "package" / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")
        return tmp_path / "package"

    return edit


def test_the_package_as_it_is_gets_past_import(package: Path) -> None:
    done = started(package, "-c", FIND)
    assert done.stdout.split()[-1] == "poll", done.stderr


@pytest.mark.parametrize("flag", FLAGS)
def test_a_topic_whose_privacy_flag_is_left_out_does_not_get_past_import(edited: Any, flag: str) -> None:
    value = {"names_users": "True", "tombstones": "True", "ticks": "True"}.get(flag, "False")
    package = edited("hushstream_poll/topics.py", f"    {flag}={value},\n", "")
    done = started(package, "-c", FIND)
    assert done.returncode != 0
    assert f"TypeError: Topic.__init__() missing 1 required keyword-only argument: '{flag}'" in done.stderr


def test_every_privacy_flag_of_a_topic_is_asked_for(kind: Kind) -> None:
    fields = {name for name, field in type(kind.topics[0]).__dataclass_fields__.items() if field.type == "bool"}
    # Most systems have one party; of a topic that one party alone may open it is said.
    assert fields - {"each"} == set(FLAGS)


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("zone", ("zone=BALLOTS,",)),
        ("key_zone", ("key_zone=BALLOTS,",)),
        ("private_work", ("private_work=False,", "outcomes=_OUTCOMES,", "reasons=(UNKNOWN_OPTION,),")),
        ("outcomes", ("outcomes=_OUTCOMES,", "reasons=(UNKNOWN_OPTION,),")),
    ],
)
def test_a_role_that_leaves_out_what_it_means_for_privacy_does_not_get_past_import(
    edited: Any, what: str, lines: tuple[str, ...]
) -> None:
    """The first of the lines is left out; those behind it say which role's it is."""
    old, new = ("".join(f"        {line}\n" for line in found) for found in (lines, lines[1:]))
    done = started(edited("hushstream_poll/system.py", old, new), "-c", FIND)
    assert done.returncode != 0
    assert f"TypeError: Role.__init__() missing 1 required keyword-only argument: '{what}'" in done.stderr


@pytest.mark.parametrize("left_out", ["private_work", "outcomes", "charges", "writes"])
def test_the_short_form_of_a_releasing_role_asks_for_what_it_cannot_know(kind: Kind, left_out: str) -> None:
    tally = kind.roles[0]
    said: dict[str, Any] = {"inputs": ("votes",), "journal": tally.journal, "writes": ("tallies", "spent-on-votes")}
    said |= {"homes": tally.homes, "charges": "vote", "private_work": False, "outcomes": tally.outcomes}
    short = releasing_role("tally", tally.zone, tally.make, reasons=tally.reasons, **said)
    assert replace(short, gauges=tally.gauges) == tally
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{left_out}'"):
        releasing_role("tally", tally.zone, tally.make, **{name: one for name, one in said.items() if name != left_out})


@pytest.mark.parametrize(
    ("form", "flags"), [("requests", ("ticks", "private_lag")), ("unnamed", ("noised", "ticks", "private_lag"))]
)
def test_the_short_forms_of_topics_ask_for_each_flag_that_differs(form: str, flags: tuple[str, ...]) -> None:
    make = {"requests": topics.requests, "unnamed": partial(topics.unnamed, rule=PartitionRule.TRACK)}[form]
    given: dict[str, Any] = {"name": "votes", "schemas": ("Tick",), "zone": "ballots", "count": "ballots"}
    assert make(**given, **dict.fromkeys(flags, True)).private_lag
    for flag in flags:
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{flag}'"):
            make(**given, **dict.fromkeys(set(flags) - {flag}, True))


def test_the_short_form_of_a_published_topic_asks_whether_it_is_noised_and_how_long_it_is_kept() -> None:
    assert topics.published("tallies", "Tally", kept_ms=None, noised=True).noised
    with pytest.raises(TypeError, match="missing 2 required keyword-only arguments: 'kept_ms' and 'noised'"):
        partial(topics.published, "tallies", "Tally")()


def changed(kind: Kind, **fields: Any) -> Kind:
    """The kind with another tally."""
    tally, *others = kind.roles
    return replace(kind, roles=(replace(tally, **fields), *others))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"inputs": ("voted",)}, r"expected topics among .*votes.*, got voted$"),
        ({"journal": "journal-tally"}, r"expected topics among .*, got journal-tally$"),
        ({"writes": ("tallies", "ledger", "dead-letters-ballots")}, r"expected topics among .*, got ledger$"),
        ({"broadcasts": ("models",)}, r"expected topics among .*, got models$"),
        ({"marks": "marks-tally"}, r"expected topics among .*, got marks-tally$"),
        ({"marks": None}, r"expected a topic of marks, since it writes tallies, spent-on-votes, got none"),
        ({"zone": "edge"}, r"expected a zone among ballots, board, got edge$"),
        ({"key_zone": "ballot"}, r"expected a zone among ballots, board, got ballot$"),
        ({"zone": "published"}, r"expected a zone among ballots, board, got published$"),
        ({"journal": "votes"}, r"expected a journal, whose first record is a Genesis, got votes$"),
        ({"writes": ("tallies", "spent-on-votes")}, r"expected it to write the dead letters of zone ballots"),
    ],
)
def test_a_role_that_names_what_is_not_there_is_refused_in_words(kind: Kind, fields: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as caught:
        changed(kind, **fields)
    assert str(caught.value).startswith("system poll: role tally: ")


def test_a_topic_that_is_declared_twice_is_refused(kind: Kind) -> None:
    with pytest.raises(DeclarationError, match="system poll: expected each topic once, got votes again"):
        replace(kind, topics=(*kind.topics, kind.topic("votes")))


def test_a_zone_without_a_topic_for_its_dead_letters_is_refused(kind: Kind) -> None:
    left = tuple(topic for topic in kind.topics if topic.name != "dead-letters-ballots")
    tally = replace(kind.roles[0], writes=("tallies", "spent-on-votes"))
    said = r"there is no such topic.*; add topics\.dead_letters\('ballots', 'ballots', each=False\)$"
    for role in (tally, kind.roles[0]):
        with pytest.raises(DeclarationError, match=said):
            replace(kind, topics=left, roles=(role, *kind.roles[1:]))


OWN_NAME = "role tally of zone board: expected a name .*, got tally, as role tally of zone ballots"
ALIKE: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "name": ({"name": "tally"}, OWN_NAME),
    "name and journal": ({"name": "tally", "journal": "journal-ballots"}, OWN_NAME),
    "journal": (
        {"journal": "journal-ballots"},
        "role board of zone board: expected a journal .*, got journal-ballots, as role tally of zone ballots",
    ),
}


@pytest.mark.parametrize(("fields", "said"), ALIKE.values(), ids=ALIKE.keys())
def test_two_roles_of_one_name_or_journal_are_refused(kind: Kind, system: Any, fields: Any, said: str) -> None:
    """A driver would find one of the two alone, and end far from here."""
    said += r" has; .*`publishing_role\(name=\.\.\., journal=\.\.\.\)`"
    for declared, where in ((kind, "system poll"), (system, "deployment drinks")):
        tally, board = declared.roles
        with pytest.raises(DeclarationError, match=f"{where}: {said}"):
            replace(declared, roles=(tally, replace(board, **fields)))


def test_a_role_may_have_several_forms_and_a_deployment_has_one_of_them(kind: Kind, system: Any) -> None:
    tally, board = kind.roles
    replace(kind, roles=(tally, replace(tally, reasons=()), board))
    tally, board = system.roles
    with pytest.raises(DeclarationError, match="deployment drinks: role tally of zone ballots: expected a name"):
        replace(system, roles=(tally, replace(tally, reasons=()), board))


def test_a_record_that_nobody_can_encode_is_refused(kind: Kind) -> None:
    with pytest.raises(HushstreamError, match="topic votes: expected known schemas, got unknown"):
        replace(kind.topic("votes"), schemas=("Vote", "Ballot"))


def test_a_count_that_a_deployment_does_not_give_is_refused(system: Any) -> None:
    with pytest.raises(DeclarationError, match=r"topic dead-letters-extra: expected a count among .*, got 'extra'"):
        replace(system, topics=(*system.topics, topics.dead_letters("extra", "extra")))
    tally = replace(system.roles[0], homes="tally")
    with pytest.raises(DeclarationError, match=r"role tally: expected a count among .*, got 'tally'"):
        replace(system, roles=(tally, *system.roles[1:]))


def test_two_packages_with_a_system_of_one_name_are_refused(edited: Any) -> None:
    package = edited("hushstream_poll/configuration.py", 'NAME = "poll"', 'NAME = "p2b"')
    done = started(package, "-c", FIND)
    assert "two packages offer a system named 'p2b'; remove one of them" in done.stderr


def test_an_entry_point_that_offers_something_else_is_refused(edited: Any) -> None:
    package = edited("hushstream_poll-1.0.dist-info/entry_points.txt", "system:KIND", "system:ROLES")
    done = started(package, "-c", FIND)
    assert "entry point poll of hushstream.systems: expected a Kind, got tuple" in done.stderr


def test_a_schema_under_a_name_of_the_product_is_refused(edited: Any) -> None:
    package = edited("hushstream_poll/avro/Vote/v1.avsc", '"name": "Vote"', '"name": "Tick"')
    (package / "hushstream_poll" / "avro" / "Vote").rename(package / "hushstream_poll" / "avro" / "Tick")
    done = started(package, "-c", FIND)
    assert re.search(r"SchemaError: Tick: expected one schema of this name, got two", done.stderr)


def test_a_release_that_is_not_private_as_stated_does_not_run_live(system: Any, tmp_path: Path) -> None:
    promises = system.promises
    open_content = replace(promises.releases.contents[1], form=promises.releases.contents[0].form)
    releases = promises.releases.with_contents((promises.releases.contents[0], open_content))
    priced = system.core.priced._replace(promises=replace(promises, releases=releases))
    leaking = replace(system, core=replace(system.core, priced=priced))
    require_live(system, KeySource(tmp_path))
    with pytest.raises(ConfigurationError, match="content leaves un-noised on tallies"):
        require_live(leaking, KeySource(tmp_path))
