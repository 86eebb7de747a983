"""What `hushstream up` refuses of a changed file, and of copies of a folder whose generation was closed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KEYS, KeySource, load, parse_config, prepare, read_config
from hushstream.broker import BrokerSettings, EmbeddedBroker
from hushstream.engine.declare.role import key_names
from hushstream.ops.connection import Connection
from hushstream.ops.ending import final_digests
from hushstream.ops.moving import keep, note_export, was_exported
from hushstream.ops.topics import apply_async
from hushstream.privacy.key_files import rotate
from hushstream.privacy.keys import generate_keys, key_path
from hushstream.replay.logged.drafts.deployment import Shop
from hushstream.replay.runners.generations import NextGeneration, current, generations, is_changed
from hushstream.replay.runners.stream import StreamPlace
from hushstream.replay.runners.up import move_out
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of

SHOP = {"deployment": "shop", "items": {"capacity": 2}}


def shop(system: str = "p2b", feature: str = "member", **changed: Any) -> Any:
    """A configuration; p2b's visits have a boolean of this name."""
    own: dict[str, Any] = {"features": {"dimension": 0}}
    if system == "p2b":
        own = {"features": {feature: {"kind": "boolean"}}, "expected_slots": 1000}
    return parse_config({**SHOP, "system": system, **own, **changed})


def begun(data: Path, config: Any) -> StreamPlace:
    """A first generation that has run, as `hushstream up` leaves it."""
    folder = data / "deployment"
    system = prepare(folder, config)
    generate_keys(folder / KEYS, key_names(system.roles))
    return StreamPlace(folder, None, None, data=data / "broker", marks=data.parent / "marks" / "shop")


def following(data: Path, config: Any, place: StreamPlace) -> NextGeneration:
    return NextGeneration(data, config, place, lambda line: None)


async def prepared(data: Path, place: StreamPlace) -> None:
    """End before the step at which the broker is closed: the next generation is prepared beside."""
    system, fresh = load(place.folder), data / "generation-2.new"
    prepare(fresh / "deployment", shop(feature="guest"))
    async with EmbeddedBroker(BrokerSettings(data=place.data)) as broker:
        there = Connection(broker.bootstrap, "shop.")
        await apply_async(there, system)
        keep(fresh / "final", " ".join(await final_digests(there, system)))
    keep(fresh / "identity", '"0123456789abcdef"')


async def close(place: StreamPlace) -> None:
    async with EmbeddedBroker(BrokerSettings(data=place.data)) as broker:
        await broker.close_for_ever()


async def closed(data: Path, place: StreamPlace) -> None:
    await prepared(data, place)
    await close(place)


async def is_closed(place: StreamPlace) -> bool:
    async with EmbeddedBroker(BrokerSettings(data=place.data)) as broker:
        return broker.closed


CHANGES = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"})


def killed_at(point: int, folder: Path, act: Callable[[], Any]) -> bool:
    """Whether a process that acts is killed before its change of this number to the files below a folder."""
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9), "it went on to its end, or was killed"
        return code == 9
    changes = itertools.count(1)

    def watch(event: str, given: tuple[Any, ...]) -> None:
        writes = event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes or event in CHANGES) and str(given[0]).startswith(str(folder)) and next(changes) == point:
            os._exit(9)

    sys.addaudithook(watch)
    code = 1
    try:
        act()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def refused(*_: Any) -> Any:
    raise AssertionError("what is closed is asked for and prepared no more")


def test_the_newest_generation_runs_and_a_file_of_one_that_has_ended_is_refused(tmp_path):
    files = [shop(feature=name) for name in ("member", "guest", "staff")]
    begun(tmp_path, files[0])
    assert not is_changed(tmp_path, files[0])
    assert is_changed(tmp_path, files[1])
    prepare(tmp_path / "generation-2" / "deployment", files[1])
    prepare(tmp_path / "generation-3.new" / "deployment", files[2])
    assert generations(tmp_path) == [tmp_path, tmp_path / "generation-2"]
    assert current(tmp_path) == tmp_path / "generation-2"
    assert not is_changed(tmp_path, files[1])
    assert is_changed(tmp_path, files[2])
    with pytest.raises(HushstreamError, match=r"got that of generation 1, which has ended; the newest one is in"):
        is_changed(tmp_path, files[0])


def test_what_cannot_go_on_is_refused_with_what_to_do(tmp_path):
    place, changed = begun(tmp_path / "shop", shop()), shop(feature="guest")
    following(tmp_path / "shop", changed, place)
    for config, there, said in (
        (shop(deployment="other"), place, "got that of another deployment or system: put it back, or begin anew"),
        (shop(system="bgt"), place, "got that of another deployment or system: put it back, or begin anew"),
        (changed, replace(place, data=None), "a Kafka: .* `hushstream prepare --start`"),
    ):
        with pytest.raises(HushstreamError, match=said):
            following(tmp_path / "shop", config, there)
    others = begun(tmp_path / "bgt", shop(system="bgt"))
    with pytest.raises(HushstreamError, match="with which system bgt cannot go on: put it back, or begin anew"):
        following(tmp_path / "bgt", shop(system="bgt", items={"capacity": 3}), others)
    rotate(key_path(place.folder / KEYS, "shuffler"))
    following(tmp_path / "shop", changed, place)
    rotate(key_path(place.folder / KEYS, "edge"))
    with pytest.raises(HushstreamError, match="only if the key of zone edge was never rotated"):
        following(tmp_path / "shop", changed, place)
    moved = begun(tmp_path / "moved", shop())
    note_export(tmp_path / "moved", tmp_path / "export")
    with pytest.raises(HushstreamError, match="its topics were moved to another broker"):
        following(tmp_path / "moved", changed, moved)


