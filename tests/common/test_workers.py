"""Worker pools: results in order, little taken ahead, failures with their reason, and no process left behind."""

import errno
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.workers import TASKS_AHEAD, WORKER, WorkerPool
from tests.helpers.processes import HANG, wait_until

# What workers do must be importable where they are, so that this file's own functions are sent by their module's name.


def slowly_negate(number: int) -> int:
    time.sleep(0.02 * (number % 3))  # later items are ready earlier
    return -number


def double(number: int) -> int:
    return 2 * number


def fail(number: int) -> int:
    if number == 3:
        raise KeyError("the reason")
    return number


def complain(number: int) -> int:
    raise UserError("--this is yours to mend")


def die(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def return_what_cannot_be_sent(number: int) -> object:
    return lambda: number


def large_result(number: int) -> np.ndarray:
    return np.full(3_000_000, number, np.uint8)


def own_process(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def half_a_result(number: int) -> bytes:
    """Dies while the result is on its way."""
    import threading

    threading.Thread(target=lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGKILL)), daemon=True).start()
    return bytes(50_000_000)


def crash(number: int) -> None:
    if number:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(10)


@pytest.fixture(scope="module")
def workers():
    with WorkerPool(2) as some:
        yield some


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_results_come_in_the_order_of_the_items(workers):
    assert list(workers.map(slowly_negate, range(20))) == [-number for number in range(20)]
    assert list(workers.map(double, [])) == []


def test_all_workers_work(workers):
    assert len(set(workers.map(own_process, range(20)))) == 2


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_items_of_a_map_may_come_from_another_map_of_the_same_workers(num_workers):
    with WorkerPool(num_workers) as some:
        doubled = (number for number in some.map(double, range(100)) if number % 3)
        wanted = [4 * number for number in range(100) if 2 * number % 3]
        assert list(some.map(double, doubled)) == wanted


def test_only_a_few_items_are_taken_ahead_of_the_consumer(workers):
    taken = 0

    def items():
        nonlocal taken
        while taken < 100:
            taken += 1
            yield taken

    for number, result in enumerate(workers.map(slowly_negate, items()), start=1):
        assert result == -number
        assert taken - number <= 2 * TASKS_AHEAD


def test_large_results_do_not_block(workers):
    for number, result in enumerate(workers.map(large_result, range(30))):
        assert result[0] == result[-1] == number


def test_an_exception_comes_back_with_the_workers_traceback(workers):
    results = workers.map(fail, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(
        RuntimeError, match=r"(?s)a worker process failed while working on its task:.*in fail.*KeyError: 'the reason'"
    ):
        next(results)
    assert list(workers.map(double, range(3))) == [0, 2, 4]  # and the workers go on


def test_a_user_error_passes_through(workers):
    with pytest.raises(UserError, match=r"^--this is yours to mend$"):
        list(workers.map(complain, [1]))


def test_a_result_that_cannot_be_sent_is_an_error_and_no_death(workers):
    with pytest.raises(RuntimeError, match=r"(?s)a worker process failed.*pickle"):
        list(workers.map(return_what_cannot_be_sent, [1]))
    assert list(workers.map(double, [4])) == [8]


@pytest.mark.parametrize("deadly", [die, half_a_result])
def test_the_death_of_a_worker_is_noticed_and_explained(deadly):
    with (
        WorkerPool(2) as some,
        pytest.raises(UserError, match=r"worker process \d died \(exit code -9\).*again to resume.*fewer --workers"),
    ):
        for _ in some.map(deadly, range(100)):
            if deadly is half_a_result:
                time.sleep(1)  # let it fill the pipe, and die there


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS])
def test_a_crash_is_not_called_a_kill_and_names_what_it_was_about(how):
    with WorkerPool(2) as some, pytest.raises(UserError) as error:
        list(some.map(crash, [0, 0, 0, 0, 0, int(how), 0], lambda item: f"item {item}"))
    assert re.fullmatch(
        rf"worker process \d died \(exit code -{int(how)}\): crashed in a native library while working on item "
        rf"{int(how)}; please report it",
        str(error.value),
    )


