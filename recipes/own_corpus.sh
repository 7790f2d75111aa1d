#!/bin/bash
# From a folder of your own text to a model, its report and a page to play with it.
#
#     CORPUS=corpus recipes/own_corpus.sh
#
# By default it trains the paper's ELECTRA-Small, which takes days on one GPU. For the complete pipeline in a quarter of an hour on a CPU:
#
#     CORPUS=corpus VOCAB_SIZE=8000 PRESET=auto BUDGET=10m recipes/own_corpus.sh
#
# If it is stopped or killed, the same command resumes. --dry-run prints and checks every command without running any.

source "$(dirname "$0")/run.sh"

CORPUS=${CORPUS:-corpus}         # files or a folder: .txt, .jsonl, .parquet, compressed or not, a Wikipedia dump, ...
OUT=${OUT:-mine}                 # everything is written here
VOCAB_SIZE=${VOCAB_SIZE:-30522}  # 8000 for a few megabytes of text
CASED=${CASED:-}                 # 1 keeps capital letters
LENGTH=${LENGTH:-128}            # tokens in a row
PRESET=${PRESET:-electra_small}  # electra show --help lists them
BUDGET=${BUDGET:-}               # time for training, such as 8h; by default STEPS, or the steps of the preset
STEPS=${STEPS:-}
MORE=${MORE:-}                   # more training settings, such as "--batch-size 64 --optim.lr 3e-4"
GPUS=${GPUS:-1}
GLUE=${GLUE:-}                   # folder of the GLUE files, for English: electra glue --download glue
SEEDS=${SEEDS:-5}                # runs per GLUE task

read -ra more <<<"$MORE"
[ -z "$BUDGET" ] || more+=(--budget "$BUDGET")
[ -z "$STEPS" ] || more+=(--steps "$STEPS")

# Text to rows of token ids
doctor "$CORPUS"
once "$OUT/tokenizer/tokenizer.json" electra tokenizer "$CORPUS" --vocab-size "$VOCAB_SIZE" ${CASED:+--cased} --out "$OUT/tokenizer"
run electra prepare "$CORPUS" --tokenizer "$OUT/tokenizer" --length "$LENGTH" --out "$OUT/shards"
doctor "$OUT/shards"

# Training, scores and report
pretrain "$OUT/run" "$PRESET" --data "$OUT/shards" "${more[@]}"
doctor "$OUT/run"
if [ -n "$GLUE" ]; then score "$OUT/run" "$OUT/hf" --seeds "$SEEDS"; else run electra export "$OUT/run" --out "$OUT/hf"; fi
run electra report "$OUT/run" --out "$OUT/report.html"

echo "Model: $OUT/hf. Report: $OUT/report.html. To try the model: electra play $OUT/hf"