def test_a_drafted_file_goes_on_with_a_feature_and_a_country_without_its_one_line_of_measurement(tmp_path):
    """Catches a draft whose service can never change its features, and a refusal that does not name the line."""
    country = ["features:", "  country: {kind: category, vocabulary: [de, fr]}"]
    text = Shop(name="tea", items=4, features=country, users=20_000, visits=10).text()
    first = tmp_path / "tea.yaml"
    first.write_text(text, encoding="utf-8")
    core = prepare(tmp_path / "deployment", read_config(first)).core
    measured = text.replace("[de, fr]}", "[de, fr, pl]}\n  member: {kind: boolean}")
    unmeasured = "".join(line for line in measured.splitlines(True) if not line.startswith("measurement:"))
    succession = kind_of("p2b").succession
    assert succession is not None
    first.write_text(measured, encoding="utf-8")
    with pytest.raises(HushstreamError, match=r"delete `measurement`, which counts everybody anew$"):
        succession.told(core, read_config(first))
    first.write_text(unmeasured, encoding="utf-8")
    told = succession.told(core, read_config(first))
    assert "together at most epsilon 3, delta" in told
    assert told.endswith("(a delta below 1e-12 is the samplers' truncation, which is not compared)")


def test_the_export_of_a_deployment_that_is_not_the_newest_closes_nothing(tmp_path):
    """Catches a source that is closed for ever before the folder is found to be the one of an earlier generation."""
    place = begun(tmp_path, shop())
    newest = tmp_path / "generation-2"
    prepare(newest / "deployment", shop(feature="guest"))
    asyncio.run(is_closed(replace(place, data=newest / "broker")))
    with pytest.raises(
        HushstreamError, match=rf"--deployment: expected {newest / 'deployment'}, .* nothing was closed"
    ):
        asyncio.run(move_out(tmp_path, load(place.folder), tmp_path / "marks", tmp_path / "moved"))
    assert not was_exported(newest)
    assert not asyncio.run(is_closed(replace(place, data=newest / "broker")))


def test_a_closed_generation_has_one_successor_and_a_copy_has_none(tmp_path):
    """Catches a second life of the same numbers, and a successor that was prepared before more was released."""
    data, changed = tmp_path / "shop", shop(feature="guest")
    place = begun(data, shop())
    asyncio.run(closed(data, place))
    stale, copied = (shutil.copytree(data, tmp_path / name) for name in ("stale", "copied"))
    keep(stale / "generation-2.new" / "final", "00 00")
    keep(copied / "generation-2.new" / "identity", '"of another one"')
    with pytest.raises(HushstreamError, match="expected what the closed broker ends with, got an earlier state"):
        asyncio.run(following(stale, changed, replace(place, data=stale / "broker")).make(refused, refused))
    with pytest.raises(HushstreamError, match="with which generation 2 was begun"):
        asyncio.run(following(data, shop(feature="staff"), place).make(refused, refused))
    asyncio.run(following(data, changed, place).make(refused, refused))
    assert current(data) == data / "generation-2"
    assert json.loads((place.marks or data).joinpath("successor").read_text(encoding="utf-8")) == "0123456789abcdef"
    assert list((place.marks or data).glob("learner/*.closed"))
    with pytest.raises(HushstreamError, match="another folder went on as generation 2: this one is a copy"):
        asyncio.run(following(copied, changed, replace(place, data=copied / "broker")).make(refused, refused))
    assert KeySource(place.folder / KEYS).ring("edge").current == 0


@pytest.mark.slow
def test_whoever_is_killed_before_any_change_of_a_file_from_the_closing_on_goes_on_from_there(tmp_path):
    """As long as the broker is open nothing has changed; from then on the next generation alone begins, whole."""
    changed = shop(feature="guest")
    asyncio.run(prepared(tmp_path / "as it was" / "shop", begun(tmp_path / "as it was" / "shop", shop())))

    def end(home: Path) -> StreamPlace:
        data = home / "shop"
        return StreamPlace(data / "deployment", None, None, data=data / "broker", marks=home / "marks" / "shop")

    def go_on(home: Path) -> None:
        place = end(home)
        if not asyncio.run(is_closed(place)):
            asyncio.run(close(place))
        asyncio.run(following(home / "shop", changed, place).make(refused, refused))

    ended_open = ended_closed = 0
    for point in itertools.count(1):
        home = shutil.copytree(tmp_path / "as it was", tmp_path / str(point))
        data, place = home / "shop", end(home)
        if not killed_at(point, home, partial(go_on, home)):
            break
        if current(data) == data and not asyncio.run(is_closed(place)):
            ended_open += 1
            assert not list(home.glob("marks/**/*.closed")), "the old file goes on"
        else:
            ended_closed += 1
        if current(data) == data:
            go_on(home)
        check_begun(data, place, home / "marks" / "shop")
        shutil.rmtree(home)
    check_begun(data, place, home / "marks" / "shop")
    # The files of a note are opened and renamed, for each of three roles and for the successor's name.
    assert min(ended_open, ended_closed) > 3, (ended_open, ended_closed)


def check_begun(data: Path, place: StreamPlace, marks: Path) -> None:
    assert current(data) == data / "generation-2"
    assert not (data / "generation-2.new").exists()
    assert asyncio.run(is_closed(place))
    assert json.loads((marks / "successor").read_text(encoding="utf-8")) == "0123456789abcdef"
    assert {note.parent.name for note in marks.glob("*/*.closed")} == set(load(place.folder).role_names)
    with pytest.raises(HushstreamError, match="got that of generation 1, which has ended"):
        is_changed(data, shop())
