"""Worker pools: results in order, little taken ahead, failures with their reason, and no process left behind."""

import errno
import functools
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.workers import TASKS_AHEAD, WorkerPool, perform
from tests.helpers.processes import HANG, children_of, wait_until
from tests.helpers.worker_tasks import (
    complain,
    crash,
    die,
    double,
    fail,
    large_result,
    larger_than_a_pipe,
    meet,
    own_process,
    return_what_cannot_be_sent,
    touch_last,
    wait_for,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def workers():
    with WorkerPool(2) as some:
        yield some


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_results_come_in_the_order_of_the_items(workers, tmp_path):
    done = list(workers.map(functools.partial(touch_last, tmp_path / "second"), range(20)))  # the first is ready late
    assert [number for number, _ in done] == list(range(20))
    assert list(workers.map(double, [])) == []


def test_all_workers_work(workers, tmp_path):
    assert len(set(workers.map(functools.partial(meet, tmp_path), range(20)))) == 2


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

    for number, result in enumerate(workers.map(double, items()), start=1):
        assert result == 2 * number
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
    assert list(workers.map(double, range(3))) == [0, 2, 4]  # the workers are still usable


def test_a_user_error_passes_through(workers):
    with pytest.raises(UserError, match=r"^--this is yours to fix$"):
        list(workers.map(complain, [1]))


def test_a_result_that_cannot_be_sent_is_an_error_and_no_death(workers):
    with pytest.raises(RuntimeError, match=r"(?s)a worker process failed.*pickle"):
        list(workers.map(return_what_cannot_be_sent, [1]))
    assert list(workers.map(double, [4])) == [8]


DEATH = r"worker process \d died \(exit code -9\).*again to resume.*fewer --workers"


@pytest.mark.promise("Environment", "SIGKILL of a worker process", "noticed and explained")
def test_the_death_of_a_worker_is_noticed_and_explained():
    with WorkerPool(2) as some, pytest.raises(UserError, match=DEATH):
        list(some.map(die, range(100)))


def test_so_is_its_death_in_the_middle_of_a_result():
    with WorkerPool(1) as some, pytest.raises(UserError, match=DEATH):
        list(some.map(larger_than_a_pipe, killed_while_it_sends(some)))


def killed_while_it_sends(some: WorkerPool) -> Iterator[int]:
    """Two items: while the second is asked for, the worker sends the result of the first, and is killed."""
    yield 1
    wait_until(some._connections[0].poll)
    os.kill(some._processes[0].pid, signal.SIGKILL)
    yield 2


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
        (errno.ENOSPC, "cannot write out: No space left on device; fix that"),
        (errno.EACCES, "cannot write out: Permission denied"),
        (errno.EAGAIN, "stopped by the system: Resource temporarily unavailable; use fewer --workers"),
        (errno.EIO, "stopped by the system: .*Input/output error; fix that"),
    ],
)
def test_errors_of_the_system_are_told_apart(number, message):
    with pytest.raises(UserError, match=message), explain_write_errors(Path("out")):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "name", "kept"),
    [
        (errno.ENOENT, "elsewhere/file", True),
        (errno.EACCES, b"out/../file", True),
        (errno.ENOENT, "out/file", False),
        (errno.ENOSPC, "elsewhere/file", False),  # such as a full /tmp
        (errno.EMFILE, "elsewhere/file", False),
        (errno.ENOENT, 7, False),  # a number of an open file
    ],
)
def test_errors_of_the_users_code_about_files_elsewhere_stay_as_they_are(number, name, kept):
    with (
        pytest.raises(OSError if kept else UserError),
        explain_write_errors(Path("out"), runs_users_code=True),
    ):
        raise OSError(number, os.strerror(number), name)


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
    """A script that finds this project's tests, too."""
    start = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    (tmp_path / "script.py").write_text(start + textwrap.dedent(text))
    return [sys.executable, str(tmp_path / "script.py")]


def start(tmp_path: Path, text: str, **options: Any) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(script(tmp_path, text), **pipes, text=True, **options)


