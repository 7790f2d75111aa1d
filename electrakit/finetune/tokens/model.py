"""Loads any transformers encoder as a model that predicts spans or tags of tokens, and saves it so that transformers opens it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.common.safe_load import explain_load_errors
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.classifier import ModelWithHead, glorot_linear, load_config, load_pretrained, reset_linear
from electrakit.finetune.tasks import Task
from electrakit.finetune.tokens.span_head import (
    ANSWERABLE_FILE,
    JOINT_FILE,
    PairHead,
    answerable_logits,
    beam,
    end_logits,
    is_possible,
    open_head,
    save_head,
)

SPAN_LABELS = ("LABEL_0", "LABEL_1")  # start and end, as transformers calls them


class TokenModel(ModelWithHead):
    """A transformers model with a linear layer on every state, which is both its usual and the official head.

    For spans, two heads may be added, each saved as a file of its own. `answerable` gives the logit that a question has no answer.
    `joint` gives the ends that belong to a start, in place of the model's.
    """

    def __init__(
        self, model: Any, task: Task, answerable: nn.Module | None = None, joint: PairHead | None = None
    ) -> None:
        super().__init__(model)
        self.kind = task.kind
        self.answerable, self.joint = answerable, joint

    def forward(self, **inputs: Tensor) -> Tensor:
        """Outputs of the tokenizer (B, T) -> logits (B, T, labels), or (B, T, 2): start, end; in evaluation `joint` gives a beam.

        With `answerable` there is a last column, of which the first token counts: no answer.
        """
        if self.kind == "tags":
            return self.model(**self.known(inputs)).logits
        if self.answerable is None and self.joint is None:
            output = self.model(**self.known(inputs))
            return torch.stack([output.start_logits, output.end_logits], -1)
        output = self.model(**self.known(inputs), output_hidden_states=True)
        states, start_logits, windows = output.hidden_states[-1], output.start_logits, inputs["windows"]
        can_be = is_possible(windows, states.size(1))
        if self.joint is None:
            logits = torch.stack([start_logits, output.end_logits], -1)
        elif self.training:
            logits = torch.stack([start_logits, end_logits(self.joint, states, windows[:, 0])], -1)
        else:
            logits = beam(self.joint, states, start_logits, can_be)
        if self.answerable is None:
            return logits
        no_answer = answerable_logits(self.answerable, states, start_logits, can_be)
        return torch.cat([logits, no_answer[:, None, None].expand(-1, logits.size(1), 1).to(logits.dtype)], -1)

    @torch.no_grad()
    def save_more(self, folder: Path) -> None:
        for head, name in ((self.answerable, ANSWERABLE_FILE), (self.joint, JOINT_FILE)):
            if head is not None:
                save_head(head, folder / name)


def load_token_model(place: str, task: Task, settings: FinetuneSettings) -> TokenModel:
    """The encoder of a folder or of the hub with a new head, unless the folder has one for the same labels."""
    labels = (task.labels or ()) if task.kind == "tags" else SPAN_LABELS
    model = _load(place, task, labels)
    config = load_config(place)
    is_classifier = next(iter(config.architectures or []), "").endswith("Classification")
    if is_classifier and (task.kind == "spans" or tuple(config.id2label.values()) != labels):
        # With as many labels, transformers would load its last layer: a discriminator's (original, replaced), for example.
        reset_linear([layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1])
    size, answerable = model.config.hidden_size, None
    if task.may_be_unanswerable:
        answerable = PairHead(size) if settings.answerable_uses_start_logits else glorot_linear(size, 1)
    if not settings.joint_prediction:
        return TokenModel(model, task, answerable)
    zero_end(model)
    return TokenModel(model, task, answerable, PairHead(size))


def open_token_model(place: str, task: Task) -> TokenModel:
    """A fine-tuned model; the files beside it tell which heads it has."""
    model = _load(place, task)
    size = model.config.hidden_size
    answerable = open_head(Path(place) / ANSWERABLE_FILE, size) if task.may_be_unanswerable else None
    joint = open_head(Path(place) / JOINT_FILE, size) if (Path(place) / JOINT_FILE).exists() else None
    assert joint is None or isinstance(joint, PairHead)
    return TokenModel(model, task, answerable, joint).eval()


@torch.no_grad()
def zero_end(model: Any) -> None:
    """The model's own layer of ends is not trained then: what transformers reads from it is 0 everywhere, not noise."""
    for layer in (each for name, each in model.named_modules() if name.endswith("qa_outputs")):
        layer.weight[1] = 0
        layer.bias[1] = 0


def _load(place: str, task: Task, new_labels: tuple[str, ...] = ()) -> Any:
    """The model of the task's kind. Some families have one with other outputs, which cannot be used."""
    import transformers

    auto_class, what, output = {
        "spans": (transformers.AutoModelForQuestionAnswering, "model of spans", "start_logits"),
        "tags": (transformers.AutoModelForTokenClassification, "tagger", "logits"),
    }[task.kind]
    model = load_pretrained(place, auto_class, what, new_labels)
    with torch.no_grad(), explain_load_errors(place):
        ids = torch.arange(5, 9)[None] % model.config.vocab_size  # transformers warns of a [PAD]
        outputs = model(input_ids=ids)
    if output not in outputs:
        raise UserError(
            f"{place!r} is a {model.config.model_type} model: transformers' {what} of that kind is not a plain one"
        )
    return model
