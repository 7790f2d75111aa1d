"""What a run writes about itself: each step once."""

import io
import json

from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from electrakit import pretrain
from electrakit.train import log
from electrakit.train.log import Line, duration


def test_every_step_is_logged_once_also_after_stops(tiny):
    config = tiny(log_every=2)
    for step in (3, 7, 9):
        pretrain(config, stop_after=step)
    run = pretrain(config)
    assert [line["step"] for line in run.metrics()] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in run.metrics("valid")] == [0, 6, 12]
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/mlm_loss")] == [2, 4, 6, 8, 10, 12]
    assert [event.step for event in events.Scalars("valid/disc_auc")] == [0, 6, 12]


def test_a_line_that_a_kill_cut_off_is_no_line(tiny):
    config = tiny(log_every=1)
    run = pretrain(config, stop_after=5)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 6, "split": "train", "loss": 1.0}) + '\n{"step": 7, "spl')
    run = pretrain(config)
    assert [line["step"] for line in run.metrics()] == list(range(1, 13))


def test_a_terminal_gets_one_live_line_and_a_file_plain_ones(monkeypatch):
    figures = {
        "loss": 12.3456,
        "mlm_loss": 4.5,
        "disc_loss": 0.157,
        "gen_acc": 0.25,
        "disc_acc": 0.9,
        "tokens_per_second": 12345.6,
    }
    shown = {}
    for is_terminal in (True, False):
        screen = Console(file=io.StringIO(), force_terminal=is_terminal, width=160)
        monkeypatch.setattr(log, "console", screen)
        line = Line(100)
        line.advance(10, 3725.0)
        line.show("train", 10, figures)
        line.show("valid", 10, {"loss": 11.0, "disc_auc": 0.87})
        line.close()
        shown[is_terminal] = screen.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "step 10 of 100  loss 12.346  mlm 4.500  disc 0.1570  tok/s 12,346  gen acc 0.250  disc acc 0.900  1:02:05 left"
        in shown[False]
    )
    assert "step 10  valid: loss 11.000  auc 0.870" in shown[False]
    assert "\x1b" not in shown[False] and "\x1b" in shown[True]
    assert "10/100" in shown[True] and "1:02:05" in shown[True]


def test_durations():
    assert [duration(seconds) for seconds in (None, 5, 65, 3725)] == ["?", "0:05", "1:05", "1:02:05"]


def test_a_narrow_terminal_gets_one_line_too(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(log, "console", screen)
    line = Line(3000)
    line.advance(1000, 100.0)
    names = ("loss", "mlm_loss", "disc_loss", "disc_auc", "tokens_per_second", "gen_acc", "disc_acc")
    line.show("train", 1000, dict.fromkeys(names, 12.3456))
    line.bar.refresh()  # type: ignore[union-attr]
    line.close()
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "loss 12.346" in shown and "1:40" in shown and "disc acc" not in shown
    assert "\x1b[1A" not in shown.split("loss 12.346")[1]  # it never went up a line to draw again
