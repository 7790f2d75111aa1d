"""The report: one page that needs nothing else, of runs that are whole, young, resumed, huge, sick or hostile."""

import base64
import hashlib
import itertools
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import electrakit as ek
from electrakit.cli.main import main
from electrakit.common import plots
from electrakit.config.finetune import FinetuneSettings
from electrakit.doctor.findings import Measure
from electrakit.doctor.run import examine_run
from electrakit.finetune.results import GlueAverage, GlueResults, GlueTaskResults
from electrakit.report import curves, scores, tables
from electrakit.report.curves import CHARTS
from electrakit.report.figures import draw_figures, glue_figure
from electrakit.report.page import page, read
from electrakit.report.report import fingerprints, names_of, png_folder
from electrakit.runs.files import Environment, RunFiles, Status, number, read_run
from electrakit.runs.settings import DataDescription
from tests.helpers.browser import chromium as chromium
from tests.helpers.processes import HANG, wait_until

# Made-up runs


def line(step: int, split: str = "train", **metrics: Any) -> dict[str, Any]:
    """A log that looks healthy."""
    far = step / 1000
    values = {
        "loss": 20 + 20 * math.exp(-far),
        "mlm_loss": 5 + 4 * math.exp(-far),
        "gen_acc": 0.3 - 0.3 * math.exp(-far),
    }
    values |= {"disc_loss": 0.3 + 0.2 * math.exp(-far), "disc_acc": 0.9, "replaced_rate": 0.12, "sampled_acc": 0.1}
    values |= {"disc_recall": 0.3, "disc_precision": 0.7}
    if split == "train":
        values |= {"lr": 5e-4, "grad_norm": 1.5, "tokens_per_second": 9000.0, "seconds": step / 2, "num_skipped": 0}
    else:
        values |= {"disc_auc": 0.8, "auc_frequency": 0.7, "auc_neighbours": 0.6, "auc_swapped": 0.65}
    return {"step": step, "split": split, **values, **metrics}


def a_log(num_lines: int = 50, every: int = 20) -> list[dict[str, Any]]:
    train = [line(every * (place + 1)) for place in range(num_lines)]
    return [line(0, "valid"), *train, line(every * num_lines, "valid")]


def write_run(path: Path, lines: list[dict[str, Any]] | None = None, is_complete: bool = True, **changes: Any) -> Path:
    """A run's folder without its weights."""
    path.mkdir(parents=True, exist_ok=True)
    lines = a_log() if lines is None else lines
    settings = ek.presets.tiny(data="shards", run=path, steps=1000, **changes).to_json()
    data = {"length": 64, "vocab_size": 1000, "rows": {"train": 500, "valid": 20}, "files": {"train-00000.bin": "ab"}}
    put(path / "config.json", json.dumps({"settings": settings, "data": data, "processes": 1}))
    environment = {"command": ["electra", "pretrain", "tiny; rm"], "device": "a CPU", "versions": {"torch": "2.13.0"}}
    put(path / "environment.json", json.dumps(environment))
    put(path / "metrics.jsonl", "".join(json.dumps(one) + "\n" for one in lines))
    step = lines[-1]["step"] if lines else 0
    put(path / "status.json", json.dumps({"step": step, "is_complete": is_complete}))  # the last, as a run does it
    return path


def put(path: Path, text: str) -> None:
    """Whole at once, for whoever reads it meanwhile."""
    half = path.with_suffix(".half")
    half.write_text(text)
    half.replace(path)


def glue_results(tasks: tuple[str, ...], title: str = "CoLA", reason: str = "always 1") -> dict[str, Any]:
    """results.json of `electra glue`, of three runs of each task, one of which collapsed for a reason."""
    task = GlueTaskResults(
        title=title,
        metric="matthews",
        median=0.8123,
        mean=0.8123,
        sd=0.0345,
        min=0.7,
        max=0.9,
        scores=[0.8123, 0.7, 0.9],
        seeds=[1, 2, 3],
        best_seed=3,
        collapsed={"2": [reason]},
        num_undefined=0,
        medians={},
        start_from=None,
        head="official",
        settings=FinetuneSettings(),
        warnings=[],
        seconds=1.0,
    )
    average = GlueAverage(0.8123, list(tasks), is_complete=len(tasks) == 8)
    return GlueResults(tasks=dict.fromkeys(tasks, task), average=average).as_json()


