#!/bin/bash
# ALECTRA-Small of lmtuners (https://github.com/shoarora/lmtuners): ALBERT trained like ELECTRA, about 4 M parameters, in three variants:
#
#   albert       ALBERT as generator and discriminator, embeddings shared: the variant that it reports
#   bert         a BERT generator, which "didn't perform"
#   encoder      one ALBERT encoder for both, which hurt
#
# Published scores of the first on GLUE dev: CoLA 50.6, SST 89.1, MRPC 86.3, STS 87.2, QQP 89.1, MNLI 78.2, QNLI 85.9, RTE 69.6. The settings of
# its fine-tuning came from a search and were not published, so this recipe repeats the search (pip install 'electrakit[search]'). RTE and
# STS-B are searched from an MNLI run, because electra glue starts them from one.
# It found the generator sensitive to initialisation: try SEED_OF_RUN=1, 2 and so on, each with another OUT.
# Each training is 500,000 steps of 512 rows: days on one GPU.
#
#     OPENWEBTEXT=openwebtext.tar.xz VOCAB=vocab.txt GLUE=glue recipes/alectra.sh
#
# If it is stopped or killed, the same command resumes. --dry-run prints and checks every command without running any.

source "$(dirname "$0")/run.sh"

OPENWEBTEXT=${OPENWEBTEXT:-openwebtext.tar.xz}
VOCAB=${VOCAB:-vocab.txt} # of bert-base-uncased
GLUE=${GLUE:-glue}        # electra glue --download glue
OUT=${OUT:-alectra}       # everything is written here
VARIANTS=${VARIANTS:-albert bert encoder}
SEED_OF_RUN=${SEED_OF_RUN:-0}
GPUS=${GPUS:-1}
SEEDS=${SEEDS:-5}
TRIALS=${TRIALS:-20} # trials of the search per task; 0: no search, lmtuners' settings
SEEDS_OF_TRIAL=${SEEDS_OF_TRIAL:-3}
TASKS=${TASKS:-cola sst2 mrpc stsb qqp mnli qnli rte}

search() { # MODEL TASK; ALBERT's layers share their weights, so there is no layer decay to search
    run electra search "$1" --task "$2" --data "$GLUE" --trials "$TRIALS" --seeds "$SEEDS_OF_TRIAL" --layer-decay 1 --out "$folder/search/$2"
}

declare -A settings=([albert]="--generator albert" [bert]="--generator bert" [encoder]="--share encoder")

run electra prepare "$OPENWEBTEXT" --tokenizer "$VOCAB" --length 128 --rows crude --valid 0.01 --test 0.01 --out "$OUT/shards"
doctor "$OUT/shards"

runs=()
for variant in $VARIANTS; do
    read -ra own <<<"${settings[$variant]:?"there is no variant $variant; there are ${!settings[*]}"}"
    folder=$OUT/$variant
    pretrain "$folder" alectra_small "${own[@]}" --data "$OUT/shards" --seed "$SEED_OF_RUN"
    tuning=lmtuners
    if [ "$TRIALS" != 0 ]; then
        begin=$OUT/hf/$variant later=()
        run electra export "$folder" --out "$begin"
        for task in $TASKS; do
            case $task in
                stsb | rte) later+=("$task") ;;
                *) search "$begin" "$task" ;;
            esac
        done
        if [[ " $TASKS " == *" mnli "* ]]; then
            run electra finetune "$begin" --task mnli --data "$GLUE" --preset "$folder/search/mnli" --out "$folder/mnli"
            begin=$folder/mnli/model
        fi
        for task in "${later[@]}"; do search "$begin" "$task"; done
        tuning=$folder/search
    fi
    score "$folder" "$OUT/hf/$variant" --preset "$tuning" --seeds "$SEEDS"
    runs+=("$folder")
done

run electra report "${runs[@]}" --out "$OUT/report.html"
