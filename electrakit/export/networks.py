"""Loads the networks of a checkpoint for export."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from electrakit.common.errors import UserError
from electrakit.common.progress import print_message
from electrakit.common.safe_load import quiet_transformers
from electrakit.model.counts import HeadKind, head_kinds
from electrakit.model.gdes import merge
from electrakit.model.huggingface.adapt import unwrap
from electrakit.model.huggingface.names import LABELS
from electrakit.model.huggingface.weights import to_transformers
from electrakit.model.huggingface.write_model import TrainedNetwork, open_model
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.tie import load_state_once
from electrakit.objective.build import build_objective
from electrakit.runs import layout
from electrakit.runs.settings import read_config
from electrakit.train.checkpoint import parts_of, read_tensors


def load_networks(run: Path, checkpoint: Path) -> list[TrainedNetwork]:
    """The discriminator, and the generator if there is one."""
    stored = read_config(run)
    config = stored.settings
    # Whole-word masking needs a vocabulary, flattening needs counts; neither changes anything in the weights.
    plain = replace(config, objective=replace(config.objective, whole_words=False, flatten_to="uniform"))
    weights = read_tensors(checkpoint / layout.WEIGHTS_FILE)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        try:
            objective = build_objective(plain, stored.data.special_ids)
            load_state_once(objective, weights)
        except UserError:  # not the networks of the settings: pretrain(config, objective=...)
            return [load_custom(checkpoint, name) for name in layout.NETWORKS if has_custom(checkpoint, name)]
        merge(objective)
        networks = []
        for name, attribute in parts_of(objective).items():
            network, head = getattr(objective, attribute).eval(), head_kinds(config).get(name, "words")
            is_ours = isinstance(network, Generator | Discriminator)
            if name == "generator" and is_ours and network.config.enhanced_mask_decoder:
                print_message(
                    "the generator is left out: transformers has no place for its enhanced mask decoder; its weights are "
                    f"`generator.*` in {checkpoint / layout.WEIGHTS_FILE}",
                    "yellow",
                )
                continue
            model: Any = to_transformers(network) if is_ours else unwrap(network)
            if head == "replaced" and model.config.num_labels == 2 and model.config.model_type != "electra":
                model.config.update(LABELS)
            networks.append(TrainedNetwork(name, network, model.eval(), head))
        return networks


def has_custom(checkpoint: Path, name: str) -> bool:
    if (checkpoint / name / "config.json").exists():
        return True
    if name == "discriminator":
        raise UserError(
            f"the discriminator of {checkpoint} is a module of your own, which transformers does not have; its weights are "
            f"`discriminator.*` in {checkpoint / layout.WEIGHTS_FILE}: load them with safetensors.torch.load_file"
        )
    return False


def load_custom(checkpoint: Path, name: str) -> TrainedNetwork:
    """A transformers model of the user's own pair, as the checkpoint holds it."""
    model = open_model(checkpoint / name)
    class_name = type(model).__name__
    is_known = class_name.endswith(("ForPreTraining", "ForTokenClassification"))
    head: HeadKind | None = "words" if class_name.endswith("ForMaskedLM") else "replaced" if is_known else None
    return TrainedNetwork(name, model, model, head, is_custom=True)
