"""A folder of any transformers encoder in, a classifier out; saved as a plain transformers classifier with the same logits."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.evaluate.heads import HEADS, settings_for, write_head
from electrakit.evaluate.tasks import Task
from electrakit.evaluate_config import Head
from electrakit.loading import quiet, readable, require_safe
from electrakit.whole import whole_or_nothing

MAX_DIFFERENCE = 1e-4  # of logits, relative to the largest: the two ways to compute them round differently
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "vocab.json", "spiece.model")


class Classifier(nn.Module):
    """A transformers model with one of two heads.

    `official`: dropout and a linear layer on the state of [CLS], as in google-research/electra, the weights Glorot-uniform.
    `transformers`: the head that transformers has for this family.
    """

    uses_first_state_only = True

    def __init__(self, model: Any, head: Head, dropout: float = 0.1) -> None:
        super().__init__()
        self.model = model
        self.head = head
        hidden_size = model.config.hidden_size
        if head == "official":
            self.dropout = nn.Dropout(dropout)
            self.output = nn.Linear(hidden_size, model.config.num_labels)
            nn.init.xavier_uniform_(self.output.weight)
            nn.init.zeros_(self.output.bias)
        self.known_inputs = set(inspect.signature(model.forward).parameters)

    def forward(self, **inputs: Tensor) -> Tensor:
        """Ids, and what else the tokenizer says (B, T) -> logits (B, labels)."""
        inputs = {name: value for name, value in inputs.items() if name in self.known_inputs}
        if self.head == "transformers":
            return self.model(**inputs).logits
        states = self.model.base_model(**inputs).last_hidden_state  # (B, T, H)
        return self.output(self.dropout(states[:, 0]))

    @torch.no_grad()
    def save(self, folder: Path, tokenizer: Any, scale: float = 1.0, notes: dict[str, Any] | None = None) -> None:
        """Write it so that AutoModelForSequenceClassification opens it. `scale`: what labels were divided by is put back."""
        self.eval()
        if self.head == "official":
            assert write_head(self.model, self.output.weight, self.output.bias, scale)
        elif scale != 1.0:
            last = [layer for layer in self.model.modules() if isinstance(layer, nn.Linear)][-1]
            last.weight.mul_(scale)
            last.bias.mul_(scale)
        self.model.config.electrakit = {"head": self.head, **(notes or {})}
        save_whole(self.model, tokenizer, folder)


def save_whole(model: Any, tokenizer: Any, folder: Path, more: Callable[[Path], None] | None = None) -> None:
    """A transformers folder that is there whole or not at all; `more` writes what else belongs to it."""
    with whole_or_nothing(folder) as unfinished, quiet():
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        if more is not None:
            more(unfinished)


def load_classifier(
    place: str, task: Task, head: Head = "official", dropout: float = 0.1
) -> tuple[Classifier, list[str]]:
    """The encoder of a folder or of the hub with a new head, and what there is to say about it."""
    import transformers

    require_safe(place)
    num_labels = len(task.labels) if task.labels else 1
    labels = dict(enumerate(task.labels)) if task.labels else {0: task.label}
    with quiet(), readable(place):
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        begins_anew = head == "transformers" and has_head_of_another(config)
        settings: dict[str, Any] = {"id2label": labels, "label2id": {name: number for number, name in labels.items()}}
        settings["problem_type"] = "single_label_classification" if task.labels else "regression"
        settings |= {"num_labels": num_labels} | (settings_for(config.model_type) if head == "official" else {})
        kind = transformers.AutoModelForSequenceClassification
        if type(config) not in kind._model_mapping:
            raise UserError(f"{place!r} is a {config.model_type} model: transformers has no classifier of that kind")
        model = kind.from_pretrained(
            place,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            **settings,
        )
    notes = []
    if head == "official" and not can_hold(model, num_labels):
        notes.append(f"transformers' {config.model_type} classifier cannot hold the official head: its own is used")
        return load_classifier(place, task, "transformers", dropout)[0], notes
    if begins_anew:
        model.apply(lambda layer: _begin_anew(layer, model))
    return Classifier(model, head, dropout), notes


def has_head_of_another(config: Any) -> bool:
    """Whether a folder has layers that transformers would take for its classifier, and that are nothing to begin with.

    A discriminator of pretraining has such, with two labels: original and replaced. So have taggers, the classifiers of others, and
    our own with the official head, which are filled by a trick.
    """
    made_for = next(iter(config.architectures or []), "")
    notes = getattr(config, "electrakit", None) or {}
    is_ours = made_for.endswith("ForSequenceClassification") and notes.get("head") == "transformers"
    return made_for.endswith("Classification") and not is_ours


def _begin_anew(layer: nn.Module, model: Any) -> None:
    inside = {id(each) for each in model.base_model.modules()}
    if isinstance(layer, nn.Linear) and id(layer) not in inside:
        nn.init.normal_(layer.weight, std=0.02)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


@torch.no_grad()
def can_hold(model: Any, num_labels: int) -> bool:
    """Whether the model's own classifier can be filled with a linear layer: tried on a row of ids."""
    if model.config.model_type not in HEADS:
        return False
    weight = torch.linspace(-1, 1, num_labels * model.config.hidden_size).view(num_labels, -1)
    ids = torch.arange(8)[None] % model.config.vocab_size
    state = {name: value.clone() for name, value in model.state_dict().items() if "encoder" not in name}
    was_training = model.training
    model.eval()
    wanted = model.base_model(input_ids=ids).last_hidden_state[:, 0] @ weight.T
    is_good = write_head(model, weight, torch.zeros(num_labels))
    if is_good:
        difference = (model(input_ids=ids).logits - wanted).abs().max()
        is_good = bool(difference <= MAX_DIFFERENCE * wanted.abs().max().clamp(min=1.0))
    model.load_state_dict(state, strict=False)
    model.train(was_training)
    return is_good


def load_tokenizer(place: str) -> Any:
    """The tokenizer beside a model."""
    import transformers

    if Path(place).is_dir() and not any((Path(place) / name).exists() for name in TOKENIZER_FILES):
        raise UserError(f"{place} has no tokenizer; copy tokenizer.json and tokenizer_config.json into it")
    with quiet(), readable(place):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer of {place!r} has no padding token")
    return tokenizer
