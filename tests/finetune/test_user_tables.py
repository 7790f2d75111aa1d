"""The user's own files: columns by name, kinds recognised, mistakes named with their line."""

import json
from pathlib import Path

import pytest

from electrakit.common.errors import UserError
from electrakit.finetune.user_tables import examples_of, label_kind, read_user_table, recognise_task

ROWS = [("good film", "pos"), ('a "bad" one', "neg"), ("so, so", "pos")]


def write(path, columns, rows):
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    elif path.suffix == ".csv":
        quoted = [['"' + str(value).replace('"', '""') + '"' for value in row] for row in [columns, *rows]]
        lines = [",".join(row) for row in quoted]
    else:
        lines = ["\t".join(map(str, row)) for row in [columns, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_the_three_kinds_of_files_say_the_same(tmp_path, ending):
    table = read_user_table(write(tmp_path / f"train.{ending}", ("text", "label"), ROWS))
    task = recognise_task(table, None, None, None, "mine")
    assert (task.columns, task.label, task.labels) == (("text",), "label", ("neg", "pos"))
    rows = examples_of(table, task)
    assert rows.first == [text for text, _ in ROWS]
    assert rows.labels == [1, 0, 1]


def test_columns_can_be_named(tmp_path):
    table = read_user_table(
        write(tmp_path / "a.tsv", ("id", "left", "right", "gold"), [(1, "a", "b", "x"), (2, "c", "d", "y")])
    )
    with pytest.raises(
        UserError, match=r"has the columns id, left, right, gold; name the columns of the sentences with --text"
    ):
        recognise_task(table, None, "gold", None, "mine")
    with pytest.raises(UserError, match="with --label"):
        recognise_task(table, ("left", "right"), None, None, "mine")
    with pytest.raises(UserError, match="names 3 columns"):
        recognise_task(table, ("id", "left", "right"), "gold", None, "mine")
    task = recognise_task(table, ("left", "right"), "gold", None, "mine")
    assert examples_of(table, task).second == ["b", "d"]
    with pytest.raises(UserError, match=r"a\.tsv line 2 has no column 'middle'"):
        examples_of(table, recognise_task(table, ("middle",), "gold", None, "mine"))


def test_what_is_predicted_is_recognised():
    assert label_kind(["0", "1", "1"]) == "classification"
    assert label_kind(["1", "2", "3", "4", "5"]) == "classification"
    assert label_kind(["0.0", "1.0"]) == "classification"
    assert label_kind(["0.5", "1", "3.25"]) == "regression"
    assert label_kind([str(number) for number in range(40)]) == "regression"
    assert label_kind(["1", "nan"]) == "classification"
    assert label_kind(["yes", "1.5"]) == "classification"


def test_numbers_are_scaled_to_one_and_the_kind_can_be_said(tmp_path):
    table = read_user_table(write(tmp_path / "a.csv", ("text", "score"), [("a", "-8.5"), ("b", "4")]))
    task = recognise_task(table, None, None, None, "mine")
    assert task.is_regression and task.scale == 8.5 and task.metrics[0] == "spearman"
    assert recognise_task(table, None, None, "classification", "mine").labels == ("-8.5", "4")
    words = read_user_table(write(tmp_path / "b.csv", ("text", "score"), [("a", "high"), ("b", "4")]))
    with pytest.raises(UserError, match=r"b\.csv line 2 has the label 'high'; a number is needed"):
        recognise_task(words, None, None, "regression", "mine")


def test_class_numbers_are_in_their_order(tmp_path):
    table = read_user_table(write(tmp_path / "a.tsv", ("text", "label"), [("a", "10"), ("b", "9"), ("c", "1")]))
    assert recognise_task(table, None, None, None, "mine").labels == ("1", "9", "10")


def test_mistakes_are_named_with_their_line(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_user_table(tmp_path / "nothing.tsv")
    with pytest.raises(UserError, match=r"ends in '\.xls'"):
        read_user_table(tmp_path / "a.xls")
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n")
    with pytest.raises(UserError, match="has no rows"):
        read_user_table(path)
    path.write_text("text\tlabel\na\tb\nc\n")
    with pytest.raises(UserError, match=r"a\.tsv line 3 has 1 columns, its first line 2: text, label"):
        read_user_table(path)
    path.write_text("text\ttext\na\tb\n")
    with pytest.raises(UserError, match="two columns of the same name"):
        read_user_table(path)
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a"}\n\nnot json\n')
    with pytest.raises(UserError, match=r"a\.jsonl line 3 is not JSON"):
        read_user_table(lines)
    lines.write_text("[1]\n")
    with pytest.raises(UserError, match=r"a\.jsonl line 1 is not a JSON object"):
        read_user_table(lines)
    array = tmp_path / "a.json"
    array.write_text('[\n {"text": "a", "label": "b"}\n]\n')
    with pytest.raises(UserError, match=r"line 1 is not JSON: .*; JSON lines are wanted: one object in each line"):
        read_user_table(array)
    comma = tmp_path / "a.csv"
    comma.write_text("text;label\na, b;c\n")
    with pytest.raises(
        UserError, match="first line is one column, 'text;label'; commas between the columns are wanted"
    ):
        read_user_table(comma)
    path.write_text("text,label\na,b\n")
    with pytest.raises(UserError, match="first line is one column, 'text,label'; tabs between the columns are wanted"):
        read_user_table(path)
    empty = read_user_table(write(tmp_path / "empty.tsv", ("text", "score"), [("a", "0.5"), ("b", " "), ("c", "1.5")]))
    with pytest.raises(UserError, match=r"empty\.tsv line 3 has no label; remove the row, or fill in its 'score'"):
        recognise_task(empty, None, None, None, "mine")
    same = read_user_table(write(tmp_path / "same.tsv", ("text", "label"), [("a", "x"), ("b", "x")]))
    with pytest.raises(UserError, match="all rows have the label 'x'"):
        recognise_task(same, None, None, None, "mine")


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_what_is_not_utf8_is_read_and_counted_in_all_kinds_of_files(tmp_path, ending):
    path = write(tmp_path / f"a.{ending}", ("text", "label"), [("caf#", "x"), ("tea", "y")])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"#", b"\xe9"))  # a byte order mark, and Latin-1
    table = read_user_table(path)
    assert table.columns == ("text", "label")
    assert [row["text"] for _, row in table.rows] == ["caf\N{REPLACEMENT CHARACTER}", "tea"]
    assert table.warnings == (f"a.{ending}: 1 rows are not quite UTF-8",)


def test_a_text_of_a_csv_file_may_be_long_and_have_lines(tmp_path):
    text = "word " * 40_000 + "\r\nand, a last line"
    path = tmp_path / "a.csv"
    path.write_bytes(f'text,label\r\n"{text}",x\r\nshort,y\r\n'.encode())
    assert [row for _, row in read_user_table(path).rows] == [
        {"text": text, "label": "x"},
        {"text": "short", "label": "y"},
    ]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_a_file_that_cannot_be_read_is_the_users_to_mend(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match=rf"cannot read .*a\.{ending}: "):
        read_user_table(path)


def test_dev_labels_that_training_does_not_know_are_an_error_and_tests_need_none(tmp_path):
    task = recognise_task(read_user_table(write(tmp_path / "a.tsv", ("text", "label"), ROWS)), None, None, None, "mine")
    other = read_user_table(write(tmp_path / "b.tsv", ("text", "label"), [("a", "pos"), ("", "maybe")]))
    with pytest.raises(UserError, match=r"b\.tsv line 3 has the label 'maybe'; known labels are neg, pos"):
        examples_of(other, task)
    bare = examples_of(
        read_user_table(write(tmp_path / "c.tsv", ("text", "more"), [("a", 1), ("", 2)])), task, needs_labels=False
    )
    assert bare.labels is None
    assert bare.warnings == ("c.tsv: 1 rows have an empty sentence",)
    blank = read_user_table(write(tmp_path / "d.csv", ("text", "label"), [("a", ""), ("b", "")]))
    assert examples_of(blank, task, needs_labels=False).labels is None
