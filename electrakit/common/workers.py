"""A pool of worker processes: ordered results, bounded memory, and an error that names the task when a worker dies."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, TypeVar

from electrakit.common.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Tasks that one worker has at a time: one to work on, and one waiting, so that it never idles.
TASKS_AHEAD = 2
# The environment variable with a worker's number, by which it may choose its GPU.
WORKER = "ELECTRAKIT_WORKER"
# The processes are the parallelism.
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
# Document batches are a hundred thousand small strings: garbage collections that look through them are slow.
GC_THRESHOLD = 200_000
CRASHES = [-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGBUS]


@dataclass(eq=False)
class WorkerTask:
    """What a worker was given to do."""

    description: str
    answer: tuple[bool, Any] | None = None  # once it is done: what `perform` returned


class WorkerPool:
    """`with WorkerPool(4) as pool: for result in pool.map(function, items): ...`

    Results come in the order of the items, whatever the number of workers, and only a few items are taken ahead, so
    memory stays flat. Maps may be nested: the items of one may come from another map of the same pool.
    """

    def __init__(self, num_workers: int, tasks_ahead: int = TASKS_AHEAD) -> None:
        self.num_workers = num_workers
        self.tasks_ahead = tasks_ahead
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._given: list[deque[WorkerTask]] = []  # what each worker has to do, in the order of its work

    def __enter__(self) -> "WorkerPool":
        # spawn: a fork of a process that has threads (tokenizers, torch) can deadlock
        context = multiprocessing.get_context("spawn")
        with _hidden_main(), _delayed_interrupts():
            try:
                for _ in range(self.num_workers):
                    self._start(context)
            except BaseException:  # such as too many open files; Python calls no __exit__ then
                self.__exit__()
                raise
        return self

    def _start(self, context: Any) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, len(self._processes)), daemon=True)
        self._connections.append(ours)
        with contextlib.closing(theirs):
            process.start()
        self._processes.append(process)
        self._given.append(deque())

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()
            process.close()

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        describe: Callable[[Item], str] = lambda _: "its task",
    ) -> Iterator[Result]:
        """`function(item)` for each item, in order. The function must be importable: it is sent by name.

        describe: what an error message calls the task of an item.
        """
        max_ahead = self.num_workers * self.tasks_ahead
        tasks: deque[WorkerTask] = deque()
        for item in items:
            while len(tasks) >= max_ahead:
                yield self._wait_for(tasks.popleft())
            tasks.append(self._submit(function, item, describe(item)))
            while tasks and tasks[0].answer:
                yield self._wait_for(tasks.popleft())
        while tasks:
            yield self._wait_for(tasks.popleft())

    def as_done(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        describe: Callable[[Item], str] = lambda _: "its task",
    ) -> Iterator[tuple[Item, Result]]:
        """Each item with its result, in the order of completion: for long tasks, where no result waits for another."""
        waiting: dict[WorkerTask, Item] = {}
        for item in items:
            waiting[self._submit(function, item, describe(item))] = item
            for task in [each for each in waiting if each.answer]:
                yield waiting.pop(task), self._wait_for(task)
        while waiting:
            if not any(task.answer for task in waiting):
                self._receive()
            for task in [each for each in waiting if each.answer]:
                yield waiting.pop(task), self._wait_for(task)

    def _submit(self, function: Callable[[Any], Any], item: Any, description: str) -> WorkerTask:
        while min(map(len, self._given)) >= self.tasks_ahead:
            self._receive()
        worker = min(range(self.num_workers), key=lambda one: len(self._given[one]))
        task = WorkerTask(description)
        self._send(worker, task, pickle.dumps((function, item)))
        self._given[worker].append(task)
        return task

    def _send(self, worker: int, task: WorkerTask, content: bytes) -> None:
        """Give a worker a task. Like `_receive`, another kind of pool may do it in its own way."""
        try:
            self._connections[worker].send_bytes(content)
        except (BrokenPipeError, ConnectionResetError):
            self._raise_dead(worker)

    def _wait_for(self, task: WorkerTask) -> Any:
        while task.answer is None:
            self._receive()
        is_good, result = task.answer
        if is_good:
            return result
        if isinstance(result, UserError):
            raise result
        raise RuntimeError(f"a worker process failed while working on {task.description}:\n{result}")

    def _receive(self) -> None:
        """Wait for results and store them. A worker does its tasks in order."""
        for connection in wait(self._connections):
            worker = self._connections.index(connection)  # type: ignore[arg-type]  # wait() returns what it was given
            try:
                answer = self._connections[worker].recv()
            except (EOFError, OSError):  # OSError: it died in the middle of a result
                self._raise_dead(worker)
            self._given[worker].popleft().answer = answer

    def _raise_dead(self, worker: int) -> NoReturn:
        self._processes[worker].join(5)
        code = self._processes[worker].exitcode
        death = f"worker process {worker} died (exit code {code})"
        description = self._given[worker][0].description if self._given[worker] else "nothing"
        if code == -signal.SIGKILL:
            raise UserError(
                f"{death}: killed from outside, or out of memory; "
                "start the same command again to resume, with fewer --workers if memory is short"
            )
        if code in CRASHES:
            raise UserError(f"{death}: crashed in a native library while working on {description}; please report it")
        raise UserError(f"{death} while working on {description}; start the same command again to resume")


def _serve(connection: Connection, number: int) -> None:
    """The main loop of a worker: a thread receives tasks ahead, and they are done one after the other."""
    prepare_worker(number)
    tasks: queue.Queue[bytes] = queue.Queue()

    def receive() -> None:
        try:
            while True:
                tasks.put(connection.recv_bytes())
        finally:  # the main process has gone, however it ended: this one ends too, also in the middle of a task
            os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        answer = perform(tasks.get())
        try:
            connection.send(answer)
        except OSError:
            os._exit(0)
        except Exception:  # the result cannot be sent
            connection.send((False, traceback.format_exc()))


def prepare_worker(number: int) -> None:
    """In a new process, before the libraries that read the environment are loaded."""
    os.environ.update(ONE_THREAD)
    os.environ[WORKER] = str(number)
    gc.set_threshold(GC_THRESHOLD)


def perform(task: bytes) -> tuple[bool, Any]:
    """Do a task: whether it succeeded, and its result or the error."""
    try:
        # Unpickled here, not while receiving: a task that cannot be loaded fails alone.
        function, item = pickle.loads(task)
        return True, function(item)
    except UserError as error:
        return False, error
    except Exception:
        return False, traceback.format_exc()


@contextlib.contextmanager
def _delayed_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: processes started in here ignore it, and this one gets it afterwards."""
    # Else the first start would start it, and it unblocks the signal.
    resource_tracker.ensure_running()
    # The mask is inherited by the processes that are started.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Another thread may still take the signal, which would interrupt this one in the middle of a start.
    was_interrupted = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda *_: was_interrupted.set()) if is_main else None
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if was_interrupted.is_set():
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Workers do not import the caller's script, so that it needs no `if __name__ == "__main__"`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
