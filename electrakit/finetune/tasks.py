"""The tasks of GLUE, and those that predict tokens: the files and columns of each, and how it is trained, scored and submitted."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from electrakit.common.errors import UserError

ADDRESS = "https://dl.fbaipublicfiles.com/glue/data"
SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data"


@dataclass(frozen=True)
class Split:
    """A part of a task's data."""

    name: str
    """`train`, or what begins with `dev` or `test`; `ax` is the diagnostic set."""
    files: tuple[str, ...]
    """The first of these that is there is read."""
    num_rows: int
    """As released; 0 where many data sets have this form."""
    hf: str
    """Its name in the Hugging Face layout."""
    header: tuple[str, ...] = ()
    """The columns of a file that does not name them in its first line."""
    folders: tuple[str, ...] = ()
    """Where it is, if not in the task's folder."""
    submission: str | None = None
    """The file of its predictions that the GLUE server wants."""

    @property
    def has_labels(self) -> bool:
        """Whether GLUE's files have labels."""
        return self.name == "train" or self.name.startswith("dev")


@dataclass(frozen=True)
class Download:
    """A file to download, with its size and hash."""

    address: str
    path: str
    """Where it goes in the folder of all tasks; a .zip is unpacked there."""
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Task:
    """All that is specific to a task: everything else treats all tasks alike."""

    name: str
    title: str
    """Its name in tables, and of its folder as released."""
    folders: tuple[str, ...]
    """Names of its folder; case, - and _ do not matter."""
    columns: tuple[str, ...]
    """One or two columns of text."""
    splits: tuple[Split, ...]
    label: str = "label"
    """The column of the label."""
    labels: tuple[str, ...] | None = ("0", "1")
    """As files and submissions spell them; None if a number is predicted."""
    scale: float = 1.0
    """Numbers to predict are divided by it for training."""
    limits: tuple[float, float] | None = None
    """Predicted numbers are clipped to these for the submission."""
    metrics: tuple[str, ...] = ("accuracy",)
    """The first is the one that tables show."""
    epochs: int = 3
    both_orders: bool = False
    """Sentence pairs are trained in both orders."""
    start_from: str | None = None
    """The task whose best model training may begin with."""
    is_averaged: bool = True
    """WNLI is left out of averages, as in all papers since BERT."""
    skips_broken_rows: bool = False
    """Rows with too few columns are left out, as is usual: the released files have some."""
    hf_columns: tuple[str, ...] = ()
    hf_labels: tuple[str, ...] = ()
    """Our labels in the order of its numbers there, if not our order."""
    downloads: tuple[Download, ...] = ()
    kind: Literal["sentences", "spans", "tags"] = "sentences"
    """What is predicted: a label or number of a row, a span of its tokens, or a tag of each of its words."""
    length: int = 128
    """Longest row in tokens, if the model has as many positions."""
    may_be_unanswerable: bool = False
    """Questions may have no answer."""

    def split(self, name: str) -> Split:
        return next(split for split in self.splits if split.name == name)

    def names_of(self, kind: str) -> tuple[str, ...]:
        """`dev`: the dev splits; `test`: those that are submitted."""
        if kind == "dev":
            return tuple(split.name for split in self.splits if split.name.startswith("dev"))
        return tuple(split.name for split in self.splits if split.submission is not None)

    @property
    def is_regression(self) -> bool:
        return self.labels is None


def usual_splits(train: int, dev: int, test: int, submission: str, header: tuple[str, ...] = ()) -> tuple[Split, ...]:
    return (
        Split("train", ("train.tsv",), train, "train", header=header),
        Split("dev", ("dev.tsv",), dev, "validation", header=header),
        Split("test", ("test.tsv",), test, "test", submission=submission),
    )


