"""Texts with labels in, scores out: linear models on a network's frozen states, and beside them what counting words gives."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.finetune.metrics import METRICS
from electrakit.finetune.read_glue import Examples
from electrakit.finetune.tasks import Task
from electrakit.finetune.user_tables import examples_of, read_user_table, recognise_task
from electrakit.measure.open import OpenNetwork
from electrakit.measure.results import Probe
from electrakit.measure.token_scores import batches, padded

STATE_PENALTIES = (1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4)
"""Per row, of standardised features; the strongest first, from which the next fit starts."""
WORD_PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Of tf-idf, whose rows have length 1."""
HELD_OUT = 0.2
"""The share of the train rows that choose the penalty."""
MIN_TRAIN_ROWS = 10
MAX_ITERATIONS = 200

Scores = dict[str, float]


@dataclass(frozen=True)
class ProbeData:
    """A train and a dev file, and what is to be predicted."""

    name: str
    task: Task
    train: Examples
    dev: Examples

    @property
    def num_outputs(self) -> int:
        """1 for a number, and for two classes; else one for each class."""
        return 1 if self.task.labels is None or len(self.task.labels) == 2 else len(self.task.labels)


@dataclass(frozen=True)
class LinearModel:
    weight: Tensor  # (features, outputs)
    bias: Tensor  # (outputs)

    def __call__(self, features: Tensor) -> Tensor:
        return features @ self.weight + self.bias


def read_probe_data(train: Path, dev: Path, text: Sequence[str] | None, label: str | None) -> ProbeData:
    """The user's files, read as `electra finetune` reads them."""
    table = read_user_table(train)
    # GLUE/RTE/train.tsv is RTE, questions.tsv is questions.
    name = train.resolve().parent.name if train.stem.lower() in ("train", "training") else train.stem
    task = recognise_task(table, text, label, None, name)
    data = ProbeData(name, task, examples_of(table, task), examples_of(read_user_table(dev), task))
    if len(data.train) < MIN_TRAIN_ROWS:
        raise UserError(f"--train {train} has {len(data.train)} rows; a probe needs {MIN_TRAIN_ROWS} or more")
    return data


def probe(network: OpenNetwork, data: ProbeData, baselines: dict[str, Scores]) -> Probe:
    """The scores of linear models on a network's states."""
    train, dev = (text_features(network, examples) for examples in (data.train, data.dev))
    scores = {}
    for way in train:
        mean, deviation = train[way].mean(0), train[way].std(0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        of_train, of_dev = ((each[way] - mean) / deviation for each in (train, dev))
        scores[way] = scores_of_features(data, of_train, of_dev, STATE_PENALTIES)
    return Probe(data.task.metrics[0], len(data.train), len(data.dev), scores, baselines)


def counting_baselines(data: ProbeData) -> dict[str, Scores]:
    """What needs no network: the most frequent class, and a linear model on the words of the texts."""
    found: dict[str, Scores] = {}
    if data.task.labels is not None:
        majority = Counter(data.train.labels).most_common(1)[0][0]
        found["majority"] = metrics_of(data, np.full(len(data.dev), majority))
    train, dev = word_features(data.train, data.dev)
    return found | {"words": scores_of_features(data, train, dev, WORD_PENALTIES)}


# States


def text_features(network: OpenNetwork, examples: Examples) -> dict[str, Tensor]:
    """By pooling: the states of a text; of two texts, |u - v| and u * v."""
    first = text_states(network, examples.first)
    if examples.second is None:
        return first
    second = text_states(network, examples.second)
    return {way: torch.cat([(first[way] - second[way]).abs(), first[way] * second[way]], -1) for way in first}


@torch.inference_mode()
def text_states(network: OpenNetwork, texts: Sequence[str]) -> dict[str, Tensor]:
    """The last hidden states of texts: their mean over all tokens, and that of [CLS]: (N, H) each."""
    rows = network.encode(texts)
    found: dict[str, list[Tensor]] = {"mean": [], "cls": []}
    order: list[int] = []
    for places in batches([len(row) for row in rows], f"{network.title}: states"):
        ids = padded(network, [rows[place] for place in places])
        states = network.adapter.hidden(ids).float()  # (B, T, H)
        is_real = (ids != network.tokenizer.special_ids["pad"])[..., None]
        found["mean"].append(((states * is_real).sum(1) / is_real.sum(1)).cpu())
        found["cls"].append(states[:, 0].cpu())
        order += places.tolist()
    back = torch.tensor(np.argsort(order))
    return {way: torch.cat(parts)[back].double() for way, parts in found.items()}


# Words


def word_features(train: Examples, dev: Examples) -> tuple[Tensor, Tensor]:
    """tf-idf of the words of each row, sparse; of two texts, |u - v|, u * v, and their cosine."""
    texts = [*train.first, *(train.second or [])]
    num_with = Counter(word for text in texts for word in set(words_of(text)))
    weights = {word: math.log((1 + len(texts)) / (1 + count)) + 1 for word, count in num_with.items() if count > 1}
    rows = [[row_features(examples, place, weights) for place in range(len(examples))] for examples in (train, dev)]
    columns = {name: place for place, name in enumerate(dict.fromkeys(name for row in rows[0] for name in row))}
    return sparse(rows[0], columns), sparse(rows[1], columns)


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def row_features(examples: Examples, place: int, weights: Mapping[str, float]) -> dict[str, float]:
    first = tf_idf(examples.first[place], weights)
    if examples.second is None:
        return first
    second = tf_idf(examples.second[place], weights)
    differences = {f"- {word}": abs(first.get(word, 0) - second.get(word, 0)) for word in (first | second)}
    products = {f"* {word}": first[word] * second[word] for word in first.keys() & second.keys()}
    return {**differences, **dict(sorted(products.items())), "cosine": sum(products.values())}


def tf_idf(text: str, weights: Mapping[str, float]) -> dict[str, float]:
    """A row of length 1."""
    found = {word: count * weights[word] for word, count in Counter(words_of(text)).items() if word in weights}
    length = math.sqrt(sum(value**2 for value in found.values()))
    return {word: value / length for word, value in found.items()}


def sparse(rows: Sequence[Mapping[str, float]], columns: Mapping[str, int]) -> Tensor:
    entries = [
        (place, columns[name], value)
        for place, row in enumerate(rows)
        for name, value in row.items()
        if name in columns
    ]
    indices = torch.tensor([entry[:2] for entry in entries], dtype=torch.long).reshape(-1, 2).T
    values = torch.tensor([entry[2] for entry in entries], dtype=torch.double)
    return torch.sparse_coo_tensor(indices, values, (len(rows), len(columns)), check_invariants=False).coalesce()


# Linear models


def scores_of_features(data: ProbeData, train: Tensor, dev: Tensor, penalties: Sequence[float]) -> Scores:
    """Choose the penalty on held-out train rows, fit on all of them, and score the dev rows."""
    targets = torch.tensor(data.train.labels, dtype=torch.double)
    model = fit_with_best_penalty(train, targets, loss_of(data), data.num_outputs, penalties)
    outputs = model(dev)
    if data.task.labels is None:
        return metrics_of(data, outputs[:, 0].numpy())
    return metrics_of(data, (outputs[:, 0] > 0).numpy() if data.num_outputs == 1 else outputs.argmax(-1).numpy())


def metrics_of(data: ProbeData, predictions: np.ndarray) -> Scores:
    assert data.dev.labels is not None
    return {name: METRICS[name](data.dev.labels, predictions) for name in data.task.metrics}


Loss = Callable[[Tensor, Tensor], Tensor]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square().mean() / 2


def two_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs[:, 0], targets)


