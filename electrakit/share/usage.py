"""What a model is in, code that uses it out: each block runs as it stands, where the model is."""

from typing import TYPE_CHECKING

from electrakit.share.words import code

if TYPE_CHECKING:
    from electrakit.share.card import Facts

SUBFOLDER = ', subfolder="generator"'
FIND_REPLACED = (
    "import torch",
    "from transformers import AutoTokenizer, {kind}",
    "",
    "tokenizer = AutoTokenizer.from_pretrained(name)",
    "model = {kind}.from_pretrained(name)",
    'inputs = tokenizer("the chef ate the meal", return_tensors="pt")',
    "with torch.no_grad():",
    "    logits = model(**inputs).logits[0]",
    'tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])',
    "for token, score in zip(tokens, {scores}.tolist()):",
    '    print(f"{{score:.2f}} {{token}}")',
)
FINE_TUNE = (
    "from transformers import AutoModelForSequenceClassification",
    "",
    "model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=3{more})",
)
FILL_MASK = (
    "from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline",
    "",
    f"tokenizer = AutoTokenizer.from_pretrained(name{SUBFOLDER})",
    f"model = AutoModelForMaskedLM.from_pretrained(name{SUBFOLDER})",
    'fill = pipeline("fill-mask", model=model, tokenizer=tokenizer)',
    'print(fill("the chef [MASK] the meal"))',
)


def how_to_use(facts: "Facts") -> str:
    """Code that runs as it stands, where the model is."""
    parts = ["## How to use", "transformers alone is enough: no code of ours, and no `trust_remote_code`."]
    place = facts.place
    if facts.network == "generator":
        return "\n\n".join([*parts, code(place, *FILL_MASK)])
    if facts.head == "replaced":
        scores = "logits.sigmoid()" if facts.model_type == "electra" else "logits.softmax(-1)[:, 1]"
        lines = [line.format(kind=facts.class_name, scores=scores) for line in FIND_REPLACED]
        parts += ["Which tokens look replaced:", code(place, *lines)]
    more = "" if facts.model_type == "electra" else ", ignore_mismatched_sizes=True"
    note = "The encoder's weights are loaded, the head is new: it wants fine-tuning."
    if more:
        note += " `ignore_mismatched_sizes` drops the head of pretraining, which has the same name."
    if more and facts.head == "replaced":
        note += " For `num_labels=2` it has the same size, too, and is taken: `model.classifier.reset_parameters()` begins anew."
    parts += ["For a task of yours:", code(place, *(line.format(more=more) for line in FINE_TUNE)), note]
    if facts.head == "words":
        parts += ["To guess a masked word:", code(place, *(line.replace(SUBFOLDER, "") for line in FILL_MASK))]
    elif facts.has_generator:
        parts += ["The generator guesses masked words:", code(place, *FILL_MASK)]
    return "\n\n".join(parts)
