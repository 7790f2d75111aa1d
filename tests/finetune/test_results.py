"""Results of made runs: medians, bests, averages, the table, the page, the submission."""

import io
import json
import zipfile

import numpy as np
import pytest

from electrakit.finetune.published import PUBLISHED
from electrakit.finetune.results import (
    FinetuneResult,
    GlueAverage,
    GlueResults,
    JobResult,
    TaskResults,
    average,
    best_results,
    summarise,
    summarise_glue,
)
from electrakit.finetune.results_page import glue_page, task_page
from electrakit.finetune.submission import SUBMISSION_FILES, combine, make_submission
from electrakit.finetune.table import glue_markdown, plot_losses, plot_scores
from electrakit.finetune.tasks import AVERAGED, TASKS
from tests.helpers.browser import chromium as chromium
from tests.helpers.processes import HANG


def run(task="rte", seed=1, score=0.5, collapsed=(), start_from=None):
    names = TASKS[task].names_of("dev")
    return JobResult(
        task=task,
        title=TASKS[task].title,
        seed=seed,
        metric=TASKS[task].metrics[0],
        score=score,
        scores={name: dict.fromkeys(TASKS[task].metrics, score) for name in names},
        collapsed=list(collapsed),
        start_from=start_from,
        head="official",
        identity={"settings": {"lr": 1e-4}},
        warnings=[],
        seconds={"all": 1.0},
        losses=[[1, 0.7], [2, 0.5]],
        files=[],
        answers={name: [0] * 277 for name in names},
    )


def results_of(by_task, warnings=(), **more):
    tasks = summarise_glue(by_task, dict(warnings))
    medians = {name: task.median for name, task in tasks.items()}
    settings = {"model": "hf/mine", "preset": "paper", "submission": "No."} | more
    return GlueResults(tasks=tasks, average=average(medians), **settings)


def test_dev_is_the_median_with_its_spread_and_collapsed_runs_are_in_it():
    runs = [run(seed=seed, score=score) for seed, score in enumerate((0.6, 0.9, 0.7, 0.8), 1)]
    runs.append(run(seed=5, score=0.1, collapsed=["all dev predictions are 'entailment'"]))
    task = summarise(TaskResults, runs)
    assert task.median == 0.7
    assert task.mean == pytest.approx(0.62)
    assert task.sd == pytest.approx(np.std([0.6, 0.9, 0.7, 0.8, 0.1], ddof=1))
    assert (task.min, task.max, task.best_seed) == (0.1, 0.9, 2)
    assert list(task.collapsed) == ["5"]
    assert summarise(TaskResults, runs[:1]).sd is None


def test_an_undefined_score_counts_as_nothing_and_is_counted():
    task = summarise(
        TaskResults, [run("stsb", 1, None, ["all dev predictions are 2.5"]), run("stsb", 2, 0.8), run("stsb", 3, 0.6)]
    )
    assert (task.median, task.min, task.num_undefined, task.best_seed) == (0.6, 0.0, 1, 2)


def test_the_best_run_is_the_first_of_equals():
    runs = [run(seed=3, score=0.9), run(seed=1, score=0.9), run(seed=2, score=None)]
    assert [each.seed for each in best_results(runs, 3)] == [1, 3, 2]


def test_the_average_is_of_eight_and_says_when_it_is_not():
    complete = {name: number / 10 for number, name in enumerate(AVERAGED)}
    assert average({**complete, "wnli": 9.0}) == GlueAverage(pytest.approx(0.35), list(AVERAGED), is_complete=True)
    assert average({"rte": 0.5, "wnli": 9.0}) == GlueAverage(0.5, ["rte"], is_complete=False)
    assert average({"wnli": 0.5}).value is None


def test_only_splits_with_as_many_rows_as_were_released_count_as_released():
    tasks = summarise_glue({"rte": [run("rte")], "cola": [run("cola")]}, {})
    assert (tasks["rte"].released_splits, tasks["cola"].released_splits) == (["dev"], [])


def test_a_result_is_the_same_after_writing_and_reading():
    written = run("mnli", start_from="x").as_json()
    assert "threshold" not in written and set(written["answers"]) == {"dev", "dev_mismatched"}
    assert JobResult.from_json(written) == run("mnli", start_from="x")


