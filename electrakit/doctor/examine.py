"""Examines a corpus, a folder of shards or runs for what ruins training."""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from electrakit.common.errors import UserError
from electrakit.common.progress import console
from electrakit.config.corpus import SHARDS_MANIFEST, SHARDS_TOKENIZER, DoctorConfig, Engine, SourceFormat, Splitting
from electrakit.data.batches import Batches
from electrakit.data.corpus import SeenHashes, Selection, map_corpus, print_notes, require_documents
from electrakit.data.manifest import PREPARE_AGAIN, read_manifest
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import find_inputs
from electrakit.data.shard_writer import PROGRESS_FOLDER, SHARD
from electrakit.data.tokenizer_files import load_tokenizer
from electrakit.doctor.findings import Examination, Finding, Measure, Measures, Thresholds, format_measure
from electrakit.doctor.measures import (
    TextCounts,
    characters_of_rows,
    row_measures,
    sample_rows,
    share_of_continued,
    share_of_copies,
    share_seen_once,
    tally,
    token_measures,
)
from electrakit.doctor.problems import Problem
from electrakit.doctor.run import examine_run
from electrakit.doctor.tokenizer_advice import tokenizer_advice
from electrakit.runs import layout
from electrakit.runs.files import is_run, read_run

USUAL_TOKENS_PER_WORD = 1.3
# Document batches whose words are sampled.
MAX_SAMPLES = 100


@dataclass(frozen=True)
class CorpusCheck(Problem):
    """A problem that one measure of the text shows."""

    measure: Measure
    thresholds: Thresholds

    def look(self, measures: Measures) -> Iterator[Finding]:
        value = measures.get(self.measure)
        if value is None or (level := self.thresholds.level(value)) is None:
            return
        side = "above" if self.thresholds.is_low_bad else "below"
        healthy = f"healthy {side} {format_measure(self.measure, self.thresholds.warning)}"
        yield self.found(level, f"{self.measure}: {format_measure(self.measure, value)} ({healthy})")