def write_glue(run: Path, tasks: tuple[str, ...] = tuple(scores.TITLES)) -> None:
    (run / "glue").mkdir()
    (run / "glue" / "results.json").write_text(json.dumps(glue_results(tasks)))


class Page(HTMLParser):
    """What a browser sees of a page: its tags, their attributes, its text, what is in its scripts and styles."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.text, self.open = "", ""
        self.feed(content.decode("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(sorted(name for name, _ in attributes))))
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        self.open = tag

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open in self.inside:
            self.inside[self.open].append(data)
        else:
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.inside["script"][0])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "mine")


def seen(path: Path) -> Page:
    return Page(path.read_bytes())


def make(*runs: Path, out: Path, **settings: Any) -> Page:
    assert ek.report(runs, out=out, **{"png": False, **settings}) == out
    return seen(out)


# The file


def test_it_is_one_file_that_asks_for_nothing_outside(run, tmp_path):
    made = make(run, out=tmp_path / "report.html")
    asked = [value for _, name, value in made.attributes if name in ("src", "href", "srcset", "action", "poster")]
    assert all(value.startswith(("#", "data:")) for value in asked) and asked
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"'`]+", content)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|eval\(|innerHTML", content)


def test_only_its_own_script_and_style_may_run(run, tmp_path):
    made = make(run, out=tmp_path / "report.html")
    policy = next(value for _, name, value in made.attributes if name == "content" and "default-src" in value)
    for kind, source in (("script", made.inside["script"][1]), ("style", made.inside["style"][0])):
        fingerprint = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{fingerprint}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not [name for _, name, _ in made.attributes if name == "style" or name.startswith("on")]


def test_the_sections_come_in_the_order_in_which_they_are_asked_for(run, tmp_path):
    content = make(run, out=tmp_path / "report.html").text
    titles = ["What the doctor found", "Key metrics", "Curves", "GLUE", "Settings", "Environment", "Data"]
    places = [content.index(title) for title in titles]
    assert places == sorted(places)
    assert "mine" in content and "1,000 steps" in content and "complete" in content


EMPTY = DataDescription(), Environment(), Status()


def hostile_runs(name: str, value: str) -> dict[str, RunFiles]:
    plain = ek.presets.tiny(steps=1000).to_json()
    settings = {**plain, "data": value, "budget": None, value: value, "optim": {**plain["optim"], "name": value}}
    environment = Environment(command=["electra", value], device=value)
    lines = [line(20), line(20, "valid")]
    data = DataDescription(rows={"train": 5}, files={value: value})
    glue = glue_results(("cola",), title=value, reason=value) | {"average": {"value": value}}
    status = Status(20, is_complete=True)
    one = RunFiles(Path("runs/one"), settings, data, environment, status, lines, glue)
    return {name: one, f"{name}2": one}


PARTS = st.sampled_from(
    [
        "</script>",
        "<script>alert(1)</script>",
        "<!--",
        "]]>",
        "'",
        '"',
        "&lt;",
        "{{data}}",
        "\\u003c",
        "\u2028",
        "\u202e",
        "</style>",
    ]
)
HOSTILE = st.lists(PARTS | st.text(st.characters(exclude_categories=("Cs",)), max_size=8), min_size=1, max_size=4).map(
    "".join
)


@pytest.fixture(scope="module")
def harmless() -> "Page":
    return Page(page(hostile_runs("run", "value")))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=HOSTILE, value=HOSTILE)
def test_names_and_settings_are_text_whatever_they_contain(harmless, name, value):
    """The page has the same elements and attributes as one of harmless names, and the script gets the name as it is."""
    made = Page(page(hostile_runs(name, f"x{value}")))
    assert made.tags == harmless.tags
    assert made.data["runs"][0]["name"] == name and "<" not in made.inside["script"][0]
    assert made.inside["script"][1] == harmless.inside["script"][1] and len(made.inside["script"]) == 2


def test_a_name_that_is_no_utf_8_is_no_reason_to_fail(tmp_path):
    run = write_run(tmp_path / "caf\udce9")
    assert "caf?" in make(run, out=tmp_path / "report.html").text


def test_nothing_heavy_is_loaded(run, tmp_path):
    code = (
        "import sys; from electrakit.cli.main import main\n"
        f"try: main(['report', {str(run)!r}, '--out', {str(tmp_path / 'r.html')!r}, '--no-png'])\n"
        "finally: print([name for name in ('torch', 'transformers', 'matplotlib', 'scipy', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "r.html" in done.stdout and done.stdout.strip().endswith("[]")


# Curves


@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=400),
    num_buckets=st.integers(1, 40),
)
def test_fewer_points_keep_the_ends_the_extremes_and_the_order(values, num_buckets):
    numbers = np.array(values)
    edges = curves.bucket_edges(len(numbers), num_buckets)
    chosen = curves.min_max(numbers, edges)
    assert list(chosen) == sorted(set(chosen)) and len(chosen) <= max(3 * num_buckets, 2 * num_buckets + 2)
    if len(numbers):
        assert edges[0] == 0 and edges[-1] == len(numbers) and (np.diff(edges) > 0).all()
        assert chosen[0] == 0 and chosen[-1] == len(numbers) - 1
    if np.isfinite(numbers).any():
        assert np.nanmin(numbers[chosen]) == np.nanmin(numbers) and np.nanmax(numbers[chosen]) == np.nanmax(numbers)
        means, counts = (
            curves.bucket_means(numbers, edges),
            [np.isfinite(part).sum() for part in np.split(numbers, edges[1:-1])],
        )
        whole = np.nansum(means * counts) / sum(counts)
        assert whole == pytest.approx(np.nanmean(numbers), abs=1e-6)


@given(values=st.lists(st.floats(-100, 100) | st.just(math.nan), min_size=1, max_size=200), sigma=st.floats(0, 30))
def test_smoothing_stays_between_the_extremes_and_keeps_gaps(values, sigma):
    numbers = np.array(values)
    smooth = plots.smoothed(numbers, sigma)
    assert (np.isnan(smooth) == np.isnan(numbers)).all()
    if np.isfinite(numbers).any():
        assert np.nanmin(smooth) >= np.nanmin(numbers) - 1e-6 and np.nanmax(smooth) <= np.nanmax(numbers) + 1e-6
    assert plots.smoothed(np.full(50, 3.0), sigma) == pytest.approx(3.0)


def test_a_million_steps_make_little_data_that_keeps_their_one_spike(tmp_path):
    lines = [{**line(500), "step": 20 * place + 20, "grad_norm": 1 + place % 7 / 10} for place in range(50_000)]
    lines[31_234] |= {"grad_norm": 77.7, "mlm_loss": None}  # what was no number is a gap, not a zero
    run = curves.curves(RunFiles(tmp_path, ek.presets.tiny().to_json(), *EMPTY, lines), curves.buckets_for(1))
    assert len(json.dumps(run)) < 1_000_000
    steps, values = run["train"]["grad_norm"]["raw"]
    assert values[steps.index(20 * 31_234 + 20)] == 77.7 and len(values) <= 2 * curves.MOST_BUCKETS + 2
    assert steps[0] == 20 and steps[-1] == 1_000_000
    assert min(run["train"]["mlm_loss"]["mean"]) > 5


@pytest.mark.long
def test_ten_long_runs_stay_below_three_megabytes():
    lines = [line(20 * place + 20, loss=math.sin(place), disc_loss=math.cos(place)) for place in range(4000)]
    run = RunFiles(Path("run"), {}, *EMPTY, lines)
    data = [curves.curves(run, curves.buckets_for(10)) for _ in range(10)]
    assert len(json.dumps(data)) < 2_500_000


def test_every_metric_of_a_real_log_has_a_chart_that_explains_it():
    known = {chart.key for chart in CHARTS}
    assert set(line(1)) | set(line(1, "valid")) <= known | {"step", "split", "seconds"}
    for chart in CHARTS:
        assert len(chart.shows) > 20 and len(chart.healthy) > 20, chart.key


def contrast(one: str, two: str) -> float:
    """As the accessibility guidelines define it."""

    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_seen_on_their_background_and_are_the_same_on_page_and_paper():
    colours = dict(re.findall(r"--(\w+): light-dark\((#\w+, #\w+)\)", read("report.css")))
    pairs = {name: value.split(", ") for name, value in colours.items()}
    runs = [pairs[f"run{place}"] for place in range(len(plots.PALETTE))]
    assert [light for light, _ in runs] == list(plots.PALETTE)
    for mode in (0, 1):
        assert all(contrast(run[mode], pairs["card"][mode]) >= 3 for run in runs)
        for name in ("ink", "soft", "accent", "serious", "warning", "info", "fine"):
            assert contrast(pairs[name][mode], pairs["card"][mode]) >= 4.5, name
            assert contrast(pairs[name][mode], pairs["paper"][mode]) >= 4.5, name


# Words and tables


def test_only_differing_settings_are_called_differing(tmp_path):
    one = write_run(tmp_path / "one")
    two = write_run(tmp_path / "two", optim={"lr": 0.25, "warmup_steps": 7})
    runs = {"one": read_run(one), "two": read_run(two)}
    differing, every = tables.settings_rows(runs)
    assert [name for name, _ in differing] == ["optim.lr", "optim.warmup_steps"]
    assert dict(differing)["optim.lr"][1] == "0.25"
    assert {"run", "seed", "generator.hidden_size"} <= {name for name, _ in every}
    assert "What differs" in make(one, two, out=tmp_path / "report.html").text
    assert "What differs" not in make(one, out=tmp_path / "report.html").text


def test_runs_of_the_same_name_are_told_apart_by_their_path(tmp_path):
    runs = [write_run(tmp_path / place / "run") for place in ("a", "b")]
    assert [run["name"] for run in make(*runs, out=tmp_path / "report.html").data["runs"]] == ["a/run", "b/run"]
    again = make(runs[0], tmp_path / "b" / ".." / "a" / "run", out=tmp_path / "report.html")
    assert [run["name"] for run in again.data["runs"]] == ["run"]  # the same folder twice is one run
    assert names_of([Path("/x/y/run"), Path("/z/y/run"), Path("/y/other")]) == ["x/y/run", "z/y/run", "other"]


def test_the_state_says_complete_running_or_silent(tmp_path):
    run = write_run(tmp_path / "run", is_complete=False)
    word, words = tables.state_of(read_run(run))
    assert word == "running" and "1,000 steps" in words and "1 M" not in words
    old = time.time() - 7200
    os.utime(run / "metrics.jsonl", (old, old))
    word, words = tables.state_of(read_run(run))
    assert word == "silent" and time.strftime("since %Y-%m-%d %H:%M;", time.localtime(old)) in words
    assert tables.state_of(read_run(write_run(run)))[0] == "complete"


def test_the_time_left_follows_the_pace_or_the_budget(tmp_path):
    run = write_run(tmp_path / "run", a_log(10), is_complete=False)
    assert tables.seconds_left(read_run(run)) == pytest.approx((1000 - 200) / 2)
    run = write_run(tmp_path / "run", a_log(10), is_complete=False, budget="5m")
    assert tables.seconds_left(read_run(run)) == pytest.approx(300 - 100)


@pytest.mark.parametrize(
    ("preset", "metric"), [("electra_small", "replaced_rate"), ("electra_15", "sampled_acc"), ("mlm_small", None)]
)
def test_table_curves_and_doctor_compare_the_discriminator_with_the_same_guess(tmp_path, preset, metric):
    lines = [line(step, split, sampled_acc=0.3) for step in range(20, 1001, 20) for split in ("train", "valid")]
    path = write_run(tmp_path / "run", lines)
    objective = getattr(ek.presets, preset)(data="shards", run=path).to_json()["objective"]
    stored = json.loads((path / "config.json").read_text())
    stored["settings"] |= {"objective": objective, "optim": stored["settings"]["optim"] | {"warmup_steps": 0}}
    put(path / "config.json", json.dumps(stored))
    run = read_run(path)
    assert curves.curves(run, 100)["base_rate"] == metric
    doctors = examine_run(run).measures.get(Measure.BASE_RATE_ENTROPY, math.nan)
    expected = {"replaced_rate": 0.3669, "sampled_acc": 0.6109, None: math.nan}[metric]  # of coins of .12 and .3
    assert [doctors, tables.base_rate_entropy(run)] == pytest.approx([expected] * 2, abs=1e-4, nan_ok=True)


def test_a_resumed_run_shows_each_step_once(tmp_path):
    lines = [*a_log(20), line(300, loss=1.0), line(320, loss=1.5)]  # it went back from 400 to 280
    made = make(write_run(tmp_path / "run", lines), out=tmp_path / "report.html")
    run = made.data["runs"][0]
    assert run["clock"]["step"] == list(range(20, 340, 20))
    assert run["train"]["loss"]["mean"][-2:] == [1.0, 1.5]


def test_a_run_without_metrics_gives_a_page_that_says_so(tmp_path):
    run = write_run(tmp_path / "run", [], is_complete=False)
    assert "No metrics yet" in make(run, out=tmp_path / "report.html").text
    (run / "metrics.jsonl").unlink()
    (run / "environment.json").unlink()
    assert "No metrics yet" in make(run, out=tmp_path / "report.html", png=True).text


def test_metrics_that_are_no_numbers_are_gaps(tmp_path):
    bad = [{"loss": None}, {"loss": "<b>"}, {"loss": True}, {"loss": math.inf}, {"loss": [1]}]
    lines = [line(20), *(line(40 + 20 * place, **metrics) for place, metrics in enumerate(bad)), line(200)]
    made = make(write_run(tmp_path / "run", lines), out=tmp_path / "report.html")
    means = made.data["runs"][0]["train"]["loss"]["mean"]
    assert [value is None for value in means] == [False, *[True] * 5, False]
    assert math.isnan(number(10**400))


# GLUE


def test_glue_stands_beside_published_rows_each_marked_as_that(run, tmp_path):
    write_glue(run)
    made = make(run, out=tmp_path / "report.html")
    assert "81.2 ± 3.5" in made.text and "3 seeds" in made.text and "1 of 3 fine-tuning runs collapsed" in made.text
    assert made.text.count("published:") >= 8 + 11  # rows of the table, points of the other
    assert made.data["points"][0]["score"] == pytest.approx(81.23)


def test_what_electra_glue_warns_of_is_said_in_the_report_too(run, tmp_path):
    write_glue(run, ("rte",))
    path = run / "glue" / "results.json"
    results = json.loads(path.read_text())
    results["tasks"]["rte"]["warnings"] = ["RTE dev has 60 rows, the released one 277"]
    path.write_text(json.dumps(results))
    assert "RTE dev has 60 rows, the released one 277" in make(run, out=tmp_path / "report.html").text


def test_an_average_over_some_tasks_is_no_point_among_those_over_all(run, tmp_path):
    write_glue(run, ("rte", "mrpc"))
    made = make(run, out=tmp_path / "report.html")
    assert made.data["points"][0]["score"] is None and "over 2 of 8 tasks" in made.text


def test_compute_is_counted_in_the_same_way_for_runs_and_for_published_points(tmp_path):
    points = {point.name: point for point in scores.published_points() if point.source.startswith("Clark")}
    small = points["ELECTRA-Small"]
    assert small.flops == pytest.approx(1.29e18, rel=0.01)  # the paper prints 1.4e18
    assert points["ELECTRA-Base"].flops == pytest.approx(6.4e19, rel=0.01)  # as the paper prints it
    assert points["ELECTRA-Small, 6.25 % of the steps"].flops == pytest.approx(small.flops / 16)
    settings = ek.presets.electra_small().to_json()
    lines = [line(1_000_000)]
    run = RunFiles(tmp_path, {**settings, "from_the_future": 1}, *EMPTY, lines)
    assert scores.flops_of(run) == pytest.approx(small.flops)
    assert scores.flops_of(RunFiles(tmp_path, {"discriminator": 3}, *EMPTY, lines)) is None


# Pictures


@pytest.mark.long
def test_pictures_are_written_as_for_paper(run, tmp_path):
    out = ek.report(run, out=tmp_path / "new" / "folder" / "report.html")
    pictures = {path.name: path.read_bytes() for path in png_folder(out).iterdir()}
    expected = {"loss", "generator", "discriminator", "replaced", "learning_rate", "gradient_norm", "speed"}
    if "auc_swapped" in (run / "metrics.jsonl").read_text():
        expected.add("corruptions")
    assert set(pictures) == {f"{name}.png" for name in expected}
    for content in pictures.values():
        place = content.index(b"pHYs")
        across, down, unit = struct.unpack(">IIB", content[place + 4 : place + 13])
        assert (across, down, unit) == (11811, 11811, 1)  # a metre: 300 an inch
    write_glue(run)
    (png_folder(out) / "mine.png").write_bytes(b"my own")
    draw_figures({"$_^{": read_run(run), "_hidden": read_run(run)}, png_folder(out))
    names = {path.name for path in png_folder(out).iterdir()}
    assert names == {f"{name}.png" for name in expected | {"glue", "mine"}}


@pytest.mark.parametrize("mean", [81.2, 41.7])
def test_names_of_published_points_cover_nothing_whatever_the_axis(run, mean):
    write_glue(run)
    path = run / "glue" / "results.json"
    results = json.loads(path.read_text())
    results["average"]["value"] = mean / 100
    path.write_text(json.dumps(results))
    figure = glue_figure({"mine": read_run(run)})
    figure.draw_without_rendering()
    axes = figure.axes[0]
    frame, boxes = axes.get_window_extent(), [words.get_window_extent() for words in axes.texts]
    assert all(frame.x0 <= box.x0 < box.x1 <= frame.x1 and frame.y0 <= box.y0 < box.y1 <= frame.y1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    names = {words.get_text() for words in axes.texts}
    assert {"ELECTRA-Small", "BERT-Small", "ELECTRA-Base", "25 %"} <= names  # not all are left out


# Mistakes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": []}, "no run is named"),
        ({"runs": ["nowhere"]}, r"nowhere is no folder"),
        ({"every": 0}, "every must be above 0, got 0"),
        ({"out": "."}, r"--out \. is a folder; name a file, such as report.html"),
    ],
)
def test_mistakes_are_told_in_one_line(run, change, message):
    with pytest.raises(ek.UserError, match=message) as error:
        ek.report(**{"runs": [run], "out": "report.html", "png": False, **change})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("verb", "what"), [("report", "no run is named"), ("play", "no model is named")])
def test_a_command_without_a_name_says_in_one_line_what_to_name(verb, what, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.startswith(f"electra: {what}; name one") and said.count("\n") == 1


def test_a_folder_that_is_no_run_and_a_file_in_the_way_are_told(run, tmp_path):
    with pytest.raises(ek.UserError, match=r"has no config\.json of a run"):
        ek.report(tmp_path, out=tmp_path / "report.html")
    (tmp_path / "report").write_text("mine")
    with pytest.raises(ek.UserError, match="PNGs go into a folder of that name"):
        ek.report(run, out=tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ek.UserError, match="cannot write"):
        ek.report(run, out=tmp_path / "file" / "report.html", png=False)


# Live


class Live:
    """`electra report --live` in a process of its own."""

    def __init__(self, run: Path, out: Path) -> None:
        arguments = ["report", str(run), "--out", str(out), "--live", "--every", "0.1", "--no-png"]
        command = [sys.executable, "-m", "electrakit", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.out = out

    def wait_for(self, is_so: Any) -> dict[str, Any]:
        wait_until(lambda: self.out.exists() and is_so(seen(self.out).data), self.process)
        return seen(self.out).data

    def end(self) -> tuple[int, str]:
        output, errors = self.process.communicate(timeout=HANG)
        return self.process.returncode, output + errors


def steps_of(data: dict[str, Any]) -> list[int]:
    return data["runs"][0]["clock"]["step"]


def test_live_follows_the_log_and_ends_with_the_run(tmp_path):
    run = write_run(tmp_path / "run", [], is_complete=False)
    live = Live(run, tmp_path / "report.html")
    assert live.wait_for(lambda data: True)["live"] == 0.1
    with (run / "metrics.jsonl").open("a") as log:
        for step in (20, 40):
            log.write(json.dumps(line(step)) + "\n")
            log.write('{"step": ')  # a line that is not whole yet
            log.flush()
            live.wait_for(lambda data, step=step: steps_of(data)[-1:] == [step])
            log.seek(log.tell() - len('{"step": '))
            log.truncate()
    write_run(run, [line(20), line(40), line(60)])
    code, said = live.end()
    data = seen(tmp_path / "report.html").data
    assert code == 0 and data["live"] is None and steps_of(data) == [20, 40, 60]
    assert "40 of 1,000 steps (4 %)" in said and not list(tmp_path.glob(".*"))


def test_live_says_once_that_a_run_has_fallen_silent(tmp_path, capsys, monkeypatch):
    run, out = write_run(tmp_path / "run", is_complete=False), tmp_path / "report.html"
    now = time.time()
    os.utime(run / "metrics.jsonl", (now, now))
    monkeypatch.setattr(tables.time, "time", lambda: now)
    num_looks = 0

    def counted(paths: list[Path]) -> object:
        nonlocal num_looks
        num_looks += 1
        return fingerprints(paths)

    monkeypatch.setattr(sys.modules["electrakit.report.report"], "fingerprints", counted)
    live = threading.Thread(target=ek.report, args=[run], kwargs={"out": out, "live": True, "every": 0.1, "png": False})
    live.start()
    try:
        wait_until(lambda: out.exists() and ("span", "class", "badge running") in seen(out).attributes)
        now += 121  # and two minutes are silence
        wait_until(lambda: ("span", "class", "badge silent") in seen(out).attributes)
        num_before = num_looks
        wait_until(lambda: num_looks > num_before + 4)
    finally:
        write_run(run)
        live.join()
    assert capsys.readouterr().err.count("nothing was written since") == 1


def test_an_interrupt_leaves_the_last_report_which_loads_itself_no_more(tmp_path):
    run = write_run(tmp_path / "run", is_complete=False)
    live = Live(run, tmp_path / "report.html")
    live.wait_for(lambda data: data["live"])
    live.process.send_signal(signal.SIGINT)
    code, said = live.end()
    assert code == 0 and "Traceback" not in said
    assert seen(tmp_path / "report.html").data["live"] is None


# Runs that were trained


@pytest.mark.long
def test_runs_as_they_are_trained(tiny, tmp_path):
    """One that was stopped and resumed, and a masked language model, which has one network."""
    ek.pretrain(tiny("pair", steps=12), stop_after=7)
    made = make(tmp_path / "pair", out=tmp_path / "report.html")
    assert "7 of 12 steps" in made.text
    ek.pretrain(tiny("pair", steps=12))
    ek.pretrain(
        tiny(
            "mlm",
            preset="mlm_small",
            steps=8,
            discriminator={"num_layers": 1, "hidden_size": 16, "ffn_size": 32, "num_heads": 1},
        )
    )
    made = make(tmp_path / "pair", tmp_path / "mlm", out=tmp_path / "report.html", png=True)
    pair, mlm = made.data["runs"]
    assert steps_of(made.data) == [4, 8, 12] and set(pair["train"]) >= {"mlm_loss", "disc_loss", "lr", "grad_norm"}
    assert pair["valid"]["disc_auc"][0][-1] == 12 and pair["base_rate"] == "replaced_rate" and mlm["base_rate"] is None
    assert "disc_loss" not in mlm["train"] and "mlm_loss" in mlm["train"]
    assert "objective.kind" in made.text and "complete" in made.text
    alone = make(tmp_path / "mlm", out=tmp_path / "report.html").text
    assert "Masked language model" in alone and "Discriminator" not in alone.split("GLUE")[0]


# In a browser


class Visit:
    """A page as somebody sees it, and everything it complained about or asked for."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_context(**settings).new_page()
        self.page.set_default_timeout(HANG * 1000)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.clock.install()
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector("html[data-drawn]")

    def close(self) -> None:
        self.page.context.close()

    def is_quiet(self) -> bool:
        own = {url for url in self.requests if not url.startswith("data:")}
        return self.complaints == [] and own == {self.page.url.split("#")[0]}


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    one = write_run(tmp_path / "<img src=x onerror=alert(1)>")
    two = write_run(tmp_path / "two", a_log(25, every=40), optim={"lr": 0.1})
    write_glue(two)
    return ek.report([one, two], out=tmp_path / "report.html", png=False)