def test_results_of_glue_are_the_same_after_writing_and_reading():
    """Those of older versions have no released_splits; what is something else is refused."""
    results = results_of({"mnli": [run("mnli")], "rte": [run(seed=seed) for seed in (1, 2)]}, weights="abc")
    written = json.loads(json.dumps(results.as_json()))
    assert GlueResults.from_json(written) == results and results.num_seeds == 2
    del written["tasks"]["rte"]["released_splits"]
    assert GlueResults.from_json(written).tasks["rte"].is_released("dev")
    for damage in (None, [], {"tasks": {}}, {"tasks": {"rte": {"median": 1.0}}, "average": {}}, {"median": 1.0}):
        with pytest.raises(ValueError, match="not the results of electra glue"):
            GlueResults.from_json(damage)


def test_the_table_has_dashes_for_tasks_not_run_and_marks_what_is_published():
    text = glue_markdown(
        results_of({"rte": [run(score=0.663, start_from="MNLI, seed 2")], "cola": [run("cola", 1, 0.5, ["x"])]})
    )
    ours = next(line for line in text.splitlines() if "(ours)" in line)
    assert ours == "| **mine** (ours) | 50.0 | – | – | – | – | – | – | 66.3 | 58.1 (2 of 8 tasks) |"
    assert "**The average is over 2 of 8 tasks** (CoLA, RTE): not the average of the papers." in text
    assert "**1 of 1 runs collapsed** (seed 1: x)" in text
    assert "| MNLI, seed 2 |" in text
    assert text.count("(published: ") == len(PUBLISHED)
    assert all("published" not in line for line in text.splitlines() if "ours" in line)


def test_published_means_are_the_means_of_their_rows():
    for row in PUBLISHED:
        if row.scores:
            assert len(row.scores) == len(AVERAGED)
            assert row.mean == pytest.approx(np.mean(row.scores), abs=0.06), row


@pytest.mark.long
def test_plots_are_pictures():
    by_task = {name: [run(name, seed, 0.1 * seed, ["x"] if seed == 1 else []) for seed in (1, 2)] for name in TASKS}
    assert plot_scores(results_of(by_task)).startswith(b"\x89PNG")
    assert plot_losses(by_task).startswith(b"\x89PNG")


def test_the_page_shows_every_run_every_curve_and_what_is_published_by_itself():
    by_task = {
        name: [run(name, seed, 0.3 * seed, ["x"] if (name, seed) == ("rte", 1) else []) for seed in (1, 2, 3)]
        for name in ("cola", "rte", "wnli")
    }
    warnings = {"cola": ["CoLA dev has 3 rows, the released one 1,043"]}
    text = glue_page(results_of(by_task, warnings, model="hf/<mine>", ensembles={"rte": 0.654}), by_task)
    assert "GLUE: hf/&lt;mine&gt;" in text and "<mine>" not in text
    plot, narrow, *panels = text[text.index("</p>", text.index("Every run")) :].split("<svg")[1:]
    for each in (plot, narrow):
        assert (each.count("<circle"), each.count('class="cross"'), each.count('class="known"')) == (8, 1, 2)
        assert "RTE, seed 1: 30.0, collapsed" in each
    assert [panel.count("<polyline") for panel in panels] == [3, 3, 3]
    assert sum(panel.count('class="curve cross"') for panel in panels) == 1
    assert text.count("published: ") == len(PUBLISHED) + 1  # the rows, and the mark in the plot
    assert "<strong>The average is over 2 of 8 tasks</strong> (CoLA, RTE)" in text and "2 of 8 tasks</small>" in text
    assert "RTE: 1 of 3 runs collapsed; they are in the median." in text
    assert "CoLA dev has 3 rows, the released one 1,043" in text and "RTE 65.4" in text
    assert not any(word in text for word in ("<script", "http:", "https:", "src=", "url("))  # whole by itself
    assert text.count("<table") == text.count("</table>") == 2