TOKEN_MEASURES = (
    *(Measure.UNKNOWN_TOKENS, Measure.TOKENS_PER_WORD, Measure.CONTINUED_WORDS, Measure.TOKENS_PER_ENTRY),
    *(Measure.UNUSED_VOCABULARY, Measure.UNIGRAM_ENTROPY),
)
NO_VALIDATION = Problem(
    "there is no validation split",
    "Without one, you cannot tell learning from memorising.",
    "Prepare again with --valid 0.01, or with a larger share if the corpus has few documents.",
)
CORPUS_CHECKS = (
    CorpusCheck(
        "too many words are single letters",
        "Text has been taken apart into letters, as `' '.join(text)` does to a string. A model learns letter frequencies from "
        "it: the generator's loss stops near 3 nats right after warm-up, the discriminator's at the entropy of the base rate.",
        "Look at the rows that electra prepare shows, and fix the program that wrote the text: join lists, not strings.",
        Measure.LETTERS_IN_A_ROW,
        Thresholds(0.05, 0.25),
    ),
    CorpusCheck(
        "many words are unknown to the tokenizer",
        "An [UNK] says nothing about the word that stood there, and the model learns to predict [UNK].",
        "Train a tokenizer on this text (electra tokenizer), or load one made for its language and script.",
        Measure.UNKNOWN_TOKENS,
        Thresholds(0.01, 0.05),
    ),
    CorpusCheck(
        "the vocabulary does not fit the text",
        "Words fall apart into many pieces (English with a fitting vocabulary: 1.2 to 1.6), so a row holds less text and the "
        "generator's task becomes spelling.",
        "Train a tokenizer on this text, or check that it is the right language and that lower-case fits.",
        Measure.TOKENS_PER_WORD,
        Thresholds(2.0, 3.5),
    ),
    CorpusCheck(
        "much of the vocabulary never occurs",
        "The embeddings of these entries are never trained; the vocabulary was made for other text.",
        "Train a tokenizer on this text, or use a smaller --vocab-size.",
        Measure.UNUSED_VOCABULARY,
        Thresholds(0.5, 0.9),
    ),
    CorpusCheck(
        "the corpus is tiny for this vocabulary",
        "Most entries are seen a few times only: the generator cannot learn them, and the model will memorise the corpus.",
        "Add text, use a smaller --vocab-size, or continue from released weights instead of training from nothing.",
        Measure.TOKENS_PER_ENTRY,
        Thresholds(200, 10),
    ),
    CorpusCheck(
        "documents occur several times",
        "The model memorises them, and the validation loss becomes less meaningful.",
        "Use --dedupe.",
        Measure.DUPLICATE_DOCUMENTS,
        Thresholds(0.05, 0.5),
    ),
    CorpusCheck(
        "rows occur several times",
        "The same text fills several rows: documents that are in the corpus twice (a copy gives the same rows), or boilerplate.",
        "Prepare again with --dedupe, and look for headers and footers that every document has.",
        Measure.DUPLICATE_ROWS,
        Thresholds(0.02, 0.5),
    ),
    CorpusCheck(
        "most documents are very short",
        "Rows never cross documents, so documents of fewer than 10 words become rows that are nearly all padding.",
        "Check --documents (blank, file or line): perhaps every line is taken for a document. Or use --min-words.",
        Measure.SHORT_DOCUMENTS,
        Thresholds(0.5),
    ),
    CorpusCheck(
        "many rows are mostly padding",
        "Training time is spent on padding, and the model sees little context.",
        "Use a smaller --length, check --documents, or leave out short documents with --min-words.",
        Measure.ROWS_MOSTLY_PADDING,
        Thresholds(0.4, 0.9),
    ),
    CorpusCheck(
        "much of the text is not prose",
        "Code, tables, markup or encoded data: the model learns that instead of language (English prose: 2 to 10 %).",
        "Look at the text, and clean it; force the right --source if a dump is read as plain text.",
        Measure.SYMBOLS,
        Thresholds(0.25, 0.5),
    ),
    CorpusCheck(
        "much of the text is program code or markup",
        "So many brackets, underscores and operators do not stand in prose (less than 2 %), but in code, markup and formulas "
        "(8 to 17 %). A model learns that instead of language.",
        "Look at the text, and clean it; force the right --source if a dump is read as plain text. If it is to learn code, all is well.",
        Measure.CODE,
        Thresholds(0.05),
    ),
    CorpusCheck(
        "much of the text is not made of words",
        "Strings of 40 characters and more without a space: encoded data, keys, addresses, or text that has lost its spaces. "
        "There is no language in it to learn.",
        "Look at the text. Leave encoded data out, or fix the program that removed the spaces.",
        Measure.OVERLONG_WORDS,
        Thresholds(0.1, 0.3),
    ),
    CorpusCheck(
        "hardly a word occurs twice",
        "Prose in any language repeats its words; random letters, keys and word lists do not (English prose: 5 to 30 %).",
        "Look at the text: it is probably generated, encoded or scrambled, or a list of words.",
        Measure.WORDS_SEEN_ONCE,
        Thresholds(0.8, 0.9),
    ),
    CorpusCheck(
        "the row builder throws text away",
        "The official builder drops the end of each line that fills a row.",
        "Use --rows full, which loses nothing.",
        Measure.TOKENS_LOST,
        Thresholds(0.1),
    ),
)


def examine(
    inputs: Iterable[str | Path],
    *,
    tokenizer: str | Path | None = None,
    max_mb: int = 64,
    source: SourceFormat | None = None,
    documents: Splitting = "blank",
    field: str = "text",
    encoding: str | None = None,
    min_words: int = 0,
    dedupe: bool = False,
    limit: int | None = None,
    workers: int | None = None,
    engine: Engine = "local",
) -> Examination:
    """Measure a corpus, a folder of shards, or runs, and look for what ruins training; DoctorConfig explains the settings."""
    config = DoctorConfig(**locals())
    if any(map(is_run, config.inputs)):
        return _examine_runs(config)
    _refuse_folder_of_runs(config)
    shards = [name for name in config.inputs if _is_shards(Path(name))]
    if shards and (len(config.inputs) > 1 or config.tokenizer):
        raise UserError(f"{shards[0]} is a folder of shards: examine it alone, and without --tokenizer; it has its own")
    examination = _examine_shards(Path(shards[0]), config) if shards else _examine_text(config)
    examination.findings += [finding for check in CORPUS_CHECKS for finding in check.look(examination.measures)]
    return examination