def axis_labels(page: Any, key: str = "mlm_loss") -> str:
    return page.locator(f"svg[data-key={key}] text").last.text_content()


def test_the_page_draws_itself_and_answers(chromium, two_runs):
    visit = Visit(chromium, two_runs, viewport={"width": 1200, "height": 900}, color_scheme="light")
    page = visit.page
    drawn = page.locator("svg[data-key=mlm_loss] path.curve")
    assert drawn.count() == 2 and page.locator("svg[data-key=disc_auc] path.mark").count() == 4
    assert page.locator("svg[data-key]").count() == 16 and page.locator("#compute circle").count() == 11 + 1
    assert page.locator("img").count() == 0  # the name of a run is text
    assert "<img src=x" in page.locator("h1").text_content()
    for axis, unit in (("tokens", "tokens"), ("time", "minutes"), ("steps", "steps")):
        page.locator(f"input[value={axis}]").check(force=True)
        assert axis_labels(page) == unit
    page.locator(".legend .run").first.click()
    assert drawn.count() == 1 and page.locator("svg[data-key=mlm_loss] .run1").count() == 1
    page.locator("article", has_text="Generator loss").locator("button.log").click()
    assert (
        page.locator("article", has_text="Generator loss").locator("button.log").get_attribute("aria-pressed") == "true"
    )
    page.locator("article", has_text="Generator loss").locator("button.info").click()
    assert page.get_by_text("Mean cross-entropy of the words").is_visible()
    page.locator("#smooth").fill("0")
    assert page.locator("#smooth-value").text_content() == "off" and page.locator(".rawline").count() == 0
    background = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    page.locator("#theme").click()
    assert page.evaluate(background) != before
    assert visit.is_quiet()
    visit.close()


