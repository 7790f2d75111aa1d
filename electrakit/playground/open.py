"""Opens a pair of networks over one vocabulary, wherever they lie, for the playground."""

import os
from pathlib import Path

from electrakit.common.errors import UserError
from electrakit.data.tokenizer_files import TokenizerFiles, has_tokenizer_files, load_tokenizer
from electrakit.measure.open import (
    class_of,
    find_networks,
    gives_energies,
    head_of,
    load_network,
    max_length_of,
    name_of,
)
from electrakit.model.counts import HeadKind
from electrakit.playground.pair import Pair

MAX_TOKENS = 512
"""Longer texts take too long for a page that answers while the user types."""


def open_pair(place: str | os.PathLike[str], generator: str | os.PathLike[str] | None = None) -> Pair:
    """Open the networks of a place. generator: where to find one for a discriminator that has none beside it."""
    place = os.fspath(place)
    folders = find_folders(place)
    if generator is not None and "words" not in folders:
        others = find_folders(os.fspath(generator))
        if "words" not in others:
            raise UserError(f"--generator {generator} predicts no words; name a model with a head for masked words")
        folders["words"] = others["words"]
    # The discriminator's tokenizer, if it has one.
    tokenizer = load_tokenizer(folders.get("replaced") or folders["words"])
    for folder in folders.values():
        check_same_vocabulary(tokenizer, folder)
    networks = {head: load_network(folder, head, tokenizer) for head, folder in folders.items()}
    max_tokens = min(MAX_TOKENS, *(max_length_of(network, tokenizer) for network in networks.values()))
    return Pair(name_of(place), tokenizer, max_tokens, networks.get("words"), networks.get("replaced"))


def find_folders(place: str) -> dict[HeadKind, Path]:
    """The folders of the networks, by the kind of their head."""
    found: dict[HeadKind, Path] = {}
    for folder in find_networks(place):
        head = head_of(folder)
        if head is None:
            raise UserError(
                f"{folder} is a {class_of(folder)}: it predicts neither which tokens were replaced "
                "(ElectraForPreTraining, ...ForTokenClassification) nor which words are missing (...ForMaskedLM)"
            )
        if gives_energies(folder):
            raise UserError(
                f"{folder} is an Electric: it gives log-probabilities, not chances that a token was replaced; use electra score"
            )
        found.setdefault(head, folder)
    return found


def check_same_vocabulary(tokenizer: TokenizerFiles, folder: Path) -> None:
    """Both networks must have the same vocabulary."""
    if not has_tokenizer_files(folder):
        return
    theirs = load_tokenizer(folder)
    if theirs.vocabulary != tokenizer.vocabulary:
        raise UserError(
            f"the generator {folder} has another vocabulary ({theirs.summary}) than the discriminator "
            f"({tokenizer.summary}); name one that was trained with it"
        )
