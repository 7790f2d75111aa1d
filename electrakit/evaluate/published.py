"""Published scores on GLUE's dev sets, for the eye to compare with; never mixed with ours."""

from dataclasses import dataclass

COLUMNS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


@dataclass(frozen=True)
class Row:
    """A model's scores in the order of COLUMNS, if they were published, and their mean."""

    name: str
    scores: tuple[float, ...]
    mean: float
    source: str


PUBLISHED = (
    Row("ELECTRA-Small++", (57.0, 91.2, 88.0, 87.5, 89.0, 81.3, 88.4, 66.7), 81.1, "google-research/electra"),
    Row("ELECTRA-Small-OWT", (56.8, 88.3, 87.4, 86.8, 88.3, 78.9, 87.9, 68.5), 80.36, "google-research/electra"),
    Row("ELECTRA-Small-OWT", (58.7, 88.0, 86.0, 86.2, 88.6, 80.4, 87.5, 67.5), 80.36, "richarddwang, mean of 10"),
    Row("ELECTRA-Small-OWT, RoPE", (55.8, 90.5, 87.3, 86.6, 89.6, 81.2, 88.9, 62.7), 80.3, "junnyu"),
    Row("ELECTRA-Small-OWT", (56.3, 88.4, 75.0, 86.1, 89.1, 77.9, 83.0, 67.1), 77.9, "lmtuners"),
    Row("ALECTRA-Small-OWT", (50.6, 89.1, 86.3, 87.2, 89.1, 78.2, 85.9, 69.6), 79.5, "lmtuners"),
    Row("ELECTRA-Large++", (), 89.5, "google-research/electra"),
    Row("ELECTRA-Base++", (), 87.5, "google-research/electra"),
    Row("ELECTRA-Small", (), 79.9, "Clark et al. 2020"),
    Row("ELECTRA-Small, 50 % of the steps", (), 79.0, "Clark et al. 2020"),
    Row("ELECTRA-Small, 25 % of the steps", (), 77.7, "Clark et al. 2020"),
    Row("ELECTRA-Small, 12.5 % of the steps", (), 76.0, "Clark et al. 2020"),
    Row("ELECTRA-Small, 6.25 % of the steps", (), 74.1, "Clark et al. 2020"),
    Row("BERT-Small", (), 75.1, "Clark et al. 2020"),
)
SHOWN = PUBLISHED[1]  # beside ours in plots: what can be reached with free text and a small model
