"""GLUE's own files and the Hugging Face layout, whole and damaged."""

import datasets
import pytest

from electrakit.common.errors import UserError
from electrakit.finetune.job import TaskData
from electrakit.finetune.read_glue import has_split, read_split
from electrakit.finetune.tasks import TASKS
from tests.helpers.tiny_glue import write_glue


@pytest.fixture
def data(tmp_path):
    return write_glue(tmp_path / "glue")


def read(data, task, split="train"):
    return read_split(str(data), TASKS[task], TASKS[task].split(split))


@pytest.mark.parametrize("task", list(TASKS))
def test_every_split_of_every_task_is_read(data, task):
    for split in TASKS[task].splits:
        rows = read(data, task, split.name)
        num_rows = {"train": 40, "dev": 12, "dev_mismatched": 12, "ax": 5}.get(split.name, 9)
        assert len(rows) == num_rows
        assert (rows.labels is None) == (split.name.startswith("test") or split.name == "ax")
        assert (rows.second is None) == (task in ("cola", "sst2"))
        sign = rows.second or rows.first
        for text, label in zip(sign, rows.labels or [], strict=rows.labels is not None):
            if task not in ("stsb", "mnli", "rte", "qnli"):
                assert ("good" in text) == (label == 1)
        if task == "stsb" and rows.labels:
            assert set(rows.labels) == {0.0, 4.5}


def test_a_folder_may_be_spelled_as_people_do_and_may_be_the_task_itself(data):
    (data / "STS-B").rename(data / "sts_b")
    (data / "SST-2").rename(data / "SST2")
    assert len(read(data, "stsb")) == len(read(data, "sst2")) == 40
    assert len(read(data / "sts_b", "stsb")) == 40


def test_quotes_are_text_and_only_newlines_end_a_line(data):
    path = data / "SST-2" / "train.tsv"
    texts = ['he said " no', '"', 'a "" b', "one\u2028line", "also\x0bone"]
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t1\r\n" for text in texts), encoding="utf-8", newline="")
    assert read(data, "sst2").first == texts


def test_a_wrong_number_of_rows_is_a_warning(data):
    assert read(data, "rte").warnings == ("RTE train has 40 rows, the released one 2,490",)


def test_the_header_that_cola_lacks_is_not_a_row(data):
    path = data / "CoLA" / "train.tsv"
    path.write_text("source\tlabel\tstar\tsentence\n" + path.read_text())
    assert len(read(data, "cola")) == 40


def test_mrpc_as_released_is_split_by_the_list_of_dev_rows(tmp_path):
    folder = tmp_path / "MRPC"
    folder.mkdir()
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = [f"{number % 2}\t{number}\t{100 + number}\tleft {number}\tright {number}\n" for number in range(10)]
    (folder / "msr_paraphrase_train.txt").write_text(header + "".join(rows), encoding="utf-8")
    (folder / "msr_paraphrase_test.txt").write_text(header + "".join(rows[:4]), encoding="utf-8")
    with pytest.raises(UserError, match=r"dev_ids\.tsv"):
        read(tmp_path, "mrpc")
    (folder / "dev_ids.tsv").write_text("3\t103\n7\t107\n")
    assert read(tmp_path, "mrpc", "dev").first == ["left 3", "left 7"]
    assert read(tmp_path, "mrpc", "dev").labels == [1, 1]
    assert len(read(tmp_path, "mrpc")) == 8
    assert read(tmp_path, "mrpc", "test").labels is None


def test_unknown_labels_and_missing_columns_are_named_with_file_and_line(data):
    path = data / "RTE" / "train.tsv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], lines[5].rsplit("\t", 1)[0] + "\tmaybe", *lines[6:]]))
    with pytest.raises(
        UserError, match=r"train\.tsv line 6 has the label 'maybe'; known labels are entailment, not_entailment"
    ):
        read(data, "rte")
    path.write_text("\n".join([*lines[:7], "7\tonly one", *lines[8:]]))
    with pytest.raises(UserError, match=r"line 8 has 2 columns, needed are 4"):
        read(data, "rte")
    path.write_text("\n".join(["index\tpremise\tsentence2\tlabel", *lines[1:]]))
    with pytest.raises(UserError, match=r"has no column 'sentence1'; its first line has 'index', 'premise'"):
        read(data, "rte")
    stsb = data / "STS-B" / "dev.tsv"
    stsb.write_text(stsb.read_text().replace("4.500", "nan"))
    with pytest.raises(UserError, match=r"dev\.tsv line 3 has the label 'nan'; a number is needed"):
        read(data, "stsb", "dev")


