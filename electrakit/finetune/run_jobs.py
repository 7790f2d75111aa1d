"""Runs fine-tuning jobs on worker processes, here or on a Ray cluster, and skips those that are finished."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from electrakit.common.errors import UserError
from electrakit.common.hardware import num_cores
from electrakit.common.progress import console
from electrakit.common.workers import WorkerPool
from electrakit.common.workers_ray import open_pool
from electrakit.config.finetune import TuningConfig
from electrakit.finetune.job import FinetuneJob
from electrakit.finetune.results import JobResult, best_results

Keep = Literal["best", "all", "none"]
# Network file systems remember for up to a minute that a file is not there.
SECONDS_UNTIL_VISIBLE = 120.0


class JobPool:
    """Worker processes, started with the first job that is missing. A pool of one worker is this process."""

    def __init__(self, config: TuningConfig, is_in_process: bool = False) -> None:
        self.config = config
        self.is_in_process = is_in_process or (
            config.engine == "local" and (config.workers or num_workers(config)) == 1
        )
        self._pool: WorkerPool | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "JobPool":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def results_of(
        self, jobs: Mapping[str, Sequence[FinetuneJob]], start_jobs: Sequence[FinetuneJob] = ()
    ) -> dict[str, list[JobResult]]:
        """The results of all jobs, by task. Those that are missing are run.

        `start_jobs`: jobs whose models the missing ones start from.
        """
        from electrakit.finetune.train_job import finetune_job

        every = [job for group in jobs.values() for job in group]
        found = {job: job.finished() for job in every}
        missing = [job for job, result in found.items() if result is None]
        if len(missing) < len(every):
            console.print(f"{len(every) - len(missing)} of {len(every)} runs are there already", markup=False)
        self.ensure_models(start_jobs if missing else ())
        for number, (job, result) in enumerate(self._run(finetune_job, missing), 1):
            found[job] = job.finished()  # as it was written: the same whether it was there or not
            _log(job, result, f"{number} of {len(missing)}")
        return {name: [result for job in group if (result := found[job]) is not None] for name, group in jobs.items()}

    def ensure_models(self, jobs: Sequence[FinetuneJob], others: Sequence[FinetuneJob] = ()) -> None:
        """Train models again that were not kept: they will be the same. So are those of `others` that they start from."""
        from electrakit.finetune.train_job import finetune_job

        missing = [job for job in jobs if not job.model_path.exists()]
        starts = {job.start_from for job in missing}
        if start_jobs := [job for job in others if str(job.model_path) in starts]:
            self.ensure_models(start_jobs)
        for _ in self._run(finetune_job, missing):
            pass

    def ensure_test_predictions(self, jobs: Sequence[FinetuneJob], others: Sequence[FinetuneJob] = ()) -> None:
        """Predict the test splits of jobs that have not done so. `others`: as for `ensure_models`."""
        from electrakit.finetune.train_job import predict_test

        missing = [job for job in jobs if not job.has_test()]
        self.ensure_models(missing, others)
        for _ in self._run(predict_test, missing):
            pass

    def _run(
        self, function: Callable[[FinetuneJob], Any], jobs: Sequence[FinetuneJob]
    ) -> Iterator[tuple[FinetuneJob, Any]]:
        if not jobs:
            return iter(())
        if self.is_in_process:
            return ((job, function(job)) for job in jobs)
        if self._pool is None:
            self._pool = self._stack.enter_context(_open_pool(self.config))
        done = self._pool.as_done(function, jobs, FinetuneJob.describe)
        return _once_visible(function, done) if self.config.engine == "ray" else done


def _open_pool(config: TuningConfig) -> WorkerPool:
    usual = num_workers(config) if config.engine == "local" else 1
    num_threads, uses_gpu = config.threads or 1, config.device != "cpu"
    return open_pool(config.engine, config.workers, usual, tasks_ahead=1, num_cores=num_threads, uses_gpu=uses_gpu)


def num_workers(config: TuningConfig) -> int:
    """One for each GPU, or as many as the cores have threads for."""
    import torch

    if config.device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, num_cores() // (config.threads or 1))


def _once_visible(
    function: Callable[[FinetuneJob], Any], done: Iterator[tuple[FinetuneJob, Any]]
) -> Iterator[tuple[FinetuneJob, Any]]:
    """Wait for files that another machine wrote: a shared file system shows them soon, another one never."""
    from electrakit.finetune.train_job import predict_test

    for job, result in done:
        path = job.test_path if function is predict_test else job.result_path
        deadline = time.monotonic() + SECONDS_UNTIL_VISIBLE
        # A listing of the folder is fresh where the answer of exists() may be cached.
        while not path.parent.is_dir() or path not in path.parent.iterdir():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{path} was written on another machine and is not seen here; "
                    "--engine ray needs a file system that all machines share"
                )
            time.sleep(0.5)
        yield job, result


def _log(job: FinetuneJob, result: JobResult, progress: str) -> None:
    is_undefined = result.score is None or result.score != result.score
    score = "undefined" if is_undefined else f"{100 * result.score_or_zero:.1f}"
    line = f"{job.describe()}: {result.metric} {score}, {result.seconds['all']:,.0f} s ({progress})"
    line += f"; collapsed: {'; '.join(result.collapsed)}" if result.collapsed else ""
    console.print(line, markup=False, soft_wrap=True, style="yellow" if result.collapsed else None)


def best_job(jobs: Sequence[FinetuneJob], results: Sequence[JobResult]) -> FinetuneJob:
    seed = best_results(results)[0].seed
    return next(job for job in jobs if job.seed == seed)


def remove_models(
    jobs: Mapping[str, Sequence[FinetuneJob]], results: Mapping[str, Sequence[JobResult]], keep: Keep
) -> None:
    """Remove the models that are not to be kept: all but the `best` of each task, or all with `none`."""
    for name, group in jobs.items():
        best = best_results(results[name])[0].seed
        for job in group:
            if keep == "none" or (keep == "best" and job.seed != best):
                shutil.rmtree(job.model_path, ignore_errors=True)
