"""What quality.py does in processes of its own, each on one core: train a recipe, measure the model, fine-tune it; and count words."""

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from electrakit import finetune, measure, pretrain
from electrakit.common.errors import UserError
from electrakit.common.safe_load import quiet_transformers
from electrakit.config.corpus import SHARDS_TOKENIZER
from electrakit.config.presets import PRESETS
from electrakit.config.pretrain import PretrainConfig, override
from electrakit.data.batches import Batches
from electrakit.data.counts import count_pairs
from electrakit.data.manifest import read_manifest
from electrakit.data.tokenizer_files import load_tokenizer
from electrakit.finetune.read_glue import Examples, read_split
from electrakit.finetune.tasks import TASKS
from electrakit.measure.probes import STATE_PENALTIES, WORD_PENALTIES, ProbeData, scores_of_features, word_features
from electrakit.model.build import transformers_model
from electrakit.model.counts import useful_flops
from electrakit.runs import layout
from electrakit.train.distributed import join_process_group
from electrakit.train.hardware_choices import has_bf16
from electrakit.train.loop import advance, train_step
from electrakit.train.state import TrainState
from electrakit.train.word_vectors import WINDOW, word_vectors

WARM_UP_STEPS, TIMED_STEPS = 2, 8
SAVES = 5  # checkpoints in a run, from which it resumes
VECTOR_SIZE = 128  # of counted words: the hidden size of mini

