"""Compare the speed of fine-tuning with transformers' Trainer: the same model, task, batch size and epochs on the same cores.

    python benchmarks/finetune.py MODEL --data glue --task cola --epochs 3 --seeds 3

Trainer pads each batch to its longest row, uses all cores for one run, and runs the seeds one after the other. Ours uses one core per
run and runs as many seeds at once as there are cores. Both start in a new process, read and tokenize, train, and score on dev. Needs
`pip install accelerate`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from electrakit.finetune.metrics import METRICS
from electrakit.finetune.read_glue import read_split
from electrakit.finetune.tasks import find_task


def with_ours(arguments: argparse.Namespace, out: Path) -> list[float]:
    """Run `electra finetune` like a user."""
    command = [sys.executable, "-m", "electrakit", "finetune", arguments.model, "--task", arguments.task]
    command += ["--data", arguments.data, "--seeds", arguments.seeds, "--epochs", arguments.epochs, "--out", out]
    command += ["--batch-size", arguments.batch_size, "--lr", arguments.lr, "--device", "cpu"]
    command += ["--head", arguments.head, "--layer-decay", 1.0, "--keep", "none"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return json.loads((out / "results.json").read_text())["scores"]


def with_trainer(arguments: argparse.Namespace, out: Path) -> list[float]:
    """Run each seed in a new process, with all cores."""
    scores = []
    for seed in range(1, arguments.seeds + 1):
        command = [sys.executable, __file__, arguments.model, "--trainer-seed", seed, "--data", arguments.data]
        command += ["--task", arguments.task, "--epochs", arguments.epochs, "--batch-size", arguments.batch_size]
        command += ["--lr", arguments.lr]
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
        scores.append(float(done.stdout.splitlines()[-1]))
    return scores


def run_trainer(arguments: argparse.Namespace) -> float:
    """Run Trainer as its documentation shows, with dynamic padding; nothing is saved or reported."""
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()
    task = find_task(arguments.task)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)

    def rows_of(split: str) -> datasets.Dataset:
        rows = read_split(arguments.data, task, task.split(split))
        texts = (rows.first,) if rows.second is None else (rows.first, rows.second)
        if split == "train" and task.both_orders and rows.second is not None:
            texts = (rows.first + rows.second, rows.second + rows.first)
        encoded = dict(tokenizer(*texts, truncation=True, max_length=128))
        labels = (rows.labels or []) * (len(texts[0]) // len(rows))
        encoded["label"] = [label / task.scale for label in labels] if task.is_regression else list(map(int, labels))
        return datasets.Dataset.from_dict(encoded)

    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        arguments.model, num_labels=len(task.labels or "1"), problem_type="regression" if task.is_regression else None
    )
    settings = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=arguments.batch_size,
        per_device_eval_batch_size=arguments.batch_size,
        learning_rate=arguments.lr,
        warmup_steps=0.1,
        lr_scheduler_type="linear",
        seed=arguments.trainer_seed,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = transformers.Trainer(model, settings, train_dataset=rows_of("train"), processing_class=tokenizer)
    trainer.train()
    dev = rows_of("dev")
    logits = trainer.predict(dev).predictions
    predictions = logits[:, 0] if task.is_regression else logits.argmax(-1)
    return METRICS[task.metrics[0]](dev["label"], predictions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--task", default="cola")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--head", choices=["official", "transformers"], default="transformers")
    parser.add_argument("--trainer-seed", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trainer_seed is not None:
        print(run_trainer(arguments))
        return
    table = Table("", "seconds", "dev score, median", "runs")
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, run in {"electra finetune": with_ours, "transformers.Trainer": with_trainer}.items():
            started = time.perf_counter()
            scores = run(arguments, Path(folder) / "out")
            seconds[name] = time.perf_counter() - started
            each = " ".join(f"{100 * score:.1f}" for score in scores)
            table.add_row(name, f"{seconds[name]:.1f}", f"{100 * statistics.median(scores):.1f}", each)
    Console().print(table)
    print(f"{seconds['transformers.Trainer'] / seconds['electra finetune']:.2f} times as fast")


if __name__ == "__main__":
    main()