# The workers' process ids when they have been started, and a line when they work.
ENDLESS = """
    from electrakit.common.workers import WorkerPool

    with WorkerPool(2) as workers:
        print(*(process.pid for process in workers._processes), flush=True)
        results = workers.map(abs, iter(int, 1))  # forever
        print("working", next(results), flush=True)
        for _ in results:
            pass
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_leave_when_the_main_process_is_killed(tmp_path, how):
    with start(tmp_path, ENDLESS) as main:
        processes = list(map(int, main.stdout.readline().split()))
        assert main.stdout.readline() == "working 0\n"
        assert len(processes) == 2 and all(map(is_alive, processes))
        main.send_signal(how)
        wait_until(lambda: not any(map(is_alive, processes)))
        assert main.stderr.read() == ""


# It prints a line when its workers do what the test is about.
BUSY = """
    from pathlib import Path
    from electrakit.common.workers import WorkerPool
    from tests.helpers.processes import wait_until
    from tests.helpers.worker_tasks import NeverLoaded, larger_than_a_pipe, wait_for_ever

    started = Path(sys.argv[0]).parent / "started"

    def items(item):
        yield item
        wait_until(lambda: {event})
        print("going", flush=True)
        while {goes_on}:
            yield item
        wait_until(lambda: False)

    with WorkerPool(2) as workers:
        list(workers.map({function}, items({item})))
"""
IS_SENDING = "workers._connections[0].poll() or workers._connections[1].poll()"


@pytest.mark.promise("Environment", "SIGKILL of the main process", "no worker is left")
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("function", "item", "event", "goes_on"),
    [
        pytest.param("abs", "1", IS_SENDING, False, id="idle"),
        pytest.param("larger_than_a_pipe", "1", IS_SENDING, False, id="sending a result that is not received"),
        pytest.param("larger_than_a_pipe", "1", True, True, id="sending"),
        pytest.param("len", "bytes(200_000_000)", True, True, id="receiving"),
        pytest.param("repr", "NeverLoaded(started)", "started.exists()", False, id="loading"),
        pytest.param("wait_for_ever", "started", "started.exists()", False, id="working"),
    ],
)
def test_no_worker_outlives_the_main_process_whatever_it_is_doing(tmp_path, function, item, event, goes_on):
    with start(tmp_path, BUSY.format(function=function, item=item, event=event, goes_on=goes_on)) as main:
        assert main.stdout.readline() == "going\n", main.stderr.read()
        processes = children_of(main.pid)
        assert len(processes) >= 2
        main.kill()
        wait_until(lambda: not any(map(is_alive, processes)))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize("num_children", [1, 2, 3])  # one of them is multiprocessing's own
def test_no_worker_outlives_a_main_process_that_is_killed_while_it_starts_them(tmp_path, num_children):
    with start(tmp_path, ENDLESS) as main:
        wait_until(lambda: len(children_of(main.pid)) >= num_children, main)
        processes = children_of(main.pid)
        main.kill()
        wait_until(lambda: not any(map(is_alive, processes)))


@pytest.mark.parametrize("is_working", [False, True])  # while the workers start, and while they work
def test_ctrl_c_of_a_terminal_reaches_the_main_process_only(tmp_path, is_working):
    with start(tmp_path, ENDLESS, start_new_session=True) as main:
        processes = list(map(int, main.stdout.readline().split()))
        assert not is_working or main.stdout.readline() == "working 0\n"
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
    with WorkerPool(1) as workers, pytest.raises(UserError, match="--this is yours to fix"):
        list(workers.as_done(complain, [1]))


class InPlace(WorkerPool):
    """Does each task at once, as a pool of another kind: `_send` and `_receive` are all that it has of its own."""

    def __init__(self) -> None:
        super().__init__(1)
        self._given = [deque()]

    def _send(self, worker, task, content):
        task.answer = perform(content)

    def _receive(self):
        self._given[0].popleft()


def test_another_kind_of_pool_needs_only_to_send_and_receive():
    assert list(InPlace().map(double, range(9))) == [2 * number for number in range(9)]
    assert sorted(InPlace().as_done(double, range(9))) == [(number, 2 * number) for number in range(9)]
