"""Loads any transformers encoder as a model that predicts spans or tags of tokens, and saves it so that transformers opens it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electrakit.common.errors import UserError
from electrakit.common.safe_load import explain_load_errors
from electrakit.finetune.classifier import ModelWithHead, glorot_linear, load_pretrained
from electrakit.finetune.tasks import Task

ANSWERABLE_FILE = "answerable.safetensors"
SPAN_LABELS = ("LABEL_0", "LABEL_1")  # start and end, as transformers calls them


class TokenModel(ModelWithHead):
    """A transformers model with a linear layer on every state, which is both its usual and the official head.

    `answerable`: a second layer, used at [CLS] only, for the logit that a question has no answer; saved as a file of its own.
    """

    def __init__(self, model: Any, task: Task) -> None:
        super().__init__(model)
        self.kind = task.kind
        self.answerable = glorot_linear(model.config.hidden_size, 1) if task.may_be_unanswerable else None

    def forward(self, **inputs: Tensor) -> Tensor:
        """Outputs of the tokenizer (B, T) -> logits (B, T, labels), or (B, T, 2 or 3): start, end, no answer."""
        if self.kind == "tags":
            return self.model(**self.known(inputs)).logits
        output = self.model(**self.known(inputs), output_hidden_states=self.answerable is not None)
        logits = torch.stack([output.start_logits, output.end_logits], -1)
        if self.answerable is None:
            return logits
        return torch.cat([logits, self.answerable(output.hidden_states[-1])], -1)

    def save_more(self, folder: Path) -> None:
        from safetensors.torch import save_file

        if self.answerable is not None:
            weights = {name: value.cpu().contiguous() for name, value in self.answerable.state_dict().items()}
            save_file(weights, folder / ANSWERABLE_FILE)


def load_token_model(place: str, task: Task) -> TokenModel:
    """The encoder of a folder or of the hub with a new head."""
    labels = (task.labels or ()) if task.kind == "tags" else SPAN_LABELS
    return TokenModel(_load(place, task, labels), task)


def open_token_model(place: str, task: Task) -> TokenModel:
    """A fine-tuned model."""
    from safetensors.torch import load_file

    found = TokenModel(_load(place, task), task)
    if found.answerable is not None:
        with explain_load_errors(place):
            found.answerable.load_state_dict(load_file(Path(place) / ANSWERABLE_FILE))
    return found.eval()


def _load(place: str, task: Task, new_labels: tuple[str, ...] = ()) -> Any:
    """The model of the task's kind. Some families have one with other outputs, which cannot be used."""
    import transformers

    auto_class, what, output = {
        "spans": (transformers.AutoModelForQuestionAnswering, "model of spans", "start_logits"),
        "tags": (transformers.AutoModelForTokenClassification, "tagger", "logits"),
    }[task.kind]
    model = load_pretrained(place, auto_class, what, new_labels)
    with torch.no_grad(), explain_load_errors(place):
        outputs = model(input_ids=torch.arange(4)[None] % model.config.vocab_size)
    if output not in outputs:
        raise UserError(
            f"{place!r} is a {model.config.model_type} model: transformers' {what} of that kind is not a plain one"
        )
    return model
