"""GLUE in its real layouts and models, both so small that tests take no time."""

import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from electrakit.finetune.tasks import TASKS

torch.set_num_threads(1)
WORDS = [f"{a}{b}{c}" for a in "bdfk" for b in "aeio" for c in "lmn"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, *WORDS, "good", "bad", "fine", '"', "."]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}


def write_tokenizer(folder: Path) -> Path:
    """Whole words, as BERT's tokenizer would see them."""
    vocabulary = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    ).save_pretrained(folder)
    return folder


def write_model(folder: Path, family: str = "electra", seed: int = 0, **changes: Any) -> Path:
    """An encoder with random weights and its tokenizer."""
    torch.manual_seed(seed)
    sizes = {**SIZES, "vocab_size": len(VOCABULARY), "pad_token_id": 0, **changes}
    if family == "electra":
        sizes |= {"embedding_size": 16}
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **sizes))
    model.save_pretrained(folder)
    return write_tokenizer(folder)


def sentence(chance: random.Random, *more: str) -> str:
    words = [*chance.choices(WORDS, k=chance.randint(1, 12)), *more]
    chance.shuffle(words)
    return " ".join(words)


def write_glue(folder: Path, num_train: int = 40, num_dev: int = 12, num_test: int = 9, seed: int = 0) -> Path:
    """All tasks as released: the labels can be learned from one word, `good`, `bad` or `fine`."""
    chance = random.Random(seed)
    signs = ("bad", "good", "fine")

    def rows(num: int, labels: int = 2) -> list[tuple[str, str, int]]:
        found = []
        for number in range(num):
            label = number % labels
            found.append((sentence(chance), sentence(chance, signs[label]), label))
        return found

    def write(name: str, header: str | None, lines: list[str]) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*([header] if header else []), *lines]) + "\n", encoding="utf-8")

    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    for split, num in sizes.items():
        is_test = split == "test"
        made = rows(num)
        numbered = list(enumerate(made))
        if is_test:
            write("CoLA/test.tsv", "index\tsentence", [f"{i}\t{b}" for i, (_, b, _) in numbered])
            write("SST-2/test.tsv", "index\tsentence", [f"{i}\t{b}" for i, (_, b, _) in numbered])
        else:
            write(f"CoLA/{split}.tsv", None, [f"gj04\t{label}\t\t{b}" for _, b, label in made])
            write(f"SST-2/{split}.tsv", "sentence\tlabel", [f"{b} \t{label}" for _, b, label in made])
        first = "index" if is_test else "Quality"
        write(
            f"MRPC/{split}.tsv",
            f"\ufeff{first}\t#1 ID\t#2 ID\t#1 String\t#2 String",
            [f'{i if is_test else label}\t{i}\t{i + 1}\t{a}\t" {b}' for i, (a, b, label) in numbered],
        )
        score = [] if is_test else ["score"]
        write(
            f"STS-B/{split}.tsv",
            "\t".join(
                [
                    "index",
                    "genre",
                    "filename",
                    "year",
                    "old_index",
                    "source1",
                    "source2",
                    "sentence1",
                    "sentence2",
                    *score,
                ]
            ),
            [
                "\t".join(
                    [
                        str(i),
                        "main",
                        "MSRvid",
                        "2012",
                        "1",
                        "none",
                        "none",
                        a,
                        b,
                        *([] if is_test else [f"{label * 4.5:.3f}"]),
                    ]
                )
                for i, (a, b, label) in numbered
            ],
        )
        if is_test:
            write("QQP/test.tsv", "id\tquestion1\tquestion2", [f"{i}\t{a}\t{b}" for i, (a, b, _) in numbered])
        else:
            write(
                f"QQP/{split}.tsv",
                "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
                [f"{i}\t{i}\t{i}\t{a}\t{b}\t{label}" for i, (a, b, label) in numbered],
            )
        for name, columns in {
            "QNLI": "question\tsentence",
            "RTE": "sentence1\tsentence2",
            "WNLI": "sentence1\tsentence2",
        }.items():
            spelled = ("0", "1") if name == "WNLI" else ("entailment", "not_entailment")
            write(
                f"{name}/{split}.tsv",
                f"index\t{columns}" + ("" if is_test else "\tlabel"),
                [f"{i}\t{a}\t{b}" + ("" if is_test else f"\t{spelled[label]}") for i, (a, b, label) in numbered],
            )
        parts = [""] if split == "train" else ["_matched", "_mismatched"]
        for part in parts:
            spelled = TASKS["mnli"].labels or ()
            extra = [] if is_test else ["label1", "gold_label"]
            write(
                f"MNLI/{split}{part}.tsv",
                "\t".join(["index", "promptID", "pairID", "genre", "sentence1", "sentence2", *extra]),
                [
                    "\t".join([str(i), "1", "1n", "fiction", a, b, *([] if is_test else ["neutral", spelled[label]])])
                    for i, (a, b, label) in enumerate(rows(num, 3))
                ],
            )
    write(
        "diagnostic/diagnostic.tsv",
        "index\tsentence1\tsentence2",
        [f"{i}\t{a}\t{b}" for i, (a, b, _) in enumerate(rows(5))],
    )
    return folder
