"""Withdrawing and offering items of a vendor from the command line."""

from __future__ import annotations

import asyncio

import pytest

from hushstream.agents.worker.deployment import load, prepare, read_config
from hushstream.ops.connection import Connection
from hushstream.ops.live import copy_async
from hushstream.schemas import codec

MALL = """\
system: pdap
deployment: mall
vendors: [{name: north, items: {capacity: 3}}, {name: south, items: {capacity: 4, reserved: 1}}]
features: {dimension: 2}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mall")
    (folder / "mall.yaml").write_text(MALL, encoding="utf-8")
    prepare(folder / "deployment", read_config(folder / "mall.yaml"))
    return folder / "deployment"


def test_a_change_of_an_item_is_a_record_among_what_the_vendor_asks(cli, bootstrap, folder):
    place = ("-d", folder, "--bootstrap", bootstrap)
    assert cli("topics", "apply", *place).code == 0
    said = cli("item", "withdraw", "3", "--party", "south", *place)
    assert (said.code, said.err) == (0, "")
    assert "south: withdraw 3: in the log; no vendor shows it from the next version of the model on" in said.out
    told = cli("item", "offer", "6", "--party", "south", *place, "--json")
    assert told.json == {"party": "south", "arm": 6, "change": "offer"}
    system = load(folder)
    logs = asyncio.run(copy_async(Connection(bootstrap, "mall."), system.partitions, ["contexts.south"]))
    records = [codec.decode(record.value) for record in logs.part(("contexts.south", 0)).records]
    assert [(name, fields["arm"], fields["offered"]) for name, fields in records] == [
        ("ArmChange", 3, False),
        ("ArmChange", 6, True),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("withdraw", "3", "--party", "north"), "arm: expected one of north's items, 0 to 2, got 3"),
        (("offer", "7", "--party", "south"), "arm: expected one of south's items, 3 to 6, got 7"),
        (("offer", "3", "--party", "east"), "expected one of its parties (north, south), got east"),
    ],
)
def test_what_is_not_a_vendors_own_is_refused_before_it_is_sent(refused, bootstrap, folder, arguments, message):
    assert message in refused("item", *arguments, "-d", folder, "--bootstrap", bootstrap)
