"""Settings from Python: what makes no sense is refused before any work, and the message names the setting."""

import inspect
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.config.corpus import DoctorConfig, PrepareConfig, TokenizerConfig
from electrakit.config.finetune import FinetuneConfig, GlueConfig, PredictConfig, SearchConfig
from electrakit.config.outputs import ConvertConfig, ExportConfig, PlayConfig, ReportConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": "paragraph"}, "--documents must be one of blank, file, line, got 'paragraph'"),
        ({"rows": "foo"}, "--rows must be one of full, official, crude, got 'foo'"),
        ({"source": "txt"}, r"--source must be one of text, jsonl, .*openwebtext or None, got 'txt'"),
        ({"valid": float("nan")}, "--valid must be a number, got nan"),
        ({"test": float("inf")}, "--test must be a number, got inf"),
        ({"length": "128"}, "--length must be a whole number, got '128'"),
        ({"length": True}, "--length must be a whole number, got True"),
        ({"length": 64.0}, "--length must be a whole number, got 64.0"),
        ({"limit": 1.5}, "--limit must be a whole number or None, got 1.5"),
        ({"dedupe": "yes"}, "--dedupe must be True or False, got 'yes'"),
        ({"out": 3}, "--out must be a path, got 3"),
        ({"tokenizer": None}, "--tokenizer must be a string, got None"),
        ({"shard_mb": 0}, "--shard-mb must be 1 or more, got 0"),
    ],
)
def test_settings_of_a_wrong_kind_are_refused_by_name(changes, message):
    with pytest.raises(UserError, match=message):
        PrepareConfig(inputs=["text"], **{"tokenizer": "t", "out": "out", **changes})


def test_good_settings_pass():
    config = PrepareConfig(inputs=[Path("text")], tokenizer=Path("t"), out="out", valid=0, source="jsonl", workers=None)
    assert (config.inputs, config.tokenizer, config.out) == (("text",), "t", Path("out"))
    assert TokenizerConfig(inputs=["text"], out=Path("out"), vocab_size=100).vocab_size == 100


def test_the_doctor_looks_at_something():
    with pytest.raises(UserError, match="--max-mb must be 1 or more, got 0"):
        DoctorConfig(inputs=["text"], max_mb=0)
    with pytest.raises(UserError, match="--vocab-size must be a whole number, got '8k'"):
        TokenizerConfig(inputs=["text"], out="out", vocab_size="8k")


FUNCTIONS = {
    ek.train_tokenizer: TokenizerConfig,
    ek.prepare: PrepareConfig,
    ek.examine: DoctorConfig,
    ek.export: ExportConfig,
    ek.convert: ConvertConfig,
    ek.finetune: FinetuneConfig,
    ek.predict: PredictConfig,
    ek.glue: GlueConfig,
    ek.search: SearchConfig,
    ek.report: ReportConfig,
    ek.play: PlayConfig,
}


@pytest.mark.parametrize(("function", "config"), FUNCTIONS.items())
def test_the_functions_take_the_settings_of_the_command_line_by_name(function, config):
    """Names, kinds and defaults agree; a path may be a string too, and a string that names a place a path."""
    arguments = inspect.signature(function).parameters
    hints, wanted = get_type_hints(function), get_type_hints(config)
    assert arguments.keys() == {field.name for field in fields(config)}
    for field in fields(config):
        argument = arguments[field.name]
        if argument.default is not argument.empty:
            assert config.read_values({field.name: argument.default}) == {field.name: field.default}
        else:
            assert field.default is MISSING or field.name == "model"
        kinds = get_args(wanted[field.name]) if get_origin(wanted[field.name]) is UnionType else [wanted[field.name]]
        if not {str, Path, tuple} & {get_origin(kind) or kind for kind in kinds}:
            assert hints[field.name] == wanted[field.name], field.name