def _examine_runs(config: DoctorConfig) -> Examination:
    if others := [name for name in config.inputs if not is_run(name)]:
        raise UserError(f"{others[0]} is no run, and others of the inputs are: examine runs by themselves")
    if config.tokenizer:
        raise UserError(f"{config.inputs[0]} is a run: examine it without --tokenizer; its shards have their own")
    parts = [examine_run(read_run(name)) for name in config.inputs]
    if len(parts) == 1:
        return parts[0]
    findings = [finding for part in parts for finding in part.findings]
    return Examination(f"{len(parts)} runs", {}, findings, parts=parts)


def _refuse_folder_of_runs(config: DoctorConfig) -> None:
    """A folder of runs holds text but is no corpus; and a checkpoint belongs to its run."""
    for name in config.inputs:
        path = Path(name)
        run = layout.run_of_checkpoint(path)
        if run is not None and is_run(run):
            raise UserError(f"{name} is a checkpoint: examine its run, {run}")
        if runs := sorted(str(one.parent) for one in path.glob(f"*/{layout.CONFIG_FILE}") if is_run(one.parent)):
            raise UserError(f"{name} holds runs: name them, as in electra doctor {' '.join(runs[:3])}")


def _is_shards(path: Path) -> bool:
    """Unfinished or damaged shards too: reading their manifest reports that."""
    try:
        if (path / PROGRESS_FOLDER).is_dir() or any(SHARD.fullmatch(one.name) for one in path.iterdir()):
            return True
        manifest = json.loads((path / SHARDS_MANIFEST).read_text(encoding="utf-8"))
        return isinstance(manifest, dict) and {"format", "splits"} <= manifest.keys()
    except (OSError, ValueError):
        return False


