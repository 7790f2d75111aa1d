"""Loads any transformers encoder as a classifier, and saves it as a plain transformers classifier with the same logits."""

import inspect
import json
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.common.ownership import whole_folder
from electrakit.common.safe_load import explain_load_errors, quiet_transformers, require_safe
from electrakit.config.finetune import ClassifierHead
from electrakit.finetune.official_head import CLASSIFIER_LAYERS, settings_for, write_head
from electrakit.finetune.tasks import Task

MAX_DIFFERENCE = 1e-4  # of logits, relative to the largest: the two ways to compute them round differently


class ModelNotes(TypedDict, total=False):
    """What a saved model's config holds for `predict`, as `electrakit`."""

    head: ClassifierHead
    task: str
    columns: list[str]
    length: int
    threshold: float
    """SQuAD 2.0: a question with null odds above it has no answer."""


class ModelWithHead(nn.Module):
    """A transformers model with the head of a task."""

    head: ClassifierHead = "transformers"
    uses_first_state_only = False

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.known_inputs = set(inspect.signature(model.forward).parameters)

    def known(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of a tokenizer's outputs that the model takes."""
        return {name: value for name, value in inputs.items() if name in self.known_inputs}

    @torch.no_grad()
    def save(self, folder: Path, tokenizer: Any, scale: float = 1.0, notes: ModelNotes | None = None) -> None:
        """Write it so that transformers opens it. Labels were divided by `scale`: the saved logits are multiplied by it."""
        self.eval()
        self.write_head(scale)
        self.model.config.electrakit = {"head": self.head, **(notes or {})}
        with whole_folder(folder, "model", overwrite=True, is_older=is_older_model) as unfinished, quiet_transformers():
            self.model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            self.save_more(unfinished)

    def write_head(self, scale: float) -> None:
        """Bring the head into the transformers model."""

    def save_more(self, folder: Path) -> None:
        """Write what transformers does not."""


def is_older_model(folder: Path) -> bool:
    """Whether a version that wrote no marker has saved a model here: its config has our notes."""
    try:
        return "head" in json.loads((folder / "config.json").read_text(encoding="utf-8"))["electrakit"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


class Classifier(ModelWithHead):
    """A transformers model with one of three heads.

    `official`: dropout and a linear layer on the state of [CLS], as in google-research/electra, the weights Glorot-uniform.
    `mean`: the same on the mean of all states but those of padding.
    `transformers`: the head that transformers has for this family.
    """

    def __init__(self, model: Any, head: ClassifierHead, dropout: float = 0.1) -> None:
        super().__init__(model)
        self.head = head
        self.uses_first_state_only = head != "mean"
        if head != "transformers":
            self.dropout = nn.Dropout(dropout)
            self.output = glorot_linear(model.config.hidden_size, model.config.num_labels)

    def forward(self, **inputs: Tensor) -> Tensor:
        """Outputs of the tokenizer (B, T) -> logits (B, labels)."""
        if self.head == "transformers":
            return self.model(**self.known(inputs)).logits
        states = self.model.base_model(**self.known(inputs)).last_hidden_state
        return self.output(self.dropout(pool(states, inputs.get("attention_mask"), self.head)))

    def write_head(self, scale: float) -> None:
        if self.head != "transformers":
            is_written = write_head(self.model, self.output.weight, self.output.bias, scale)
            assert is_written  # `can_hold` has tried it
        elif scale != 1.0:
            last = [layer for layer in self.model.modules() if isinstance(layer, nn.Linear)][-1]
            last.weight.mul_(scale)
            last.bias.mul_(scale)


def pool(states: Tensor, attended: Tensor | None, head: ClassifierHead) -> Tensor:
    """States (B, T, H) -> what the head reads (B, H). Without `attended` (B, T) there is no padding."""
    if head == "official":
        return states[:, 0]
    if attended is None:
        return states.mean(1)
    return (states * attended[..., None]).sum(1) / attended.sum(1, keepdim=True)


def glorot_linear(num_inputs: int, num_outputs: int) -> nn.Linear:
    """A linear layer with the official code's initial weights."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def load_classifier(
    place: str, task: Task, head: ClassifierHead = "official", dropout: float = 0.1
) -> tuple[Classifier, list[str]]:
    """The encoder of a folder or of the hub with a new head, and warnings about it."""
    import transformers

    config = load_config(place)
    model = load_pretrained(
        place,
        transformers.AutoModelForSequenceClassification,
        "classifier",
        task.labels or (task.label,),
        problem_type="single_label_classification" if task.labels else "regression",
        **(settings_for(config.model_type, head) if head != "transformers" else original_settings(config)),
    )
    if head == "mean" and not can_hold(model, head):
        raise UserError(
            f"--head mean: transformers' {config.model_type} classifier of {model.config.num_labels} labels cannot hold it, only "
            "ModernBERT's can (our modern bodies, few labels); use --head official"
        )
    if head == "official" and not can_hold(model):
        note = f"transformers' {config.model_type} classifier cannot hold the official head: its own is used"
        return load_classifier(place, task, "transformers", dropout)[0], [note]
    if head == "transformers" and has_head_of_another_task(config):
        reset_head(model, with_pooler=is_filled(config))
    return Classifier(model, head, dropout), []


def open_classifier(place: str) -> Classifier:
    """A fine-tuned classifier, made by electrakit or by any other tool."""
    import transformers

    model = load_pretrained(place, transformers.AutoModelForSequenceClassification, "classifier")
    return Classifier(model, "transformers").eval()


def load_config(place: str) -> Any:
    import transformers

    require_safe(place)
    with quiet_transformers(), explain_load_errors(place):
        return transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)


def load_pretrained(place: str, auto_class: Any, what: str, new_labels: tuple[str, ...] = (), **settings: Any) -> Any:
    """The model of a folder or of the hub as `what` of its family, in fp32. With `new_labels` it gets a head for these."""
    config = load_config(place)
    if type(config) not in auto_class._model_mapping:
        raise UserError(f"{place!r} is a {config.model_type} model: transformers has no {what} of that kind")
    settings |= {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    if new_labels:
        settings |= {
            "num_labels": len(new_labels),
            "ignore_mismatched_sizes": True,
            "id2label": dict(enumerate(new_labels)),
            "label2id": {label: number for number, label in enumerate(new_labels)},
        }
    with quiet_transformers(), explain_load_errors(place):
        return auto_class.from_pretrained(place, **settings)


def has_head_of_another_task(config: Any) -> bool:
    """Whether transformers would load layers of a folder into the new classifier that are not meant for it.

    A pretrained discriminator has such layers, with two labels: original and replaced. So have taggers, classifiers of other tools,
    and ours with the official head, whose layers are filled by `write_head`.
    """
    architecture = next(iter(config.architectures or []), "")
    notes = getattr(config, "electrakit", None) or {}
    is_ours = architecture.endswith("ForSequenceClassification") and notes.get("head") == "transformers"
    return architecture.endswith("Classification") and not is_ours


def is_filled(config: Any) -> bool:
    """Whether the layers of a folder's classifier were filled by `write_head`."""
    return (getattr(config, "electrakit", None) or {}).get("head") in ("official", "mean")


def original_settings(config: Any) -> dict[str, Any]:
    """Undoes `settings_for` in the config of a model that was saved with them."""
    names = settings_for(config.model_type) if is_filled(config) else {}
    return {name: getattr(type(config)(), name) for name in names}


def reset_head(model: Any, with_pooler: bool = False) -> None:
    """New weights for the linear layers outside the encoder, and for the pooler, which BERT and ALBERT have inside it."""
    encoder = set(model.base_model.modules())
    if with_pooler:
        encoder.discard(model.get_submodule(CLASSIFIER_LAYERS[model.config.model_type].dense))
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer not in encoder:
            reset_linear(layer)


def reset_linear(layer: nn.Linear) -> None:
    nn.init.normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


@torch.no_grad()
def can_hold(model: Any, head: ClassifierHead = "official") -> bool:
    """Whether the classifier of transformers can be filled with this head: tried on a row of ids."""
    if model.config.model_type not in CLASSIFIER_LAYERS:
        return False
    num_labels = model.config.num_labels
    weight = torch.linspace(-1, 1, num_labels * model.config.hidden_size).view(num_labels, -1)
    ids = torch.arange(8)[None] % model.config.vocab_size
    before = {name: value.clone() for name, value in model.state_dict().items() if "encoder" not in name}
    is_good = write_head(model, weight, torch.zeros(num_labels))
    if is_good:
        wanted = pool(model.base_model(input_ids=ids).last_hidden_state, None, head) @ weight.T
        difference = (model(input_ids=ids).logits - wanted).abs().max()
        is_good = bool(difference <= MAX_DIFFERENCE * wanted.abs().max().clamp(min=1.0))
    model.load_state_dict(before, strict=False)
    return is_good


def load_transformers_tokenizer(place: str) -> Any:
    """The tokenizer beside a model."""
    import transformers

    names = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "vocab.json", "spiece.model", "spm.model")
    if Path(place).is_dir() and not any((Path(place) / name).exists() for name in names):
        raise UserError(f"{place} has no tokenizer; copy tokenizer.json and tokenizer_config.json into it")
    with quiet_transformers(), explain_load_errors(place):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer of {place!r} has no padding token")
    return tokenizer
