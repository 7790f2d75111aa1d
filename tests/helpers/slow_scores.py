"""Scores of sentences by the plainest loop, to compare with."""

from pathlib import Path

import torch
import transformers

SENTENCES = ["the cat sat on the mat .", "a chef ate", "she opened the window because it was warm", "golf", "the the ,"]


def slow_score(folder: Path, text: str) -> float:
    """A sentence at a time, a token at a time, with nothing but transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    ids = inputs.input_ids[0]
    if "words" in str(folder):
        model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
        total = 0.0
        for place in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[place] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(**{**inputs, "input_ids": masked[None]}).logits[0, place]
            total += float(logits.log_softmax(-1)[ids[place]])
        return total
    kind = (
        transformers.ElectraForPreTraining if "electra" in str(folder) else transformers.AutoModelForTokenClassification
    )
    with torch.no_grad():
        logits = kind.from_pretrained(folder).eval()(**inputs).logits[0]
    chances = 1 - logits.sigmoid() if logits.ndim == 1 else logits.softmax(-1)[:, 0]
    return float(chances.log()[1:-1].sum())
