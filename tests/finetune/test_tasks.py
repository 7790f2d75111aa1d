"""The table of GLUE's tasks."""

import pytest

from electrakit.common.errors import UserError
from electrakit.finetune.submission import SUBMISSION_FILES
from electrakit.finetune.tasks import AVERAGED, TASKS, find_task


def test_a_task_is_found_in_any_spelling():
    for name in ("STS-B", "sts_b", "stsb", "sts", "STSBenchmark"):
        assert find_task(name).name == "stsb"
    assert find_task("sst").name == find_task("SST-2").name == "sst2"
    with pytest.raises(UserError, match=r"unknown task 'squash'; there are cola, sst2"):
        find_task("squash")


def test_the_server_gets_eleven_files_and_the_average_is_of_eight_tasks():
    assert sorted(SUBMISSION_FILES) == sorted(
        [
            "CoLA.tsv",
            "SST-2.tsv",
            "MRPC.tsv",
            "STS-B.tsv",
            "MNLI-m.tsv",
            "MNLI-mm.tsv",
            "QNLI.tsv",
            "RTE.tsv",
            "WNLI.tsv",
            "QQP.tsv",
            "AX.tsv",
        ]
    )
    assert set(TASKS) - set(AVERAGED) == {"wnli"}


def test_the_protocol_of_the_papers():
    assert {name: task.metrics[0] for name, task in TASKS.items()} == {
        **dict.fromkeys(TASKS, "accuracy"),
        "cola": "matthews",
        "stsb": "spearman",
    }
    assert {name for name, task in TASKS.items() if task.start_from == "mnli"} == {"rte", "stsb"}
    assert {name for name, task in TASKS.items() if task.both_orders} == {"mrpc", "stsb"}
    assert {name for name, task in TASKS.items() if task.epochs == 10} == {"rte", "stsb"}
    assert TASKS["mnli"].names_of("dev") == ("dev", "dev_mismatched")


def test_sizes_are_the_released_ones():
    sizes = {name: (task.split("train").num_rows, task.split("dev").num_rows) for name, task in TASKS.items()}
    assert sizes == {
        "cola": (8551, 1043),
        "sst2": (67349, 872),
        "mrpc": (3668, 408),
        "stsb": (5749, 1500),
        "qqp": (363846, 40430),
        "mnli": (392702, 9815),
        "qnli": (104743, 5463),
        "rte": (2490, 277),
        "wnli": (635, 71),
    }
    assert TASKS["mnli"].split("dev_mismatched").num_rows == 9832
    assert {name: SUBMISSION_FILES[name][1].num_rows for name in ("AX.tsv", "QQP.tsv", "RTE.tsv")} == {
        "AX.tsv": 1104,
        "QQP.tsv": 390965,
        "RTE.tsv": 3000,
    }


def test_every_task_can_be_fetched_and_every_download_is_known():
    for task in TASKS.values():
        assert task.downloads
        for item in task.downloads:
            assert item.address.startswith("https://")
            assert len(item.sha256) == 64 and item.num_bytes > 1000