Result = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """A preset, and what is changed in it."""

    preset: str
    changes: dict[str, Any] = field(default_factory=dict)
    trained_by: Literal["electrakit", "transformers", "nothing"] = "electrakit"
    """`transformers`: its Trainer trains the discriminator as a masked LM; `nothing`: the weights stay random."""

    @property
    def has_generator(self) -> bool:
        return override(PRESETS[self.preset](), self.changes).generator is not None

    def config(self, data: Path, steps: int = 1, seed: int = 1, run: Path | None = None) -> PretrainConfig:
        """The settings of a run on these shards, or on those that the changes name. A tenth of it is warm-up at most."""
        data = Path(self.changes.get("data", data))
        manifest = read_manifest(data)
        fits = {"vocab_size": manifest.vocab_size, "length": manifest.length, "data": data}
        config = override(PRESETS[self.preset](), fits, self.changes)
        warmup_steps = min(config.optim.warmup_steps, steps // 10)
        intervals = {"log_every": max(1, steps // 50), "valid_every": steps, "save_every": max(1, steps // SAVES)}
        where = {"run": run, "steps": steps, "seed": seed, "optim": {"warmup_steps": warmup_steps}}
        return override(config, where, intervals, {"valid_rows": 32})  # the yardsticks come later


# --- training --------------------------------------------------------------------------------------------------------


class Clock:
    """CPU seconds of this process, read at some steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.seconds: list[float] = []

    def read(self, step: int) -> None:
        self.steps.append(step)
        self.seconds.append(time.process_time())

    def per_step(self) -> float | None:
        """The mean; None if it was not read twice."""
        return None if len(self.steps) < 2 else float(np.ptp(self.seconds) / np.ptp(self.steps))

    def median(self) -> float:
        """Of the steps after the warm-up, all of which were read."""
        return statistics.median(np.diff(self.seconds[WARM_UP_STEPS:]))


def plan(recipe: Recipe, data: Path, budget: str, flops: float | None) -> Result:
    """How many steps the budget buys, and the CPU seconds of the start, which may count words, and of a step."""
    if recipe.trained_by == "nothing":
        return {"steps": 0, "start": 0.0, "step": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        config = recipe.config(data, WARM_UP_STEPS + TIMED_STEPS, run=Path(folder))
        start, step = (time_trainer if recipe.trained_by == "transformers" else time_ours)(config)
    return {"steps": num_steps(config, start, step, seconds_of(budget), flops), "start": start, "step": step}


def num_steps(config: PretrainConfig, start: float, step: float, budget: float, flops: float | None) -> int:
    """For CPU seconds, of which the start is a part; or for FLOPs of matrix products."""
    if flops is not None:
        return max(1, round(flops / (useful_flops(config) * config.batch_size)))
    return max(1, round((budget - start) / step))


def seconds_of(budget: str) -> float:
    """30s, 3m, 2h or 1d as a number."""
    seconds = PretrainConfig(budget=budget).budget_seconds
    assert seconds is not None
    return seconds


def time_ours(config: PretrainConfig) -> tuple[float, float]:
    import transformers  # noqa: F401  # its seconds are not the recipe's

    clock, begun = Clock(), time.process_time()
    with join_process_group() as group, contextlib.closing(TrainState(config, None, group)) as state:
        start = time.process_time() - begun
        while state.progress.step < config.steps:
            advance(state, budget_used=0.0)
            train_step(state)
            state.progress.step += 1
            clock.read(state.progress.step)
    return start, clock.median()


def time_trainer(config: PretrainConfig) -> tuple[float, float]:
    clock = Clock()
    run_trainer(new_masked_lm(config), config, clock)
    return 0.0, clock.median()


def train(recipe: Recipe, data: Path, seed: int, plan: Result, folder: Path) -> Result:
    """Train, or resume, and put the model that is kept into `folder`/model, its generator into `folder`/generator."""
    clock, steps, run, model = Clock(), plan["steps"], folder / "run", folder / "model"
    config = recipe.config(data, max(1, steps), seed, run)
    assert config.data is not None
    for place in (model, folder / "generator"):
        shutil.rmtree(place, ignore_errors=True)
    if recipe.trained_by == "transformers":
        masked_lm = new_masked_lm(config)
        run_trainer(masked_lm, config, clock)
        masked_lm.save_pretrained(model)
        shutil.copytree(config.data / SHARDS_TOKENIZER, model, dirs_exist_ok=True)
    else:

        def read_clock(checkpoint: Path) -> None:
            step = int(checkpoint.name.removeprefix(layout.STEP))
            if step < steps:  # before the last one there is a validation
                clock.read(step)

        done = pretrain(config, on_checkpoint=read_clock, stop_after=steps)
        if done.step < steps:
            raise UserError(f"stopped at step {done.step} of {steps}")
        checkpoint = layout.checkpoint_path(run, steps)
        shutil.copytree(checkpoint / "discriminator", model)
        if config.generator is not None:
            shutil.copytree(checkpoint / "generator", folder / "generator")
    return {
        "steps": steps,
        "tokens": steps * config.batch_size * config.length,
        "cpu_seconds": plan["start"] + steps * (clock.per_step() or plan["step"]),
        "settings": config.to_json(),
    }


def new_masked_lm(config: PretrainConfig) -> Any:
    """One of transformers, with new weights."""
    torch.manual_seed(config.seed)
    return transformers_model(config.discriminator, "words")


def run_trainer(model: Any, config: PretrainConfig, clock: Clock) -> None:
    """Train, or resume, with transformers' Trainer, collator and AdamW, and a linear schedule."""
    import transformers

    class ReadClock(transformers.TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            clock.read(state.global_step)

    assert config.data is not None and config.run is not None
    optim = config.optim
    arguments = transformers.TrainingArguments(
        output_dir=str(config.run),
        max_steps=config.steps,
        per_device_train_batch_size=config.batch_size,
        learning_rate=optim.lr,
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        adam_epsilon=optim.eps,
        weight_decay=optim.weight_decay,
        max_grad_norm=optim.max_grad_norm or 0.0,
        warmup_steps=optim.warmup_steps,
        lr_scheduler_type="linear",
        seed=config.seed,
        save_steps=config.save_every,
        save_total_limit=1,
        logging_steps=config.log_every,
        report_to=[],
        use_cpu=True,
        bf16=has_bf16(torch.device("cpu")),
        disable_tqdm=True,
    )
    with quiet_transformers():
        tokenizer = transformers.AutoTokenizer.from_pretrained(config.data / SHARDS_TOKENIZER)
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=config.objective.mask_prob)
    rows = RowsForTrainer(config)
    trainer = transformers.Trainer(model, arguments, collator, train_dataset=rows, callbacks=[ReadClock()])
    trainer.train(resume_from_checkpoint=any(config.run.glob("checkpoint-*")))


class RowsForTrainer(torch.utils.data.Dataset):
    """The rows of a run, as the collator takes them; Trainer shuffles them once more."""

    def __init__(self, config: PretrainConfig) -> None:
        assert config.data is not None
        self.rows = Batches(config.data, 1, seed=config.seed)
        self.num_rows = config.steps * config.batch_size
        special = self.rows.special_ids
        self.pad, self.special = special["pad"], [number for name, number in special.items() if name != "unk"]

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        ids = torch.from_numpy(self.rows(number)[0])
        is_special = torch.isin(ids, torch.tensor(self.special))
        return {"input_ids": ids, "attention_mask": (ids != self.pad).long(), "special_tokens_mask": is_special.long()}


# --- yardsticks ------------------------------------------------------------------------------------------------------


def measure_corruptions(model: Path, data: Path) -> Result:
    """The AUC of each way of corruption."""
    (ways,) = measure(model, data=data)[0].corruptions.values()
    return {name: auc.value for name, auc in ways.items()}


def measure_pairs(model: Path, pairs: Path) -> Result:
    """The accuracy on minimal pairs: all of them, for a masked LM 100 of each file."""
    (found,) = measure(model, pairs=pairs)[0].pairs.values()
    return {"minimal pairs": found.accuracy, "phenomena": found.phenomena, "num_pairs": found.num_pairs}


def finetune_model(model: Path, task: str, glue: Path, lr: float, epochs: float, seeds: int, out: Path) -> Result:
    """The dev scores after fine-tuning with this rate, one for each seed."""
    result = finetune(
        model,
        task=task,
        data=glue,
        lr=lr,
        epochs=epochs,
        seeds=seeds,
        preset="small_budget",
        precision="bf16" if has_bf16(torch.device("cpu")) else "fp32",
        out=out,
        workers=1,
        threads=1,
        device="cpu",
        keep="none",
    )
    return {"scores": result.scores, "metric": result.metric, "collapsed": result.collapsed}


# --- linear models on words ------------------------------------------------------------------------------------------


def score_tf_idf(tasks: tuple[str, ...], glue: Path) -> Result:
    """By title of the task: logistic or ridge regression on tf-idf."""
    found = {}
    for data in read_tasks(tasks, glue):
        train, dev = word_features(data.train, data.dev)
        found[data.task.title] = scores_of_features(data, train, dev, WORD_PENALTIES)[data.task.metrics[0]]
    return found


def score_counted_vectors(tasks: tuple[str, ...], glue: Path, shards: Path) -> Result:
    """The same on the mean of the word vectors of each text; of two texts, on |u - v| and u * v."""
    vectors, is_known = word_vectors(count_pairs(shards, range(1, WINDOW + 1)), VECTOR_SIZE)
    vectors[~is_known] = 0
    tokenizer = load_tokenizer(shards / SHARDS_TOKENIZER).tokenizer

    def means(texts: list[str]) -> Tensor:
        ids = [torch.tensor(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
        lengths = torch.tensor([len(each) for each in ids])
        return F.embedding_bag(torch.cat(ids).long(), vectors, lengths.cumsum(0) - lengths).double()

    def features(examples: Examples) -> Tensor:
        first = means(examples.first)
        if examples.second is None:
            return first
        second = means(examples.second)
        return torch.cat([(first - second).abs(), first * second], -1)

    found = {}
    for data in read_tasks(tasks, glue):
        train, dev = features(data.train), features(data.dev)
        mean, deviation = train.mean(0), train.std(0).clamp(min=1e-6)
        train, dev = (train - mean) / deviation, (dev - mean) / deviation
        found[data.task.title] = scores_of_features(data, train, dev, STATE_PENALTIES)[data.task.metrics[0]]
    return found


def read_tasks(names: tuple[str, ...], glue: Path) -> Iterator[ProbeData]:
    for task in (TASKS[name] for name in names):
        train, dev = (read_split(str(glue), task, task.split(split)) for split in ("train", "dev"))
        yield ProbeData(task.name, task, train, dev)
