"""Signals set a flag, and nothing else, as long as a run is open."""

import os
import signal
import threading

import pytest

from electrakit.train.signals import SIGNALS, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_however_often_and_handlers_come_back(number):
    before = {one: signal.getsignal(one) for one in SIGNALS}
    with Interrupts() as interrupts:
        assert not interrupts.stop_requested
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert interrupts.stop_requested
    assert {one: signal.getsignal(one) for one in SIGNALS} == before


def test_a_thread_that_is_not_the_main_one_may_train_too():
    def work() -> None:
        with Interrupts() as interrupts:
            found.append(interrupts.stop_requested)

    found: list[bool] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
