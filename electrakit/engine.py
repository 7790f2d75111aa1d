"""Work in, results out, in the same order: a pool of worker processes that notices when one of them dies."""

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
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, TypeVar

from electrakit.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

TASKS_AHEAD = 2  # tasks given to one worker at a time: one to work on, one waiting so that it never idles
WORKER = "ELECTRAKIT_WORKER"  # in its environment a worker finds which one it is: it may have a GPU of its own
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
CRASHES = [-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGBUS]


class Workers:
    """`with Workers(4) as workers: for result in workers.map(function, items): ...`

    Results come in the order of the items, whatever the number of workers, and only a few items are taken ahead, so
    memory stays flat. Maps may be nested: the items of one may come from another on the same workers.
    """

    def __init__(self, num_workers: int, tasks_ahead: int = TASKS_AHEAD) -> None:
        self.num_workers = num_workers
        self.tasks_ahead = tasks_ahead
        self._results: dict[int, tuple[bool, Any]] = {}
        self._next_ticket = 0
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._given: list[deque[int]] = []  # the tickets that each worker has, in the order of its work
        self._descriptions: dict[int, str] = {}

    def __enter__(self) -> "Workers":
        # spawn: a fork of a process that has threads (tokenizers, torch) can deadlock
        context = multiprocessing.get_context("spawn")
        with _hidden_main(), _quiet_threads(), _interrupts_later():
            try:
                for _ in range(self.num_workers):
                    self._start(context)
            except BaseException:  # such as too many open files: nobody calls __exit__ then
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

        `describe(item)` says in an error what the worker was working on.
        """
        max_ahead = self.num_workers * self.tasks_ahead
        tickets: deque[int] = deque()
        for item in items:
            while len(tickets) >= max_ahead:
                yield self._take(tickets.popleft())
            tickets.append(self._give(function, item, describe(item)))
            while tickets and tickets[0] in self._results:
                yield self._take(tickets.popleft())
        while tickets:
            yield self._take(tickets.popleft())

    def as_done(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        describe: Callable[[Item], str] = lambda _: "its task",
    ) -> Iterator[tuple[Item, Result]]:
        """Each item with its result, whichever is finished first: for long work, where none shall wait for another."""
        waiting: dict[int, Item] = {}
        for item in items:
            waiting[self._give(function, item, describe(item))] = item
            for ticket in [each for each in waiting if each in self._results]:
                yield waiting.pop(ticket), self._take(ticket)
        while waiting:
            while not any(ticket in self._results for ticket in waiting):
                self._receive()
            for ticket in [each for each in waiting if each in self._results]:
                yield waiting.pop(ticket), self._take(ticket)

    def _give(self, function: Callable[[Any], Any], item: Any, description: str) -> int:
        while min(map(len, self._given)) >= self.tasks_ahead:
            self._receive()
        worker = min(range(self.num_workers), key=lambda one: len(self._given[one]))
        ticket = self._next_ticket
        self._next_ticket += 1
        self._descriptions[ticket] = description
        self._send(worker, ticket, pickle.dumps((function, item)))
        self._given[worker].append(ticket)
        return ticket

    def _send(self, worker: int, ticket: int, task: bytes) -> None:
        try:
            self._connections[worker].send((ticket, task))
        except (BrokenPipeError, ConnectionResetError):
            self._lost(worker)

    def _take(self, ticket: int) -> Any:
        while ticket not in self._results:
            self._receive()
        is_good, value = self._results.pop(ticket)
        description = self._descriptions.pop(ticket)
        if is_good:
            return value
        if isinstance(value, UserError):
            raise value
        raise RuntimeError(f"a worker process failed while working on {description}:\n{value}")

    def _receive(self) -> None:
        """Wait for results and store them."""
        for connection in wait(self._connections):
            worker = self._connections.index(connection)  # type: ignore[arg-type]  # wait() returns what it was given
            try:
                ticket, is_good, value = self._connections[worker].recv()
            except (EOFError, OSError):  # OSError: it died in the middle of a result
                self._lost(worker)
            self._given[worker].remove(ticket)
            self._results[ticket] = is_good, value

    def _lost(self, worker: int) -> NoReturn:
        self._processes[worker].join(5)
        code = self._processes[worker].exitcode
        death = f"worker process {worker} died (exit code {code})"
        description = self._descriptions[self._given[worker][0]] if self._given[worker] else "nothing"
        if code == -signal.SIGKILL:
            raise UserError(
                f"{death}: killed from outside, or out of memory; "
                "start the same command again to go on, with fewer --workers if memory is short"
            )
        if code in CRASHES:
            raise UserError(f"{death}: crashed in a native library while working on {description}; please report it")
        raise UserError(f"{death} while working on {description}; start the same command again to go on")


def _serve(connection: Connection, number: int) -> None:
    """A worker's life: take tasks ahead in a thread, do one after the other, until the other side closes."""
    os.environ[WORKER] = str(number)
    # A piece is a hundred thousand small strings: looking through them again and again is slow.
    gc.set_threshold(200_000)
    tasks: queue.Queue[Any] = queue.Queue()

    def receive() -> None:
        try:
            while True:
                tasks.put(connection.recv())
        finally:  # the main process is gone, whatever it was doing: so is the reason to go on
            os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        ticket, task = tasks.get()
        answer = perform(task)
        try:
            connection.send((ticket, *answer))
        except OSError:
            os._exit(0)
        except Exception:  # the result cannot be sent
            connection.send((ticket, False, traceback.format_exc()))


def perform(task: bytes) -> tuple[bool, Any]:
    """Do a task: whether it went well, and its result or what went wrong."""
    try:
        # Here, not while receiving: what cannot be loaded is this task's failure.
        function, item = pickle.loads(task)
        return True, function(item)
    except UserError as error:
        return False, error
    except Exception:
        return False, traceback.format_exc()


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: what is started in here never sees it, and we see it afterwards."""
    resource_tracker.ensure_running()  # else the first start starts it, and it unblocks the signal when it is there
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by what is started
    # Another thread may still take the signal, and then it would interrupt us in the middle of a start.
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
    """Workers import only this package, so that a script without `if __name__ == "__main__"` may call us."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """One thread in each worker: the processes are the parallelism."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
