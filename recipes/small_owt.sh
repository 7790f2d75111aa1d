#!/bin/bash
# ELECTRA-Small on OpenWebText: Google's "ELECTRA-Small-OWT", GLUE 80.4 on dev (mean of eight tasks), as published.
#
#     OPENWEBTEXT=openwebtext.tar.xz VOCAB=vocab.txt GLUE=glue recipes/small_owt.sh
#
# Training takes 4 days on one V100, according to the paper. OpenWebText is 12 GB compressed; the shards are about the same size.
# OpenWebText is at https://skylion007.github.io/OpenWebTextCorpus/; VOCAB is the vocab.txt of google-research/electra or of
# bert-base-uncased. STYLE=official follows the official code where our defaults differ (docs/choices.md).
#
# If it is stopped or killed, the same command resumes. --dry-run prints and checks every command without running any.

source "$(dirname "$0")/run.sh"

OPENWEBTEXT=${OPENWEBTEXT:-openwebtext.tar.xz} # as downloaded, or unpacked
VOCAB=${VOCAB:-vocab.txt}
GLUE=${GLUE:-glue}                             # electra glue --download glue
OUT=${OUT:-small-owt}                          # everything is written here
STYLE=${STYLE:-ours}                           # ours | official
STEPS=${STEPS:-1000000}                        # the paper's shorter trainings: 62500 125000 250000 500000
GPUS=${GPUS:-1}                                # the batch is divided among them
SEEDS=${SEEDS:-5}                              # runs per GLUE task; the score is their median

rows=() objective=() tuning=paper
if [ "$STYLE" = official ]; then
    rows=(--rows official) objective=(--objective.official) tuning=official
fi

run electra prepare "$OPENWEBTEXT" --tokenizer "$VOCAB" --length 128 "${rows[@]}" --out "$OUT/shards"
doctor "$OUT/shards"
pretrain "$OUT/run" electra_small --data "$OUT/shards" --steps "$STEPS" --keep-at 6.25% 12.5% 25% 50% 100% "${objective[@]}"
doctor "$OUT/run"
score "$OUT/run" "$OUT/hf" --preset "$tuning" --seeds "$SEEDS"
run electra report "$OUT/run" --out "$OUT/report.html"
