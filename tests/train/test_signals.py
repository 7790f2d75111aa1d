"""Signals set a flag, and nothing else, as long as a run is open."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from electrakit.cli.main import main
from electrakit.train.signals import SECONDS_TO_LEAVE, SIGNALS, Interrupts, StoppedBySignal, leave_on_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_however_often_and_handlers_come_back(number):
    before = {one: signal.getsignal(one) for one in SIGNALS}
    with Interrupts() as interrupts:
        assert not interrupts.stop_requested
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert interrupts.stop_requested
    assert {one: signal.getsignal(one) for one in SIGNALS} == before


def test_a_closed_terminal_does_not_stop_what_was_started_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.stop_requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupts.stop_requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_timer_of_the_program_that_trains_stays_its_own():
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGALRM)
            assert rung and not interrupts.stop_requested
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM])
def test_other_verbs_leave_once_with_the_code_of_a_shell(number):
    before = {one: signal.getsignal(one) for one in SIGNALS}
    try:
        leave_on_signals()
        with pytest.raises(StoppedBySignal) as stop:
            os.kill(os.getpid(), number)
        assert stop.value.code == 128 + number and stop.value.name == number.name
        os.kill(os.getpid(), signal.SIGTERM)  # while it cleans up: ignored
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 138), (signal.SIGINT, 130)])
def test_a_signal_that_a_library_turns_into_another_error_is_still_told(monkeypatch, capsys, number, code):
    """As C code does that looks only whether a call has failed, not why: it was an error of safetensors while exporting."""
    before = {one: signal.getsignal(one) for one in SIGNALS}

    def verb(arguments):
        try:
            os.kill(os.getpid(), number)
        except BaseException:
            raise ValueError("could not determine the shape of object type") from None

    monkeypatch.setattr("electrakit.cli.verbs.run_verb", verb)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["export"])
        assert ended.value.code == code
        assert "stopped" in capsys.readouterr().err
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_a_signal_that_was_dropped_can_be_sent_again(monkeypatch):
    before = {one: signal.getsignal(one) for one in SIGNALS}
    try:
        leaving = leave_on_signals()
        for _ in range(2):
            with pytest.raises(StoppedBySignal):
                os.kill(os.getpid(), signal.SIGTERM)
            leaving.last -= SECONDS_TO_LEAVE
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


HANDLED_IN_C = """
import signal
from electrakit.train import signals

signals.SIGNALS = signals.ALWAYS_HANDLED = (signal.SIGABRT,)  # which faulthandler has before Python looks
assert signal.getsignal(signal.SIGABRT) is None
with signals.Interrupts() as interrupts:
    signal.raise_signal(signal.SIGABRT)
assert interrupts.stop_requested
"""


def test_a_handler_that_python_did_not_install_is_no_error_at_the_end():
    command = [sys.executable, "-X", "faulthandler", "-c", HANDLED_IN_C]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_is_not_the_main_one_may_train_too():
    def work() -> None:
        with Interrupts() as interrupts:
            found.append(interrupts.stop_requested)

    found: list[bool] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