def many_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets.long())


def loss_of(data: ProbeData) -> Loss:
    if data.task.labels is None:
        return squared_error
    return two_classes if data.num_outputs == 1 else many_classes


def fit_with_best_penalty(
    features: Tensor, targets: Tensor, loss: Loss, num_outputs: int, penalties: Sequence[float]
) -> LinearModel:
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(targets)))
    num_held_out = max(1, round(HELD_OUT * len(targets)))
    held_out, rest = order[:num_held_out], order[num_held_out:]
    losses = []
    model = None
    for penalty in penalties:
        model = fit(features.index_select(0, rest), targets[rest], loss, num_outputs, penalty, model)
        losses.append(float(loss(model(features.index_select(0, held_out)), targets[held_out])))
    best = penalties[int(np.argmin(losses))]  # the strongest of equals
    return fit(features, targets, loss, num_outputs, best)


def fit(
    features: Tensor, targets: Tensor, loss: Loss, num_outputs: int, penalty: float, start: LinearModel | None = None
) -> LinearModel:
    """The minimum of mean loss + penalty / 2 * |weight|²: ridge or logistic regression. The bias is not penalised."""
    if loss is squared_error and not features.is_sparse:
        return ridge(features, targets, penalty)
    shape = features.size(1), num_outputs
    weight = torch.zeros(shape, dtype=torch.double) if start is None else start.weight.clone()
    bias = torch.zeros(num_outputs, dtype=torch.double) if start is None else start.bias.clone()
    parameters = [weight.requires_grad_(), bias.requires_grad_()]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=MAX_ITERATIONS, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        total = loss(features @ weight + bias, targets) + penalty / 2 * weight.square().sum()
        total.backward()
        return total

    optimizer.step(objective)
    return LinearModel(weight.detach(), bias.detach())


def ridge(features: Tensor, targets: Tensor, penalty: float) -> LinearModel:
    """In closed form."""
    mean, middle = features.mean(0), targets.mean()
    centred = features - mean
    products = centred.T @ centred + penalty * len(targets) * torch.eye(features.size(1), dtype=torch.double)
    weight = torch.linalg.solve(products, centred.T @ (targets - middle)[:, None])
    return LinearModel(weight, middle - mean @ weight)
