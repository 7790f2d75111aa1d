"""Worker pools by the name of their engine: processes of this machine, or of a Ray cluster that shares its file system.

Both give the same results; `WorkerPool` hands out the tasks and orders the results.
"""

import contextlib
import math
import os
import pickle
import platform
import socket
import traceback
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

import electrakit
from electrakit.common.errors import UserError, first_line
from electrakit.common.progress import print_message
from electrakit.common.workers import TASKS_AHEAD, WorkerPool, WorkerTask, perform, prepare_worker

# A cluster may be busy: waiting for its workers is no error, but must not look like a hang.
SECONDS_BEFORE_MESSAGE = 30.0
SECONDS_TO_ANSWER = 20.0


def open_pool(
    engine: str,
    wanted: int | None,
    usual: int,
    at_most: float = math.inf,
    tasks_ahead: int = TASKS_AHEAD,
    num_cores: int = 1,
    uses_gpu: bool = False,
) -> WorkerPool:
    """A pool of as many workers as wanted; by default `usual`, or as many as the cluster has room for, but at most `at_most`.

    num_cores, uses_gpu: what one worker keeps busy.
    """
    if engine == "ray":
        return RayWorkerPool(wanted, at_most, tasks_ahead, num_cores, uses_gpu)
    return WorkerPool(wanted or int(min(usual, at_most)), tasks_ahead)


class RayWorkerPool(WorkerPool):
    """Workers on a Ray cluster: the one at RAY_ADDRESS, or one that is started here and stopped afterwards."""

    def __init__(self, wanted: int | None, at_most: float, tasks_ahead: int, num_cores: int, uses_gpu: bool) -> None:
        super().__init__(wanted or 0, tasks_ahead)
        self.wanted, self.at_most, self.num_cores, self.uses_gpu = wanted, at_most, num_cores, uses_gpu
        self._ray: Any = None
        self._is_ours = False  # whether we connected, and so must disconnect
        self._actors: list[Any] = []
        self._waiting: dict[Any, tuple[int, WorkerTask]] = {}  # by Ray's reference to the result

    def __enter__(self) -> "RayWorkerPool":
        self._ray = import_ray()
        try:
            self._connect()
            self.num_workers = self.wanted or self._room()
            self._start_all()
        except BaseException:  # Python calls no __exit__ then
            self.__exit__()
            raise
        return self

    def _connect(self) -> None:
        if self._ray.is_initialized():  # by the caller's own program: it stays as it is
            return
        address = os.environ.get("RAY_ADDRESS")
        if address:
            require_answer(address)
        # A cluster that is started here has room for as many as are wanted, as without Ray.
        room = {} if address or not self.wanted else {"num_cpus": self.wanted * self.num_cores}
        try:
            self._ray.init(
                address or "local", log_to_driver=False, logging_level="ERROR", include_dashboard=False, **room
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = (
                f"the Ray cluster at RAY_ADDRESS={address} cannot be reached" if address else "Ray cannot be started"
            )
            raise UserError(f"{where}: {first_line(error)}; fix that, or use --engine local") from None
        self._is_ours = True

    def _room(self) -> int:
        """One for each GPU of the cluster, or as many as its cores have room for."""
        resources = self._ray.cluster_resources()
        self.uses_gpu = self.uses_gpu and resources.get("GPU", 0) >= 1
        room = resources["GPU"] if self.uses_gpu else resources.get("CPU", 1) // self.num_cores
        return int(max(1, min(room, self.at_most)))

    def _start_all(self) -> None:
        remote = self._ray.remote(num_cpus=self.num_cores, num_gpus=1 if self.uses_gpu else 0)(Actor)
        folder = str(Path.cwd())
        self._actors = [remote.remote(number, folder) for number in range(self.num_workers)]
        self._given = [deque() for _ in self._actors]
        missing = {actor.greet.remote(): number for number, actor in enumerate(self._actors)}
        is_reported = False
        while missing:
            ready, _ = self._ray.wait(list(missing), timeout=SECONDS_BEFORE_MESSAGE)
            for reference in ready:
                self._check_worker(reference, missing.pop(reference), folder)
            if not ready and not is_reported:
                found = self.num_workers - len(missing)
                line = f"{found} of {self.num_workers} Ray workers are there; waiting for the cluster to have room"
                print_message(line, "yellow")
                is_reported = True

    def _check_worker(self, reference: Any, number: int, folder: str) -> None:
        try:
            version, sees_folder, machine = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            last_line = str(error).strip().rpartition("\n")[2].strip().rstrip(".") or type(error).__name__
            raise UserError(
                f"Ray worker {number} cannot be started: {last_line}; "
                "install the same electrakit on every machine of the cluster"
            ) from None
        if version != electrakit.__version__:
            raise UserError(
                f"{machine} has electrakit {version}, here it is {electrakit.__version__}; "
                "install the same on every machine of the cluster"
            )
        if not sees_folder:
            raise UserError(
                f"{machine} has no folder {folder}; --engine ray needs a file system that all machines share"
            )

    def __exit__(self, *_: object) -> None:
        if self._ray is None or not self._ray.is_initialized():
            return
        for actor in self._actors:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)
        self._waiting.clear()
        self._actors = []
        if self._is_ours:
            self._ray.shutdown()

    def _send(self, worker: int, task: WorkerTask, content: bytes) -> None:
        self._waiting[self._actors[worker].perform.remote(content)] = worker, task

    def _receive(self) -> None:
        ready, _ = self._ray.wait(list(self._waiting))
        for reference in ready:
            worker, task = self._waiting.pop(reference)
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayError:
                self._raise_dead(worker)
            self._given[worker].remove(task)
            task.answer = pickle.loads(answer)

    def _raise_dead(self, worker: int) -> NoReturn:
        raise UserError(
            f"Ray worker {worker} died while working on {self._given[worker][0].description}: killed from outside, "
            "out of memory, or crashed; start the same command again to resume, with fewer --workers if memory is short"
        ) from None


class Actor:
    """A worker as Ray runs it, somewhere on the cluster."""

    def __init__(self, number: int, folder: str) -> None:
        prepare_worker(number)
        self.sees_folder = Path(folder).is_dir()
        if self.sees_folder:
            os.chdir(folder)  # relative names mean here what they mean there

    def greet(self) -> tuple[str, bool, str]:
        """The version of this package, whether the caller's folder is there, and the machine's name."""
        return electrakit.__version__, self.sees_folder, platform.node()

    def perform(self, task: bytes) -> bytes:
        try:
            return pickle.dumps(perform(task))
        except Exception:  # the result cannot be sent
            return pickle.dumps((False, traceback.format_exc()))


def import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it calls home
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'electrakit[ray]'") from None
    return ray


def require_answer(address: str) -> None:
    """Check the port first: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()
        except OSError as error:
            raise UserError(
                f"no Ray cluster answers at RAY_ADDRESS={address}: {error.strerror or error}; "
                "fix that, unset it to start Ray here, or use --engine local"
            ) from None
