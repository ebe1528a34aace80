"""Joints and frames by name: the right ones in every order, in bags, in tables made from bags, and in .npz."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from bag_writer import Message, named_joints, transforms, write_bag
from hypothesis import given
from hypothesis import strategies as st
from ocean_runtime import InputError
from ocean_runtime.arrays import Arrays
from ocean_runtime.bags import named_fields, open_bag, read_rows
from ocean_runtime.contract import Element
from ocean_runtime.message_fields import numeric_fields, parse_field, value
from ocean_runtime.tables import Row, Table, element

TF = "transforms[base_link].transform.translation.x"


def read(path: Path, *wanted: str | Element, max_age: float = 0.25) -> list[Row]:
    items = [item if isinstance(item, Element) else element(item) for item in wanted]
    with open_bag(path) as bag:
        return list(read_rows(bag, items, 10, max_age))


def turning(count: int = 12) -> list[Message]:
    """Two joints and two frames whose order changes from message to message; the elbow is at i, the wrist at -i."""
    found: list[Message] = []
    for i in range(count):
        angles = {"elbow": float(i), "wrist": float(-i)}
        frames = {"base_link": 10.0 + i, "laser": 99.0}
        turn = (lambda d: dict(reversed(d.items()))) if i % 2 else dict
        found += [
            (0.1 * i, "/joints", named_joints(turn(angles))),
            (0.1 * i, "/tf", transforms(turn(frames))),
        ]
    return found


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_bag_whose_order_of_names_changes(tmp_path: Path, storage: str) -> None:
    path = write_bag(tmp_path / "bag", turning(), storage)
    rows = read(path, "/joints:position[elbow]", "/joints:position[wrist] [rad]", f"/tf:{TF}")
    assert [row.values for row in rows] == [[i, -i, 10 + i] for i in range(12)]


def test_by_index_a_bag_whose_order_of_names_changes_is_refused(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", turning())
    with pytest.raises(
        InputError, match=r"by its index.*from elbow, wrist to wrist, elbow; write position\[NAME\]"
    ):
        read(path, "/joints:position[0]")
    with pytest.raises(InputError, match="from base_link, laser to laser, base_link"):
        read(path, "/tf:transforms[0].transform.translation.x")


def test_messages_of_other_joints_and_frames_are_passed_over(tmp_path: Path) -> None:
    """The arm and the gripper share a topic; each field holds the latest message that has it."""
    found: list[Message] = []
    for i in range(10):
        found += [
            (0.1 * i, "/joints", named_joints({"elbow": float(i)})),
            (0.1 * i + 0.05, "/joints", named_joints({"finger": -float(i)})),
        ]
    path = write_bag(tmp_path / "bag", found)
    rows = read(path, "/joints:position[elbow]", "/joints:position[finger]", max_age=0.15)
    assert [row.values for row in rows] == [[i, -i] for i in range(10)][: len(rows)] and len(rows) >= 9
    assert {row.episode for row in rows} == {"1"}
    # Where the gripper falls silent, its value is too old, whatever the arm says on the same topic.
    silent = [m for m in found if "finger" not in m[2].name or not 0.3 < m[0] < 0.7]
    rows = read(
        write_bag(tmp_path / "silent", silent),
        "/joints:position[elbow]",
        "/joints:position[finger]",
        max_age=0.15,
    )
    assert {row.episode for row in rows} == {"1", "2"}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("/joints:position[knee]", "no message of /joints has 'knee'; one has wrist, elbow"),
        ("/joints:velocity[elbow]", "asks for velocity of elbow, but a message of /joints has 0"),
        ("/joints:header[elbow]", "'header' in messages of /joints has no names; give an index"),
        ("/tf:transforms[laser].transform", "is not a number"),
        ("/joints:position[]", "is no field of a bag; write topic:path"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(tmp_path: Path, field: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        read(write_bag(tmp_path / "bag", turning()), field)


def test_what_an_index_takes_has_a_name(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", turning())
    with open_bag(path) as bag:
        (elbow, frame, named) = named_fields(
            bag,
            [
                parse_field(text)
                for text in (
                    "/joints:position[0] [rad]",
                    "/tf:transforms[1].transform.translation.x",
                    "/joints:position[wrist]",
                )
            ],
        )
    assert elbow.element == Element("/joints:position[0]", "rad", lookup="/joints:position[elbow]")
    assert frame.element.lookup == "/tf:transforms[laser].transform.translation.x"
    assert named.element == Element("/joints:position[wrist]")
    rows = read(path, elbow.element, frame.element, named.element)
    assert [row.values for row in rows] == [[i, 99, -i] for i in range(12)]


names = st.lists(
    st.text(
        st.characters(codec="utf-8", exclude_characters="[]=", exclude_categories=["C", "Z"]), min_size=1
    ),
    min_size=1,
    max_size=5,
    unique=True,
).filter(lambda texts: not any(text.strip("0123456789:") == "" for text in texts))


@given(names, st.randoms())
def test_every_order_of_names_reads_the_same(texts: list[str], random: object) -> None:
    angles = {text: float(i) for i, text in enumerate(texts)}
    order = list(texts)
    random.shuffle(order)  # type: ignore[attr-defined]
    turned = {text: angles[text] for text in order}
    for message, path in (
        (named_joints(turned), "position[{}]"),
        (transforms(turned), "transforms[{}].transform.translation.x"),
    ):
        for text, expected in angles.items():
            assert value(message, parse_field(Element(f"/t:{path.format(text)}"))) == expected
        listed = numeric_fields(message, named=True)
        assert all(path.format(text) in listed for text in texts)


# Tables


def table(text: str) -> Table:
    return Table([text.encode()], "log.csv")


def values(text: str, *wanted: str | Element) -> list[list[float]]:
    items = [item if isinstance(item, Element) else element(item) for item in wanted]
    return [row.values for row in table(text).rows(items)]


STYLES = ("[{}]", "_{}", ".{}", "/{}")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("prefix", ["", "/joints:", "/joints/", "joints."])
def test_a_table_with_the_names_in_columns(style: str, prefix: str) -> None:
    heading = ",".join(prefix + name + style.format(i) for name in ("name", "position") for i in range(2))
    text = f"{heading}\nelbow,wrist,0.5,2\nwrist,elbow,2.5,1\nbase,wrist,7,8\n"
    found = values(text, f"{prefix}position[elbow]", f"{prefix}position[wrist]")
    np.testing.assert_array_equal(found, [[0.5, 2], [1, 2.5], [np.nan, 8]])


@pytest.mark.parametrize("lists", ["[{}]", "({})", "array([{}])"])
@pytest.mark.parametrize("joint", [", ", " "])
def test_a_table_with_lists_in_its_cells(lists: str, joint: str) -> None:
    rows = [(["elbow", "wrist"], ["0.5", "2"]), (["wrist", "elbow"], ["2.5", "1"])]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["name", "position"])
    for words, numbers in rows:
        writer.writerow(
            [lists.format(joint.join(f"'{w}'" for w in words)), lists.format(joint.join(numbers))]
        )
    assert values(out.getvalue(), "position[elbow]", "position[wrist]") == [[0.5, 2], [1, 2.5]]


def test_a_table_of_frames() -> None:
    x = "transforms[{}].transform.translation.x"
    heading = ",".join(f"transforms[{i}].child_frame_id,{x.format(i)}" for i in range(2))
    text = f"{heading}\nbase_link,1,laser,2\nlaser,3,base_link,4\n"
    assert values(text, x.format("base_link"), x.format("laser")) == [[1, 2], [4, 3]]


JOINTS = "name[0],name[1],position[0],position[1]\nelbow,wrist,0.5,2\nwrist,elbow,2.5,1\n"


def test_what_an_index_takes_is_looked_up_where_the_model_knows_its_name() -> None:
    assert values(JOINTS, Element("position[0]", lookup="position[elbow]")) == [[0.5], [1]]
    plain = "position[0],position[1]\n3,4\n"  # nothing says which is which
    assert values(plain, Element("position[0]", lookup="position[elbow]")) == [[3]]
    assert values("position[elbow]\n5\n", Element("position[0]", lookup="position[elbow]")) == [[5]]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("position[0]", "row 2 has the name 'wrist' in column 'name[0]', and rows before it 'elbow'"),
        ("position[knee]", "no row has the name 'knee'; the first has elbow, wrist"),
        ("velocity[elbow]", "has no column 'velocity[elbow]'"),
    ],
)
def test_a_table_that_would_give_another_joint_is_refused(wanted: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        values(JOINTS, wanted)


def test_arrays_with_names_in_each_row(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    order = np.array([["elbow", "wrist"], ["wrist", "elbow"], ["base", "wrist"]])
    np.savez(path, name=order, position=[[0.5, 2], [2.5, 1], [7, 8]])
    found = [
        row.values for row in Arrays(path).rows([Element("position[elbow]"), Element("position[wrist]")])
    ]
    np.testing.assert_array_equal(found, [[0.5, 2], [1, 2.5], [np.nan, 8]])
    with pytest.raises(InputError, match="no row has the name 'knee'; the first has elbow, wrist"):
        list(Arrays(path).rows([Element("position[knee]")]))
    with pytest.raises(InputError, match=r"so 'position\[0\]' is now one element, now another"):
        list(Arrays(path).rows([Element("position[0]")]))
