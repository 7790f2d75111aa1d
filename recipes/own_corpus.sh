#!/bin/bash
# From a folder of your own text to a model, its report and a page to play with it.
#
#     CORPUS=corpus recipes/own_corpus.sh
#
# As it stands it trains ELECTRA-Small of the paper: days on one GPU. To see the whole walk in a quarter of an hour, on a CPU:
#
#     CORPUS=corpus VOCAB_SIZE=8000 PRESET=mini BUDGET=10m recipes/own_corpus.sh
#
# Stopped or killed, the same command goes on where it was. --dry-run prints and checks every command, and runs none.

source "$(dirname "$0")/run.sh"

CORPUS=${CORPUS:-corpus}         # files or a folder: .txt, .jsonl, .parquet, compressed or not, a Wikipedia dump, ...
OUT=${OUT:-mine}                 # everything is written here
VOCAB_SIZE=${VOCAB_SIZE:-30522}  # 8000 for a few megabytes of text
CASED=${CASED:-}                 # 1 keeps capital letters
LENGTH=${LENGTH:-128}            # tokens in a row
PRESET=${PRESET:-electra_small}  # electra show --help lists them
BUDGET=${BUDGET:-}               # time for the training, such as 8h; without one, the steps of the preset or STEPS
STEPS=${STEPS:-}
MORE=${MORE:-}                   # more settings of the training, such as "--batch-size 64 --optim.lr 3e-4"
GPUS=${GPUS:-1}
GLUE=${GLUE:-}                   # folder of the GLUE files, for English: electra glue --download glue
SEEDS=${SEEDS:-5}                # runs of each task of GLUE

read -ra more <<<"$MORE"
[ -z "$BUDGET" ] || more+=(--budget "$BUDGET")
[ -z "$STEPS" ] || more+=(--steps "$STEPS")

# Text to rows of token ids
doctor "$CORPUS"
once "$OUT/tokenizer/tokenizer.json" electra tokenizer "$CORPUS" --vocab-size "$VOCAB_SIZE" ${CASED:+--cased} --out "$OUT/tokenizer"
run electra prepare "$CORPUS" --tokenizer "$OUT/tokenizer" --length "$LENGTH" --out "$OUT/shards"
doctor "$OUT/shards"

# Training, and what it came to
pretrain "$OUT/run" "$PRESET" --data "$OUT/shards" "${more[@]}"
doctor "$OUT/run"
if [ -n "$GLUE" ]; then score "$OUT/run" "$OUT/hf" --seeds "$SEEDS"; else run electra export "$OUT/run" --out "$OUT/hf"; fi
run electra report "$OUT/run" --out "$OUT/report.html"

echo "The model: $OUT/hf. How it went: $OUT/report.html. To play with it: electra play $OUT/hf"