def test_a_failure_names_what_it_was_about(workers):
    with pytest.raises(RuntimeError, match="a worker process failed while working on item 3:"):
        list(workers.map(fail, range(10), lambda item: f"item {item}"))


def test_too_many_open_files_is_not_called_a_folder_that_cannot_be_written(tmp_path):
    script = """
        import resource
        from electrakit.common.workers import WorkerPool
        from electrakit.common.errors import UserError, explain_write_errors
        from pathlib import Path
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        try:
            with explain_write_errors(Path("out")), WorkerPool(64):
                pass
        except UserError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=HANG)
    assert done.stdout.startswith("stopped by the system: Too many open files; use fewer --workers"), done


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "cannot write out: No space left on device; mend that"),
        (errno.EACCES, "cannot write out: Permission denied"),
        (errno.EAGAIN, "stopped by the system: Resource temporarily unavailable; use fewer --workers"),
        (errno.EIO, "stopped by the system: .*Input/output error; mend that"),
    ],
)
def test_errors_of_the_system_are_told_apart(number, message):
    with pytest.raises(UserError, match=message), explain_write_errors(Path("out")):
        raise OSError(number, os.strerror(number))


def test_leaving_early_leaves_no_process_behind():
    def some_results():
        with WorkerPool(2) as some:
            yield from some.map(own_process, range(1000))

    results = some_results()
    processes = {next(results) for _ in range(6)}
    assert all(map(is_alive, processes))
    results.close()
    assert not any(map(is_alive, processes))


def test_an_error_of_the_consumer_leaves_no_process_behind():
    processes = set()
    with pytest.raises(ZeroDivisionError), WorkerPool(2) as some:
        for process in some.map(own_process, range(100)):
            processes.add(process)
            _ = 1 // (len(processes) < 2)
    assert not any(map(is_alive, processes))


def script(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "script.py").write_text(textwrap.dedent(text))
    return [sys.executable, str(tmp_path / "script.py")]


ENDLESS = """
    import os, sys
    from electrakit.common.workers import WorkerPool

    with WorkerPool(2) as workers:
        print(*(process.pid for process in workers._processes), flush=True)
        for _ in workers.map(abs, iter(int, 1)):  # for ever
            pass
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_leave_when_the_main_process_is_killed(tmp_path, how):
    with subprocess.Popen(script(tmp_path, ENDLESS), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as main:
        processes = list(map(int, main.stdout.readline().split()))
        time.sleep(1)
        assert len(processes) == 2 and all(map(is_alive, processes))
        main.send_signal(how)
        wait_until(lambda: not any(map(is_alive, processes)))
        assert main.stderr.read() == ""


BUSY = """
    import sys
    sys.path.insert(0, {tests!r})
    from electrakit.common.workers import WorkerPool
    from test_workers import {function}

    with WorkerPool(2) as workers:
        items = ({item} for _ in range(100))
        results = workers.map({function}, items)
        next(results)
        print("going", flush=True)
        import time
        time.sleep(1000) if {stops} else list(results)
"""


def large(item):
    return bytes(200_000_000)


class SlowToLoad:
    def __reduce__(self):
        return time.sleep, (0.7,)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("function", "item", "stops"),
    [
        ("abs", "1", True),  # idle
        ("large", "1", True),  # sending a result that is not received
        ("large", "1", False),  # in the middle of sending
        ("len", "bytes(200_000_000)", False),  # in the middle of receiving
        ("repr", "SlowToLoad()", False),  # loading
        ("time.sleep", "0.5", False),  # working
    ],
)
def test_no_worker_outlives_the_main_process_whatever_it_is_doing(tmp_path, function, item, stops):
    imported = {"abs": "is_alive", "len": "is_alive", "repr": "SlowToLoad", "time.sleep": "time"}
    text = BUSY.format(tests=str(Path(__file__).parent), function=function, item=item, stops=stops)
    text = text.replace(f"import {function}", f"import {imported.get(function, function)}")
    with subprocess.Popen(script(tmp_path, text), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as main:
        assert main.stdout.readline() == "going\n", main.stderr.read()
        time.sleep(0.3)
        processes = children_of(main.pid)
        assert len(processes) >= 2
        main.kill()
        wait_until(lambda: not any(map(is_alive, processes)))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_no_worker_outlives_a_main_process_that_is_killed_while_it_starts_them(tmp_path, pause):
    with subprocess.Popen(script(tmp_path, ENDLESS), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as main:
        wait_until(lambda: len(children_of(main.pid)) >= 2, main)
        time.sleep(pause)
        processes = children_of(main.pid)
        main.kill()
        wait_until(lambda: not any(map(is_alive, processes)))


def children_of(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


@pytest.mark.parametrize("pause", [0, 1])  # while the workers start, and while they work
def test_ctrl_c_of_a_terminal_reaches_the_main_process_only(tmp_path, pause):
    with subprocess.Popen(
        script(tmp_path, ENDLESS),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as main:
        processes = list(map(int, main.stdout.readline().split()))
        time.sleep(pause)
        os.killpg(main.pid, signal.SIGINT)
        wait_until(lambda: not any(map(is_alive, processes)))
        assert main.stderr.read().count("Traceback") == 1  # the script's own


def test_a_script_without_a_main_guard_may_use_workers(tmp_path):
    text = """
        from electrakit.common.workers import WorkerPool
        print("once")
        with WorkerPool(2) as workers:
            print(sum(workers.map(abs, range(10))))
    """
    done = subprocess.run(script(tmp_path, text), capture_output=True, text=True, timeout=HANG)
    assert (done.stdout, done.stderr) == ("once\n45\n", "")


def test_the_environment_is_left_as_it_was():
    before = dict(os.environ)
    with WorkerPool(1):
        assert dict(os.environ) == before


def test_a_function_that_the_workers_cannot_import_is_an_error_and_no_hang(tmp_path):
    """A function of the caller's own script: the workers do not import that script."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from electrakit.common.workers import WorkerPool

        def own(item):
            return item

        with WorkerPool(2) as workers:
            print(list(workers.map(own, [bytes(2_000_000)] * 20)))
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1
    assert "RuntimeError: a worker process failed" in done.stderr
    assert "AttributeError" in done.stderr


def wait_for(others: Path, number: int) -> tuple[int, str]:
    """The first takes until the others have come in."""
    if not number:
        wait_until(others.exists)
    return number, os.environ[WORKER]


def test_what_is_done_first_comes_first_and_no_result_waits_for_a_long_task(tmp_path):
    done = []
    with WorkerPool(2, tasks_ahead=1) as workers:
        for item, result in workers.as_done(functools.partial(wait_for, tmp_path / "others"), range(8)):
            done.append((item, result))
            if len(done) == 7:
                (tmp_path / "others").touch()
    assert [item for item, _ in done][-1] == 0  # the long one: the other worker has done all the rest meanwhile
    assert sorted(item for item, _ in done) == list(range(8))
    assert all(item == number for item, (number, _) in done)
    of_long = next(worker for _, (number, worker) in done if number == 0)
    assert {worker for _, (number, worker) in done if number != 0} == {"1" if of_long == "0" else "0"}


def test_a_failure_of_unordered_work_has_its_reason():
    with (
        WorkerPool(2) as workers,
        pytest.raises(RuntimeError, match=r"while working on item 3:(.|\n)*KeyError: 'the reason'"),
    ):
        list(workers.as_done(fail, range(5), lambda item: f"item {item}"))
    with WorkerPool(1) as workers, pytest.raises(UserError, match="--this is yours to mend"):
        list(workers.as_done(complain, [1]))