def test_pointer_and_keys_read_values_and_zoom(chromium, two_runs):
    visit = Visit(chromium, two_runs, viewport={"width": 1200, "height": 900})
    page, chart = visit.page, visit.page.locator("svg[data-key=loss]")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 80)
    tip = page.locator("article", has=chart).locator(".tip")
    assert tip.is_visible() and "two" in tip.text_content() and "validation" in tip.text_content()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 80)
    page.mouse.up()
    assert page.locator("#unzoom").is_visible()
    assert "0" not in page.locator("svg[data-key=loss] text").all_text_contents()
    page.locator("#unzoom").click()
    assert "0" in page.locator("svg[data-key=loss] text").all_text_contents()
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert "step 20" in page.locator("#announce").text_content()
    assert visit.is_quiet()
    visit.close()


def test_a_phone_needs_no_sideways_scrolling(chromium, two_runs):
    visit = Visit(
        chromium, two_runs, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True, color_scheme="dark"
    )
    page = visit.page
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 26)"
    page.locator("svg[data-key=mlm_loss]").tap()
    assert page.locator("article", has=page.locator("svg[data-key=mlm_loss]")).locator(".tip").is_visible()
    assert visit.is_quiet()
    visit.close()


def test_a_live_page_loads_itself_again_and_stays_as_it_was(chromium, tmp_path):
    run = read_run(write_run(tmp_path / "run", a_log(10), is_complete=False))
    out = tmp_path / "report.html"
    out.write_bytes(page({"run": run}, live=300.0))
    visit = Visit(chromium, out, viewport={"width": 1000, "height": 700})
    visit.page.locator("input[value=tokens]").check(force=True)
    visit.page.locator("#settings-all summary").click()
    top_of_curves = "document.getElementById('curves').getBoundingClientRect().top"
    visit.page.evaluate(f"scrollBy({{top: {top_of_curves} + 300, behavior: 'instant'}})")
    before = visit.page.evaluate(top_of_curves)
    out.write_bytes(page({"run": read_run(write_run(tmp_path / "run", a_log(11)))}))
    visit.page.clock.fast_forward(301_000)
    visit.page.get_by_text("220 of 1,000 steps").wait_for()
    visit.page.wait_for_selector("html[data-drawn]")
    assert axis_labels(visit.page) == "tokens"
    assert visit.page.locator("#settings-all").get_attribute("open") is not None
    assert before < -200 and visit.page.evaluate(top_of_curves) == pytest.approx(before, abs=2)  # the same is in view
    assert visit.is_quiet()
    visit.close()


