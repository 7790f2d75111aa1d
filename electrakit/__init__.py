"""ElectraKit: pretrain ELECTRA text encoders, from raw text to a transformers model.

import electrakit as ek

ek.train_tokenizer(["corpus/*.txt"], vocab_size=30_522, out="tokenizer")
ek.prepare(["corpus/*.txt"], tokenizer="tokenizer", length=128, out="shards/mine")
batch = ek.Batches("shards/mine", batch_size=128)(step=0)
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from electrakit import presets as presets
    from electrakit.data.batches import Batches as Batches
    from electrakit.data.shards import prepare as prepare
    from electrakit.data.tokenizer import load_tokenizer as load_tokenizer
    from electrakit.data.tokenizer import train_tokenizer as train_tokenizer
    from electrakit.doctor.examine import examine as examine
    from electrakit.errors import UserError as UserError
    from electrakit.evaluate.glue import glue as glue
    from electrakit.evaluate.predict import predict as predict
    from electrakit.evaluate.search import search as search
    from electrakit.evaluate.tune import finetune as finetune
    from electrakit.model.build import build as build
    from electrakit.model.tie import tie as tie
    from electrakit.model.weights import from_transformers as from_transformers
    from electrakit.model.weights import to_transformers as to_transformers
    from electrakit.objective.build import build_objective as build_objective
    from electrakit.objective.electra import Electra as Electra
    from electrakit.objective.mlm import AllTokensMLM as AllTokensMLM
    from electrakit.objective.mlm import MaskedLM as MaskedLM
    from electrakit.objective.mlm import ReplaceMLM as ReplaceMLM
    from electrakit.objective.output import EvaluationSums as EvaluationSums
    from electrakit.share.convert import convert as convert
    from electrakit.share.export import export as export
    from electrakit.share.play.server import play as play
    from electrakit.share.report import report as report
    from electrakit.train.loop import pretrain as pretrain

_HOMES = {
    "AllTokensMLM": "electrakit.objective.mlm",
    "Batches": "electrakit.data.batches",
    "Electra": "electrakit.objective.electra",
    "EvaluationSums": "electrakit.objective.output",
    "MaskedLM": "electrakit.objective.mlm",
    "ReplaceMLM": "electrakit.objective.mlm",
    "UserError": "electrakit.errors",
    "build": "electrakit.model.build",
    "build_objective": "electrakit.objective.build",
    "convert": "electrakit.share.convert",
    "examine": "electrakit.doctor.examine",
    "export": "electrakit.share.export",
    "finetune": "electrakit.evaluate.tune",
    "from_transformers": "electrakit.model.weights",
    "glue": "electrakit.evaluate.glue",
    "load_tokenizer": "electrakit.data.tokenizer",
    "play": "electrakit.share.play.server",
    "predict": "electrakit.evaluate.predict",
    "prepare": "electrakit.data.shards",
    "presets": "electrakit.presets",
    "pretrain": "electrakit.train.loop",
    "report": "electrakit.share.report",
    "search": "electrakit.evaluate.search",
    "tie": "electrakit.model.tie",
    "to_transformers": "electrakit.model.weights",
    "train_tokenizer": "electrakit.data.tokenizer",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `electra --help` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'electrakit' has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    return module if _HOMES[name] == f"electrakit.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
