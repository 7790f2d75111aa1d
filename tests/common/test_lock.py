"""The lock where the file system has none: who lives keeps it, who is dead loses it."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading

import pytest

from electrakit.common import lock
from electrakit.common.errors import UserError
from electrakit.common.lock import HELD_FILE, write_lock

ELSEWHERE = {"host": "elsewhere", "pid": 1, "started": "2"}


@pytest.fixture(autouse=True)
def without_flock(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(lock, "HEARTBEAT", 0.01)
    monkeypatch.setattr(lock, "PATIENCE", 0.3)


def test_of_two_writers_the_second_is_refused_and_the_file_goes(tmp_path):
    with write_lock(tmp_path):
        assert (tmp_path / HELD_FILE).exists()
        with pytest.raises(UserError, match="another process is writing"), write_lock(tmp_path):
            pass
        assert (tmp_path / HELD_FILE).exists()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.promise("File systems", "lock file of a dead process", "taken over")
@pytest.mark.parametrize("left", ["", "{}", "[1]", '{"host": "elsewhere", "pid": 1, "started": "2"}'])
def test_what_a_dead_process_left_is_taken_over(tmp_path, left):
    (tmp_path / HELD_FILE).write_text(left)
    with write_lock(tmp_path):
        assert json.loads((tmp_path / HELD_FILE).read_text()) == lock.identity()


def test_a_process_of_this_machine_that_has_ended_is_known_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 3600)
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    (tmp_path / HELD_FILE).write_text(json.dumps({**lock.identity(), "pid": int(done.stdout)}))
    with write_lock(tmp_path):
        pass
    # the same number, but another process
    (tmp_path / HELD_FILE).write_text(json.dumps({**lock.identity(), "started": "1"}))
    with write_lock(tmp_path):
        pass


@pytest.mark.promise("File systems", "lock held on another machine", "refused")
def test_a_living_process_of_another_machine_keeps_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 3600)
    held = tmp_path / HELD_FILE
    held.write_text(json.dumps(ELSEWHERE))
    is_over = threading.Event()
    other = threading.Thread(target=lock.beat, args=(held, is_over, ELSEWHERE))
    monkeypatch.setattr(lock.time, "sleep", lambda _: None)
    other.start()
    with pytest.raises(UserError, match="another process is writing"), write_lock(tmp_path):
        pass
    is_over.set()
    other.join()
    assert json.loads(held.read_text())["host"] == "elsewhere"


def test_a_writer_that_paused_for_too_long_learns_that_another_has_the_lock(tmp_path, monkeypatch):
    held = tmp_path / HELD_FILE
    held.write_text(json.dumps(ELSEWHERE))  # the other one has paused
    os.utime(held, (1e9, 1e9))
    monkeypatch.setattr(lock, "HEARTBEAT", 3600)
    with write_lock(tmp_path):
        assert not lock.is_taken_over(tmp_path)
        os.utime(held, (2e9, 2e9))
        monkeypatch.setattr(lock, "HEARTBEAT", 0)
        lock.beat(held, threading.Event(), ELSEWHERE)  # now it continues, and returns since the lock is ours
        assert held.stat().st_mtime == 2e9 and lock.is_taken_over(tmp_path)
        assert json.loads(held.read_text()) == lock.identity()


@pytest.mark.promise("File systems", "many that find a dead process's lock", "one takes over")
def test_of_many_that_find_a_dead_one_one_takes_over(tmp_path):
    (tmp_path / HELD_FILE).write_text(json.dumps({**lock.identity(), "pid": 2**22 + 1}))
    start, found = threading.Barrier(8), []

    def compete() -> None:
        start.wait()
        found.append(lock.take(tmp_path / HELD_FILE))

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False] * 7 + [True]
    assert [path.name for path in tmp_path.iterdir()] == [HELD_FILE]


def test_other_errors_of_the_lock_are_told(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output error"), write_lock(tmp_path):
        pass
