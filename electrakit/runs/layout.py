"""The names of all files and folders of a run, and where its checkpoints are.

runs/mine/                              config.json, environment.json, status.json, metrics.jsonl, measure.json, tensorboard/, glue/
runs/mine/checkpoints/step_0005000/     model.safetensors, optimizer.safetensors, state.json, discriminator/, generator/, manifest.json
"""

from pathlib import Path

CONFIG_FILE = "config.json"
ENVIRONMENT_FILE = "environment.json"
STATUS_FILE = "status.json"
METRICS_FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"
WANDB_ID = "wandb_id"
WANDB = "wandb"
GLUE_RESULTS = "glue/results.json"
MEASURE_FILE = "measure.json"
CHECKPOINTS = "checkpoints"

# In a checkpoint, beside the networks in the format of transformers. The manifest is written last: without it a checkpoint is incomplete.
WEIGHTS_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
PROGRESS_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
NETWORKS = ("discriminator", "generator")

STEP = "step_"


def checkpoint_path(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"{STEP}{step:07d}"


def checkpoint_steps(run: Path) -> list[int]:
    """The steps of all checkpoints, in order. A folder with a name that we do not write, such as a copy step_8, is none."""
    names = [path.name.removeprefix(STEP) for path in (run / CHECKPOINTS).glob(f"{STEP}*") if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal() and f"{int(name):07d}" == name)


def newest_checkpoint(run: Path) -> Path | None:
    """The newest one that is complete; its hashes are not verified."""
    paths = [checkpoint_path(run, step) for step in reversed(checkpoint_steps(run))]
    return next((path for path in paths if (path / MANIFEST_FILE).exists()), None)


def run_of_checkpoint(path: Path) -> Path | None:
    """The run that a checkpoint belongs to; None where the path is not that of a checkpoint."""
    return path.parent.parent if path.parent.name == CHECKPOINTS and path.name.startswith(STEP) else None
