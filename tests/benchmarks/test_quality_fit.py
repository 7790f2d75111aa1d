"""Growth with compute: a known power law is found again, its range holds new runs, and what is too far is not predicted."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electrakit import presets
from electrakit.common.errors import UserError
from electrakit.common.json_files import write_json
from electrakit.model.counts import useful_flops

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import quality_fit

    return quality_fit


def write_results(folder: Path, value: float, steps: int) -> Path:
    config = presets.tiny(steps=steps)
    run = {"steps": steps, "settings": config.to_json()}
    scores = {"auto": {"1": {"neighbours": value}}, "tf-idf": {"1": {"SST-2": 0.8}}}
    folder.mkdir()
    write_json(folder / "results.json", {"scores": scores, "parts": {"auto": {"steps": steps}, "auto 1": run}})
    return folder


def test_a_power_law_is_found_again_in_the_files_of_the_benchmark(fit, tmp_path, monkeypatch, capsys):
    one_step = useful_flops(presets.tiny()) * presets.tiny().batch_size
    folders = [
        write_results(tmp_path / str(steps), 1 - 3.0 * (one_step * steps) ** -0.08, steps) for steps in (10, 30, 90)
    ]
    arguments = [
        *map(str, folders),
        "--at",
        str(one_step * 300),
        str(one_step * 901),
        "--plot",
        str(tmp_path / "x.png"),
    ]
    monkeypatch.setattr(sys, "argv", ["quality_fit.py", *arguments])
    fit.main()
    header, _, row = capsys.readouterr().out.splitlines()
    expected = 1 - 3.0 * (one_step * 300) ** -0.08
    assert header.startswith("| size | runs | exponent | at ")
    assert row == f"| 2 × 64 | 3 | -0.080 | {expected:.3f} ({expected:.3f} to {expected:.3f}) | too far |"
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_nine_of_ten_new_runs_are_in_the_range(fit):
    random, num_inside = np.random.default_rng(0), 0
    flops = np.array([1e13, 3e13, 1e14, 3e14])

    def value(at: float) -> float:
        return 1 - float(np.exp(1.0 - 0.08 * np.log(at) + 0.02 * random.standard_normal()))

    for _ in range(1000):
        growth = fit.Growth.fit(fit.Point("", each, value(each)) for each in flops)
        _, low, high = growth.predict(1e15)
        num_inside += low <= value(1e15) <= high
    assert 870 <= num_inside <= 930


def test_two_runs_give_no_range_and_a_recipe_that_is_not_there_is_named(fit, tmp_path):
    folder = write_results(tmp_path / "a", 0.6, 10)
    points = fit.read_points(folder, "auto", "neighbours") * 2
    assert fit.table(points, fit.fit_sizes(points), [1e13])[1] == ["2 × 64", "2", "too few runs", ""]
    with pytest.raises(UserError, match=r"no run of mini with neighbours; recipes there: auto, tf-idf"):
        fit.read_points(folder, "mini", "neighbours")