def _examine_text(config: DoctorConfig) -> Examination:
    notes = Notes()
    inputs = find_inputs(config, notes)
    tokenizer = load_tokenizer(config.tokenizer) if config.tokenizer else None
    vocab_size = len(tokenizer.vocabulary) if tokenizer else 0
    totals = np.zeros(len(TextCounts._fields), np.int64)
    tokens = np.zeros(vocab_size, np.int64)
    selection, seen, num_copies, share_seen = Selection(config), SeenHashes(), 0, 1.0
    words: list[np.ndarray] = []
    sampled_ids: list[np.ndarray] = []
    characters: Counter[str] = Counter()
    sizes = [one.num_bytes for one in inputs]
    total = sum(size or 0 for size in sizes)
    for batch in map_corpus(config, inputs, functools.partial(tally, config.tokenizer), "examining"):
        chosen = selection.choose(batch)
        num_copies += int((~seen.are_new(batch.contents[chosen])).sum())
        totals += batch.value.counts[chosen].sum(0)
        counts = TextCounts(*totals.tolist())
        tokens += np.bincount(batch.value.ids[np.repeat(chosen, batch.value.ids_per_document)], minlength=vocab_size)
        if len(words) < MAX_SAMPLES:
            words.append(batch.value.words)
            sampled_ids.append(batch.value.ids)
            characters += batch.value.characters
        notes.merge(batch.notes)
        if total and None not in sizes and batch.num_bytes_read:
            share_seen = batch.num_bytes_read / total
        if selection.is_full or counts.characters > config.max_mb * 1e6:
            break
        if batch.is_last:  # here, so that what has no documents does not end with "done"
            require_documents(selection.num_documents, notes, config)
    require_documents(selection.num_documents, notes, config)
    print_notes(notes)
    if tokenizer is not None and tokenizer.remark:
        console.print(tokenizer.remark, markup=False, soft_wrap=True)
    num_documents, num_words = selection.num_documents, max(1, counts.words)
    num_visible = max(1, counts.visible_characters)
    measures: Measures = {
        Measure.DOCUMENTS: num_documents,
        Measure.WORDS: counts.words,
        Measure.WORDS_PER_DOCUMENT: counts.words / num_documents,
        Measure.SHORT_DOCUMENTS: counts.short_documents / num_documents,
        Measure.DUPLICATE_DOCUMENTS: num_copies / num_documents,
        Measure.SINGLE_LETTERS: counts.single_letters / num_words,
        Measure.LETTERS_IN_A_ROW: counts.letters_in_a_row / num_words,
        Measure.OVERLONG_WORDS: counts.in_long_words / num_visible,
        Measure.SYMBOLS: 1 - counts.letters / num_visible,
        Measure.CODE: counts.code_punctuation / num_visible,
    }
    if (seen_once := share_seen_once(words)) is not None:
        measures[Measure.WORDS_SEEN_ONCE] = seen_once
    if tokenizer is not None:
        measures[Measure.TOKENS_PER_WORD] = int(tokens.sum()) / num_words
        measures[Measure.CONTINUED_WORDS] = share_of_continued(np.concatenate(sampled_ids), tokenizer)
        measures |= token_measures(tokens, tokenizer, share_seen)
    what = f"{counts.characters / 1e6:,.1f} MB of text examined"
    not_checked = () if tokenizer is not None else TOKEN_MEASURES
    advice = tokenizer_advice(characters, measures[Measure.CODE], USUAL_TOKENS_PER_WORD * counts.words / share_seen)
    return Examination(f"Corpus {', '.join(config.inputs)}: {what}", measures, not_checked=not_checked, advice=advice)


def _examine_shards(shards: Path, config: DoctorConfig) -> Examination:
    manifest = read_manifest(shards)
    counts = manifest.counts
    if counts is None:
        raise UserError(f"{shards / SHARDS_MANIFEST} lacks counts: {PREPARE_AGAIN}")
    tokenizer = load_tokenizer(shards / SHARDS_TOKENIZER)
    split = next(iter(manifest.splits))
    batches = Batches(shards, 1024, split=split)
    rows = sample_rows(batches, max(1, int(config.max_mb * 1e6) // (8 * batches.length)))
    tokens = np.bincount(rows.ravel(), minlength=batches.vocab_size)
    measures: Measures = {
        Measure.DOCUMENTS: counts.documents,
        Measure.ROWS: counts.rows,
        Measure.TOKENS_PER_DOCUMENT: counts.tokens / max(1, counts.documents),
        Measure.PADDING: counts.padding / (counts.rows * manifest.length),
        Measure.ROWS_MOSTLY_PADDING: counts.rows_mostly_padding / counts.rows,
        Measure.DUPLICATE_ROWS: share_of_copies(batches),
        Measure.TOKENS_LOST: counts.tokens_lost / max(1, counts.tokens + counts.tokens_lost),
        **row_measures(rows, tokenizer),
        **token_measures(tokens, tokenizer, len(rows) / batches.num_rows),
    }
    if counts.short_documents is not None:
        measures[Measure.SHORT_DOCUMENTS] = counts.short_documents / max(1, counts.documents)
    measures[Measure.CONTINUED_WORDS] = share_of_continued(rows.ravel(), tokenizer)
    advice = tokenizer_advice(characters_of_rows(rows, tokenizer), measures[Measure.CODE], counts.tokens)
    examination = Examination(
        f"Shards {shards}: {len(rows):,} of {batches.num_rows:,} rows examined",
        measures,
        advice=f"{advice}; it has {tokenizer.summary}",
    )
    if "valid" not in manifest.splits:
        examination.findings.append(NO_VALIDATION.found("warning", f"splits: {', '.join(manifest.splits)}"))
    return examination