def test_broken_rows_of_qqp_are_left_out_and_counted(data):
    path = data / "QQP" / "train.tsv"
    path.write_text(path.read_text() + "999\t1\t2\thalf a row\n")
    rows = read(data, "qqp")
    assert len(rows) == 40
    assert "QQP train: 1 rows with too few columns are left out" in rows.warnings
    test = data / "QQP" / "test.tsv"
    test.write_text(test.read_text() + "999\thalf a row\n")
    with pytest.raises(UserError, match=r"QQP/test\.tsv line 11 has 2 columns, needed are 3"):  # others would move up
        read(data, "qqp", "test")


def test_empty_sentences_and_foreign_bytes_are_kept_and_counted(data):
    path = data / "QNLI" / "dev.tsv"
    path.write_bytes(path.read_bytes() + b"90\t\tan answer\tentailment\n91\tcaf\xe9\tb\tentailment\n")
    rows = read(data, "qnli", "dev")
    assert rows.first[-2:] == ["", "caf\ufffd"]
    assert "QNLI dev: 1 rows have an empty sentence" in rows.warnings
    assert "QNLI dev: 1 rows are not quite UTF-8" in rows.warnings


def test_missing_data_names_the_way_out(tmp_path):
    with pytest.raises(UserError, match="does not exist; electra glue --download"):
        read(tmp_path / "nowhere", "rte")
    with pytest.raises(UserError, match=r"RTE has no train\.tsv in .*RTE; electra glue --download"):
        read(tmp_path, "rte")
    assert not has_split(str(tmp_path), TASKS["rte"], TASKS["rte"].split("train"))


@pytest.mark.parametrize("layout", ["saved", "parquet"])
def test_the_hugging_face_layout_gives_the_same_rows(data, tmp_path, layout):
    names = {"mnli": ["entailment", "neutral", "contradiction"], "cola": ["unacceptable", "acceptable"]}
    for task, labels in names.items():
        known, splits = TASKS[task], {}
        for split in ("train", *known.names_of("dev"), "test"):
            rows = read(data, task, split)
            spelled = [known.labels[int(label)] for label in rows.labels or []]
            numbers = [int(label) if task == "cola" else labels.index(label) for label in spelled]
            columns = known.hf_columns or known.columns
            content = {columns[0]: rows.first, **({columns[1]: rows.second} if rows.second else {})}
            features = datasets.Features(
                {**{name: datasets.Value("string") for name in content}, "label": datasets.ClassLabel(names=labels)}
            )
            content["label"] = numbers or [-1] * len(rows)
            splits[known.split(split).hf] = datasets.Dataset.from_dict(content, features=features)
        if layout == "saved":
            datasets.DatasetDict(splits).save_to_disk(tmp_path / "hf" / task)
        else:
            (tmp_path / "hf" / task).mkdir(parents=True)
            for name, rows in splits.items():
                rows.to_parquet(tmp_path / "hf" / task / f"{name}-00000-of-00001.parquet")
        for split in ("train", *known.names_of("dev"), "test"):
            ours, theirs = read(data, task, split), read(f"hf:{tmp_path / 'hf'}", task, split)
            assert (ours.first, ours.second, ours.labels) == (theirs.first, theirs.second, theirs.labels)
    assert not has_split(f"hf:{tmp_path / 'hf'}", TASKS["rte"], TASKS["rte"].split("train"))
    source = TaskData(TASKS["cola"], f"hf:{tmp_path / 'hf'}")
    before = source.fingerprint("labelled")
    next(path for path in (tmp_path / "hf" / "cola").rglob("*") if path.is_file()).write_bytes(b"other data")
    assert source.fingerprint("labelled") != before


def test_a_hub_that_does_not_answer_is_said_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))
    for look in (read, lambda data, task: has_split(data, TASKS[task], TASKS[task].split("train"))):
        with pytest.raises(
            UserError, match=r"hf:nyu-mll/glue is no folder here, and the Hugging Face hub does not give it"
        ):
            look("hf:glue", "rte")
