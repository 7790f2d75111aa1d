"""ElectraKit: pretrain ELECTRA text encoders, from raw text to a transformers model.

import electrakit as ek

ek.train_tokenizer(["corpus/*.txt"], vocab_size=30_522, out="tokenizer")
ek.prepare(["corpus/*.txt"], tokenizer="tokenizer", length=128, out="shards/mine")
batch = ek.Batches("shards/mine", batch_size=128)(step=0)
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from electrakit.common.errors import UserError as UserError
    from electrakit.config import presets as presets
    from electrakit.data.batches import Batches as Batches
    from electrakit.data.prepare import prepare as prepare
    from electrakit.data.tokenizer import train_tokenizer as train_tokenizer
    from electrakit.data.tokenizer_files import load_tokenizer as load_tokenizer
    from electrakit.deberta.convert import convert_deberta as convert_deberta
    from electrakit.doctor.examine import examine as examine
    from electrakit.export.export import export as export
    from electrakit.finetune.finetune import finetune as finetune
    from electrakit.finetune.glue import glue as glue
    from electrakit.finetune.predict import predict as predict
    from electrakit.finetune.search import search as search
    from electrakit.measure.measure import measure as measure
    from electrakit.measure.score import score as score
    from electrakit.model.build import build as build
    from electrakit.model.huggingface.weights import from_transformers as from_transformers
    from electrakit.model.huggingface.weights import to_transformers as to_transformers
    from electrakit.model.tie import tie as tie
    from electrakit.objective.build import build_objective as build_objective
    from electrakit.objective.electra import Electra as Electra
    from electrakit.objective.electric import Electric as Electric
    from electrakit.objective.mlm import AllTokensMLM as AllTokensMLM
    from electrakit.objective.mlm import MaskedLM as MaskedLM
    from electrakit.objective.mlm import ReplaceMLM as ReplaceMLM
    from electrakit.objective.output import EvaluationSums as EvaluationSums
    from electrakit.playground.server import play as play
    from electrakit.report.report import report as report
    from electrakit.tensorflow.convert import convert as convert
    from electrakit.train.auto import choose_recipe as choose_recipe
    from electrakit.train.loop import pretrain as pretrain

_HOMES = {
    "AllTokensMLM": "electrakit.objective.mlm",
    "Batches": "electrakit.data.batches",
    "Electra": "electrakit.objective.electra",
    "Electric": "electrakit.objective.electric",
    "EvaluationSums": "electrakit.objective.output",
    "MaskedLM": "electrakit.objective.mlm",
    "ReplaceMLM": "electrakit.objective.mlm",
    "UserError": "electrakit.common.errors",
    "build": "electrakit.model.build",
    "build_objective": "electrakit.objective.build",
    "choose_recipe": "electrakit.train.auto",
    "convert": "electrakit.tensorflow.convert",
    "convert_deberta": "electrakit.deberta.convert",
    "examine": "electrakit.doctor.examine",
    "export": "electrakit.export.export",
    "finetune": "electrakit.finetune.finetune",
    "from_transformers": "electrakit.model.huggingface.weights",
    "glue": "electrakit.finetune.glue",
    "load_tokenizer": "electrakit.data.tokenizer_files",
    "measure": "electrakit.measure.measure",
    "play": "electrakit.playground.server",
    "predict": "electrakit.finetune.predict",
    "prepare": "electrakit.data.prepare",
    "presets": "electrakit.config.presets",
    "pretrain": "electrakit.train.loop",
    "report": "electrakit.report.report",
    "score": "electrakit.measure.score",
    "search": "electrakit.finetune.search",
    "tie": "electrakit.model.tie",
    "to_transformers": "electrakit.model.huggingface.weights",
    "train_tokenizer": "electrakit.data.tokenizer",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `electra --help` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'electrakit' has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    return module if name == "presets" else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """Keeps `electrakit.export` the function: importing the folder of the same name would otherwise put the module in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)) or name == "presets":
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
