#!/bin/bash
# Continue Google's ELECTRA on your own text, from the Hugging Face Hub or from Google's TensorFlow checkpoint.
#
#     CORPUS=corpus recipes/continue_from_released.sh
#     CORPUS=corpus CHECKPOINT=electra_small recipes/continue_from_released.sh       # the unpacked archive, with vocab.txt in it
#
# 50,000 steps of a small model take hours on a GPU. The vocabulary is the model's, and the learning rate is small; docs/continuing.md explains
# why.
#
# If it is stopped or killed, the same command resumes. --dry-run prints and checks every command without running any.

source "$(dirname "$0")/run.sh"

CORPUS=${CORPUS:-corpus}
CHECKPOINT=${CHECKPOINT:-} # a TensorFlow checkpoint: its folder or its prefix; used instead of the two models below
DISCRIMINATOR=${DISCRIMINATOR:-google/electra-small-discriminator} # or a folder
GENERATOR=${GENERATOR:-google/electra-small-generator}
OUT=${OUT:-continued}    # everything is written here
LENGTH=${LENGTH:-128}    # tokens in a row
PRESET=${PRESET:-electra_small} # training settings; the sizes are those of the models
STEPS=${STEPS:-50000}
LR=${LR:-1e-4}           # the highest learning rate
WARMUP=${WARMUP:-1000}   # steps
MORE=${MORE:-}           # more settings, such as "--batch-size 64"
GPUS=${GPUS:-1}
GLUE=${GLUE:-}           # folder of the GLUE files: scores the model before and after training
SEEDS=${SEEDS:-5}        # runs per GLUE task

read -ra more <<<"$MORE"
if [ -n "$CHECKPOINT" ]; then
    once "$OUT/released/config.json" electra convert "$CHECKPOINT" --out "$OUT/released"
    DISCRIMINATOR=$OUT/released GENERATOR=$OUT/released/generator
fi

run electra prepare "$CORPUS" --tokenizer "$DISCRIMINATOR" --length "$LENGTH" --out "$OUT/shards"
doctor "$OUT/shards"
pretrain "$OUT/run" "$PRESET" --data "$OUT/shards" --steps "$STEPS" --optim.lr "$LR" --optim.warmup-steps "$WARMUP" \
    --init-discriminator "$DISCRIMINATOR" --init-generator "$GENERATOR" "${more[@]}"
doctor "$OUT/run"
if [ -n "$GLUE" ]; then
    run electra glue "$DISCRIMINATOR" --data "$GLUE" --seeds "$SEEDS" --out "$OUT/glue-before"
    score "$OUT/run" "$OUT/hf" --seeds "$SEEDS"
else
    run electra export "$OUT/run" --out "$OUT/hf"
fi
run electra report "$OUT/run" --out "$OUT/report.html"
