"""Runs fine-tuning jobs on worker processes, here or on a Ray cluster, and skips those that are finished."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from electrakit.common.errors import UserError
from electrakit.common.hardware import num_cores
from electrakit.common.ownership import remove_whole
from electrakit.common.progress import console
from electrakit.common.words import format_percent
from electrakit.common.workers import WorkerPool
from electrakit.common.workers_ray import open_pool
from electrakit.config.finetune import Keep, TuningConfig
from electrakit.finetune.job import FinetuneJob
from electrakit.finetune.results import JobResult, best_results
from electrakit.finetune.train_job import finetune_job, predict_test

JobGroup = TypeVar("JobGroup", str, int)
"""Of jobs: the name of a task, or the number of a trial."""
# Network file systems remember for up to a minute that a file is not there.
SECONDS_UNTIL_VISIBLE = 120.0


class JobPool:
    """Worker processes, started with the first job that is missing. A pool of one worker is this process."""

    def __init__(self, config: TuningConfig, is_in_process: bool = False) -> None:
        self.config = config
        has_one_worker = config.engine == "local" and (config.workers or num_workers(config)) == 1
        self.is_in_process = is_in_process or has_one_worker
        self._workers: WorkerPool | None = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._held.__exit__(*error)

    def results_of(self, jobs: Mapping[JobGroup, Sequence[FinetuneJob]]) -> dict[JobGroup, list[JobResult]]:
        """The results of groups of jobs. Those that are missing are run."""
        every = [job for group in jobs.values() for job in group]
        found = {job: result for job in every if (result := job.finished()) is not None}
        missing = [job for job in every if job not in found]
        if found:
            console.print(f"{len(found)} of {len(every)} runs are there already", markup=False)
        for number, job in enumerate(self._train(missing), 1):
            result = job.finished()  # as it was written: the same whether it was there or not
            assert result is not None
            found[job] = result
            _log(job, result, f"{number} of {len(missing)}")
        return {name: [found[job] for job in group] for name, group in jobs.items()}

    def ensure_models(self, jobs: Iterable[FinetuneJob]) -> None:
        """Train models again that were not kept: they will be the same."""
        for _ in self._train([job for job in jobs if not job.model_path.exists()]):
            pass

    def ensure_test_predictions(self, jobs: Sequence[FinetuneJob]) -> None:
        """Predict the test splits of jobs that have not done so."""
        missing = [job for job in jobs if not job.has_test()]
        self.ensure_models(missing)
        for _ in self._run(predict_test, missing):
            pass

    def _train(self, jobs: Sequence[FinetuneJob]) -> Iterator[FinetuneJob]:
        """The models that they start from come first, if they were not kept."""
        if starts := dict.fromkeys(job.start for job in jobs if job.start is not None):
            self.ensure_models(starts)
        yield from self._run(finetune_job, jobs)

    def _run(self, function: Callable[[FinetuneJob], Any], jobs: Sequence[FinetuneJob]) -> Iterator[FinetuneJob]:
        """Each job as soon as it is done."""
        if jobs and self._workers is None and not self.is_in_process:
            self._workers = self._held.enter_context(open_workers(self.config))
        if self._workers is None:
            for job in jobs:
                function(job)
                yield job
            return
        for job, _ in self._workers.as_done(function, jobs, FinetuneJob.describe):
            if self.config.engine == "ray":
                _wait_until_visible(job.result_path if function is finetune_job else job.test_path)
            yield job


def open_workers(config: TuningConfig) -> WorkerPool:
    usual = num_workers(config) if config.engine == "local" else 1
    num_threads, uses_gpu = config.threads or 1, config.device != "cpu"
    return open_pool(config.engine, config.workers, usual, tasks_ahead=1, num_cores=num_threads, uses_gpu=uses_gpu)


def num_workers(config: TuningConfig) -> int:
    """One for each GPU, or as many as the cores have threads for."""
    if config.device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, num_cores() // (config.threads or 1))


def _wait_until_visible(path: Path) -> None:
    """Wait for a file that another machine wrote: a shared file system shows it soon, another one never."""
    deadline = time.monotonic() + SECONDS_UNTIL_VISIBLE
    # A listing of the folder is fresh where the answer of exists() may be cached.
    while not path.parent.is_dir() or path not in path.parent.iterdir():
        if time.monotonic() > deadline:
            raise UserError(
                f"{path} was written on another machine and is not seen here; "
                "--engine ray needs a file system that all machines share"
            )
        time.sleep(0.5)


def _log(job: FinetuneJob, result: JobResult, progress: str) -> None:
    score = "undefined" if result.score is None else format_percent(result.score)
    line = f"{job.describe()}: {result.metric} {score}, {result.seconds['all']:,.0f} s ({progress})"
    line += f"; collapsed: {'; '.join(result.collapsed)}" if result.collapsed else ""
    console.print(line, markup=False, soft_wrap=True, style="yellow" if result.collapsed else None)


def best_job(jobs: Sequence[FinetuneJob], results: Sequence[JobResult]) -> FinetuneJob:
    seed = best_results(results)[0].seed
    return next(job for job in jobs if job.seed == seed)


def remove_models(jobs: Sequence[FinetuneJob], best: FinetuneJob, keep: Keep) -> None:
    """Remove the models of a task that are not to be kept."""
    for job in jobs:
        if keep == "none" or (keep == "best" and job != best):
            remove_whole(job.model_path, "model")