def test_a_page_without_metrics_and_one_without_scripts_can_be_read(chromium, run, tmp_path):
    young = ek.report(write_run(tmp_path / "young", []), out=tmp_path / "young.html", png=False)
    visit = Visit(chromium, young)
    assert visit.page.get_by_text("curves come with the first line").is_visible() and visit.is_quiet()
    visit.close()
    context = chromium.new_context(java_script_enabled=False)
    still = context.new_page()
    still.set_default_timeout(HANG * 1000)
    still.goto(ek.report(run, out=tmp_path / "report.html", png=False).resolve().as_uri())
    assert still.locator("noscript p").is_visible() and not still.locator("#controls").is_visible()
    assert still.get_by_text("Key metrics").first.is_visible() and still.get_by_text("ELECTRA-Small++").is_visible()
    context.close()


@pytest.mark.long
def test_a_long_run_is_drawn_with_no_more_points_than_can_be_seen(chromium, tmp_path):
    lines = [
        {**line(500), "step": 20 * place + 20, "loss": 20 + math.sin(place)} for place in range(5 * curves.MOST_BUCKETS)
    ]
    (tmp_path / "report.html").write_bytes(page({"long": read_run(write_run(tmp_path / "long", lines))}))
    visit = Visit(chromium, tmp_path / "report.html")
    curve, raw = (
        visit.page.locator(f"svg[data-key=loss] path.{name}").get_attribute("d") for name in ("curve", "rawline")
    )
    assert curve.count("L") == curves.MOST_BUCKETS - 1
    assert curves.MOST_BUCKETS < raw.count("L") < 2 * curves.MOST_BUCKETS + 2
    assert visit.is_quiet()
    visit.close()