def zipped(name: str, num_bytes: int, sha256: str) -> tuple[Download, ...]:
    return (Download(f"{ADDRESS}/{name}.zip", f"{name}.zip", num_bytes, sha256),)


ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")
_TASKS = (
    Task(
        "cola",
        "CoLA",
        ("cola",),
        ("sentence",),
        usual_splits(8551, 1043, 1063, "CoLA.tsv", header=("source", "label", "star", "sentence")),
        metrics=("matthews", "accuracy"),
        downloads=zipped("CoLA", 376971, "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
    ),
    Task(
        "sst2",
        "SST-2",
        ("sst", "sst2"),
        ("sentence",),
        usual_splits(67349, 872, 1821, "SST-2.tsv"),
        downloads=zipped("SST-2", 7439277, "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
    ),
    Task(
        "mrpc",
        "MRPC",
        ("mrpc", "msrparaphrasecorpus"),
        ("#1 String", "#2 String"),
        (
            Split("train", ("train.tsv", "msr_paraphrase_train.txt"), 3668, "train"),
            Split("dev", ("dev.tsv", "msr_paraphrase_train.txt"), 408, "validation"),
            Split("test", ("test.tsv", "msr_paraphrase_test.txt"), 1725, "test", submission="MRPC.tsv"),
        ),
        label="Quality",
        metrics=("accuracy", "f1"),
        both_orders=True,
        hf_columns=_PAIR,
        downloads=(
            Download(
                f"{SENTEVAL}/msr_paraphrase_train.txt",
                "MRPC/msr_paraphrase_train.txt",
                1047044,
                "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
            ),
            Download(
                f"{SENTEVAL}/msr_paraphrase_test.txt",
                "MRPC/msr_paraphrase_test.txt",
                441275,
                "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
            ),
            Download(
                f"{ADDRESS}/mrpc_dev_ids.tsv",
                "MRPC/dev_ids.tsv",
                6222,
                "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
            ),
        ),
    ),
    Task(
        "stsb",
        "STS-B",
        ("sts", "stsb", "stsbenchmark"),
        _PAIR,
        usual_splits(5749, 1500, 1379, "STS-B.tsv"),
        label="score",
        labels=None,
        scale=5.0,
        limits=(0.0, 5.0),
        metrics=("spearman", "pearson"),
        epochs=10,
        both_orders=True,
        start_from="mnli",
        downloads=zipped("STS-B", 802872, "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
    ),
    Task(
        "qqp",
        "QQP",
        ("qqp", "qqpclean", "quoraquestionpairs"),
        ("question1", "question2"),
        usual_splits(363846, 40430, 390965, "QQP.tsv"),
        label="is_duplicate",
        metrics=("accuracy", "f1"),
        skips_broken_rows=True,
        downloads=zipped("QQP-clean", 41696084, "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"),
    ),
    Task(
        "mnli",
        "MNLI",
        ("mnli", "multinli", "multinli10"),
        _PAIR,
        (
            Split("train", ("train.tsv",), 392702, "train"),
            Split("dev", ("dev_matched.tsv",), 9815, "validation_matched"),
            Split("dev_mismatched", ("dev_mismatched.tsv",), 9832, "validation_mismatched"),
            Split("test", ("test_matched.tsv",), 9796, "test_matched", submission="MNLI-m.tsv"),
            Split("test_mismatched", ("test_mismatched.tsv",), 9847, "test_mismatched", submission="MNLI-mm.tsv"),
            Split(
                "ax",
                ("diagnostic.tsv", "AX.tsv", "ax.tsv", "test.tsv"),
                1104,
                "test",
                folders=("diagnostic", "diagnostics", "ax"),
                submission="AX.tsv",
            ),
        ),
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        hf_columns=("premise", "hypothesis"),
        hf_labels=("entailment", "neutral", "contradiction"),
        downloads=(
            *zipped("MNLI", 312783507, "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
            Download(
                f"{ADDRESS}/AX.tsv",
                "diagnostic/diagnostic.tsv",
                222257,
                "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",
            ),
        ),
    ),
    Task(
        "qnli",
        "QNLI",
        ("qnli", "qnliv2"),
        ("question", "sentence"),
        usual_splits(104743, 5463, 5463, "QNLI.tsv"),
        labels=ENTAILMENT,
        downloads=zipped("QNLIv2", 10627589, "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
    ),
    Task(
        "rte",
        "RTE",
        ("rte",),
        _PAIR,
        usual_splits(2490, 277, 3000, "RTE.tsv"),
        labels=ENTAILMENT,
        epochs=10,
        start_from="mnli",
        downloads=zipped("RTE", 697150, "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
    ),
    Task(
        "wnli",
        "WNLI",
        ("wnli",),
        _PAIR,
        usual_splits(635, 71, 146, "WNLI.tsv"),
        is_averaged=False,
        downloads=zipped("WNLI", 28999, "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"),
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _TASKS}
AVERAGED = tuple(task.name for task in _TASKS if task.is_averaged)

SQUAD = Task(
    "squad",
    "SQuAD 1.1",
    ("squad", "squad1", "squadv1", "squad11"),
    ("question", "context"),
    (
        Split("train", ("train-v1.1.json", "train.json"), 87_599, "train"),
        Split("dev", ("dev-v1.1.json", "dev.json"), 10_570, "validation"),
    ),
    label="answer",
    labels=None,
    metrics=("f1", "exact"),
    epochs=2,
    kind="spans",
    length=512,
)
SQUAD2 = replace(
    SQUAD,
    name="squad2",
    title="SQuAD 2.0",
    folders=("squad2", "squadv2", "squad20", "squad"),
    splits=(
        Split("train", ("train-v2.0.json", "train.json"), 130_319, "train"),
        Split("dev", ("dev-v2.0.json", "dev.json"), 11_873, "validation"),
    ),
    metrics=("best_f1", "best_exact", "f1", "exact"),
    may_be_unanswerable=True,
)
MRQA = replace(
    SQUAD,
    name="mrqa",
    title="MRQA",
    folders=("mrqa",),
    splits=(
        Split("train", ("train.jsonl.gz", "train.jsonl"), 0, "train"),
        Split("dev", ("dev.jsonl.gz", "dev.jsonl"), 0, "validation"),
    ),
)
CHUNKING = Task(
    "chunking",
    "Chunking",
    ("chunking", "chunk", "conll2000"),
    ("words",),
    (
        Split("train", ("train.txt",), 8_936, "train"),
        Split("dev", ("dev.txt", "test.txt"), 2_012, "validation"),
        Split("test", ("test.txt",), 2_012, "test", submission="test.txt"),
    ),
    label="chunk",
    labels=(),  # read from the files
    length=256,
    metrics=("f1", "precision", "recall", "accuracy"),
    kind="tags",
)
TOKEN_TASKS: dict[str, Task] = {task.name: task for task in (SQUAD, SQUAD2, MRQA, CHUNKING)}


def plain_name(name: str) -> str:
    """A name in lower case and without punctuation: STS-B, sts_b and stsb are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_task(name: str, more: Iterable[Task] = ()) -> Task:
    """The task of this name, in any spelling: one of GLUE, or of `more`."""
    tasks = (*TASKS.values(), *more)
    for task in tasks:
        if plain_name(name) in {plain_name(one) for one in (task.name, task.title, *task.folders)}:
            return task
    raise UserError(f"unknown task {name!r}; there are {', '.join(task.name for task in tasks)}")
