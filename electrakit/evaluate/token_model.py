"""A folder of any transformers encoder in, a model of spans or tags out; saved so that transformers opens it."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.evaluate.classifier import save_whole
from electrakit.evaluate.tasks import Task
from electrakit.loading import quiet, readable, require_safe

ANSWERABLE_FILE = "answerable.safetensors"


class TokenModel(nn.Module):
    """A transformers model with a linear layer on every state, which is its own head and the official one.

    `answerable`: a second one, read at [CLS] only, that says whether a question has no answer.
    """

    head = "transformers"
    uses_first_state_only = False

    def __init__(self, model: Any, task: Task) -> None:
        super().__init__()
        self.model = model
        self.kind = task.kind
        self.answerable = nn.Linear(model.config.hidden_size, 1) if task.may_be_unanswerable else None
        if self.answerable is not None:
            nn.init.xavier_uniform_(self.answerable.weight)
            nn.init.zeros_(self.answerable.bias)
        self.known_inputs = set(inspect.signature(model.forward).parameters)

    def forward(self, **inputs: Tensor) -> Tensor:
        """Ids, and what else the tokenizer says (B, T) -> logits (B, T, labels), or (B, T, 2 or 3): start, end, no answer."""
        known: dict[str, Any] = {name: value for name, value in inputs.items() if name in self.known_inputs}
        if self.kind == "tags":
            return self.model(**known).logits
        output = self.model(**known, output_hidden_states=self.answerable is not None)
        logits = torch.stack([output.start_logits, output.end_logits], -1)
        if self.answerable is None:
            return logits
        return torch.cat([logits, self.answerable(output.hidden_states[-1])], -1)

    @torch.no_grad()
    def save(self, folder: Path, tokenizer: Any, scale: float = 1.0, notes: dict[str, Any] | None = None) -> None:
        """Write it for AutoModelForQuestionAnswering or AutoModelForTokenClassification; `answerable` is a file beside it."""
        from safetensors.torch import save_file

        self.eval()
        self.model.config.electrakit = {"head": self.head, **(notes or {})}

        def more(unfinished: Path) -> None:
            if self.answerable is not None:
                save_file(
                    {name: value.cpu().contiguous() for name, value in self.answerable.state_dict().items()},
                    unfinished / ANSWERABLE_FILE,
                )

        save_whole(self.model, tokenizer, folder, more)


def load_token_model(place: str, task: Task) -> tuple[TokenModel, list[str]]:
    """The encoder of a folder or of the hub with a new head, and what there is to say about it."""
    settings: dict[str, Any] = {"num_labels": 2, "id2label": {0: "LABEL_0", 1: "LABEL_1"}}
    if task.kind == "tags":
        labels = dict(enumerate(task.labels or ()))
        settings = {"num_labels": len(labels), "id2label": labels}
    settings["label2id"] = {label: number for number, label in settings["id2label"].items()}
    return TokenModel(_load(place, task, ignore_mismatched_sizes=True, **settings), task), []


def open_token_model(place: str, task: Task) -> TokenModel:
    """A finished model."""
    from safetensors.torch import load_file

    found = TokenModel(_load(place, task), task)
    if found.answerable is not None:
        with readable(place):
            found.answerable.load_state_dict(load_file(Path(place) / ANSWERABLE_FILE))
    return found.eval()


def _load(place: str, task: Task, **settings: Any) -> Any:
    import transformers

    require_safe(place)
    kinds: dict[str, tuple[Any, str, Callable[[Any], bool]]] = {
        "spans": (transformers.AutoModelForQuestionAnswering, "model of spans", lambda made: "start_logits" in made),
        "tags": (transformers.AutoModelForTokenClassification, "tagger", lambda made: "logits" in made),
    }
    kind, name, is_good = kinds[task.kind]
    with quiet(), readable(place):
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        if type(config) not in kind._model_mapping:
            raise UserError(f"{place!r} is a {config.model_type} model: transformers has no {name} of that kind")
        model = kind.from_pretrained(
            place, trust_remote_code=False, use_safetensors=True, dtype=torch.float32, **settings
        )
        with torch.no_grad():
            made = model(input_ids=torch.arange(4)[None] % config.vocab_size)
        if not is_good(made):
            raise UserError(
                f"{place!r} is a {config.model_type} model: transformers' {name} of that kind is not a plain one"
            )
    return model