@pytest.mark.long
def test_the_page_can_be_read_on_a_phone(chromium, tmp_path):
    by_task = {name: [run(name, seed, 0.3 * seed) for seed in (1, 2, 3)] for name in TASKS}
    warnings = {"cola": ["CoLA dev has 3 rows, the released one 1,043"]}
    (tmp_path / "results.html").write_text(glue_page(results_of(by_task, warnings), by_task))
    for width, shown in ((380, ["narrow"]), (1200, ["broad"])):
        with chromium.new_page(viewport={"width": width, "height": 800}) as tab:
            tab.set_default_timeout(HANG * 1000)
            tab.goto((tmp_path / "results.html").as_uri())
            assert (
                tab.evaluate(
                    "() => [...document.querySelectorAll('svg[class]')].filter(e => e.clientWidth).map(e => e.className.baseVal)"
                )
                == shown
            )
            heights = tab.evaluate(
                "() => [...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
            )
            assert min(height for height in heights if height) > 11  # of letters of 10 px
            assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
            notes = tab.locator(".notes").first.bounding_box()
            assert notes["x"] >= 0 and notes["x"] + notes["width"] <= width


def test_the_page_of_a_task_of_ones_own_has_no_published_marks():
    runs = [run("rte", seed, score, []) for seed, score in ((1, -0.2), (2, None))]
    more = {"model": "m", "preset": "paper", "files": [], "test": {"test": {"accuracy": 0.5}}}
    result = summarise(FinetuneResult, runs, task="classification: a < b", **more)
    text = task_page(result, runs, "mine")
    assert "published:" not in text and 'class="known"' not in text and "classification: a &lt; b" in text
    assert "test, the best run" in text and text.count("<polyline") == 2 and "nan" not in text.lower()


def predictions():
    random = np.random.default_rng(0)
    return {
        name: random.normal(size=(split.num_rows, len(task.labels) if task.labels else 1)).astype(np.float32) * 4
        for name, (task, split) in SUBMISSION_FILES.items()
    }


def test_a_submission_row_by_row():
    made = predictions()
    content, message = make_submission(made, fill=False)
    assert content is not None and message == "submission.zip is written."
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert sorted(archive.namelist()) == sorted(SUBMISSION_FILES)  # flat
        for name, (task, split) in SUBMISSION_FILES.items():
            header, *lines = archive.read(name).decode().splitlines()
            assert header == "index\tprediction"
            assert len(lines) == split.num_rows
            for index, line in enumerate(lines[:2000]):
                number, label = line.split("\t")
                assert number == str(index)
                if task.labels is None:
                    assert label == f"{min(5, max(0, made[name][index, 0])):.3f}"
                else:
                    assert label == task.labels[made[name][index].argmax()]
    assert make_submission(made, fill=False)[0] == content


def test_missing_tasks_are_filled_only_when_asked():
    some = {"RTE.tsv": predictions()["RTE.tsv"]}
    content, message = make_submission(some, fill=False)
    assert content is None and message.startswith("No submission.zip: CoLA.tsv, SST-2.tsv") and "--fill" in message
    content, message = make_submission(some, fill=True)
    assert content is not None and "filled with one label: their scores mean nothing" in message
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.read("AX.tsv").decode().splitlines()[1:] == [f"{index}\tcontradiction" for index in range(1104)]
        assert archive.read("STS-B.tsv").decode().splitlines()[1] == "0\t0.000"
    assert make_submission({}, fill=True) == (None, "No submission.zip: there are no test files.")


def test_a_wrong_number_of_rows_is_said():
    made = predictions() | {"RTE.tsv": np.zeros((7, 2))}
    message = make_submission(made, fill=False)[1]
    assert message.endswith("The server will refuse it: RTE.tsv has 7 rows instead of 3,000.")


def test_an_ensemble_is_the_mean_of_probabilities():
    sure, unsure = np.array([[0.0, 8.0]]), np.array([[1.0, 0.0]])
    together = combine(TASKS["rte"], [sure, unsure, unsure])
    assert together.sum() == pytest.approx(1)
    powers = np.exp(np.concatenate([sure, unsure, unsure]))
    np.testing.assert_allclose(together[0], (powers / powers.sum(-1, keepdims=True)).mean(0))
    np.testing.assert_allclose(combine(TASKS["stsb"], [np.array([[1.0]]), np.array([[4.0]])]), [[2.5]])
