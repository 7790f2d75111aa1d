#!/bin/bash
# The ablations of the paper (Clark et al. 2020, sections 3.2 to 3.4), at the size of ELECTRA-Small:
#
#   electra            ELECTRA-Small
#   electra-15         the discriminator is scored at the masked positions only
#   replace-mlm        a masked language model that sees the generator's samples instead of [MASK]
#   all-tokens-mlm     like replace-mlm, but every token is predicted
#   bert               a masked language model with ELECTRA-Small's network and compute
#   share-nothing      generator and discriminator share no weights
#   share-encoder      they share all weights, so the generator is as large as the discriminator
#   uniform            replacements are drawn uniformly, without a generator
#   generator-half     a generator with half of the discriminator's width instead of a quarter
#   two-stage          half of the steps for the generator alone, half for a discriminator that starts from it (appendix F: worse)
#   adversarial        a generator that is trained to deceive, by REINFORCE (appendix F: worse)
#
# The paper reports the first five at the size of Base: GLUE 85.0, 82.4, 82.4, 84.3 and 82.2. Each ablation
# is a separate training of STEPS steps, by default 62,500 (the paper's "6.25 %", 6 hours on a V100).
#
#     OPENWEBTEXT=openwebtext.tar.xz VOCAB=vocab.txt GLUE=glue recipes/ablations.sh
#     ABLATIONS="electra electra-15" STEPS=1000000 recipes/ablations.sh
#
# If it is stopped or killed, the same command resumes. --dry-run prints and checks every command without running any.

source "$(dirname "$0")/run.sh"

OPENWEBTEXT=${OPENWEBTEXT:-openwebtext.tar.xz} # or any corpus
VOCAB=${VOCAB:-vocab.txt}
GLUE=${GLUE:-glue}                             # electra glue --download glue
OUT=${OUT:-ablations}                          # everything is written here
ABLATIONS=${ABLATIONS:-electra electra-15 replace-mlm all-tokens-mlm bert share-nothing share-encoder uniform generator-half two-stage adversarial}
STEPS=${STEPS:-62500}
GPUS=${GPUS:-1}
SEEDS=${SEEDS:-5}                              # runs per GLUE task

declare -A settings=(
    [electra]="electra_small"
    [electra-15]="electra_15"
    [replace-mlm]="replace_mlm"
    [all-tokens-mlm]="all_tokens_mlm"
    [bert]="mlm_small"
    [share-nothing]="electra_small --share nothing"
    [share-encoder]="electra_small --share encoder --generator.hidden-size 256 --generator.ffn-size 1024 --generator.num-heads 4"
    [two-stage]="electra_small --share nothing --objective.generator-steps $((STEPS / 2)) --generator.hidden-size 256 --generator.ffn-size 1024 --generator.num-heads 4"
    [adversarial]="electra_small --share nothing --objective.adversarial --optim.decoupled"
    [uniform]="electra_small --generator none"
    [generator-half]="electra_small --generator.hidden-size 128 --generator.ffn-size 512 --generator.num-heads 2"
)

run electra prepare "$OPENWEBTEXT" --tokenizer "$VOCAB" --length 128 --out "$OUT/shards"
doctor "$OUT/shards"

runs=()
for name in $ABLATIONS; do
    read -ra own <<<"${settings[$name]:?"there is no ablation $name; there are ${!settings[*]}"}"
    folder=$OUT/$name
    num_steps=$STEPS
    [ "$name" != bert ] || num_steps=$((STEPS * 145 / 100)) # the same compute: a step without a generator costs less
    pretrain "$folder" "${own[@]}" --data "$OUT/shards" --steps "$num_steps"
    score "$folder" "$OUT/hf/$name" --seeds "$SEEDS"
    runs+=("$folder")
done

run electra report "${runs[@]}" --out "$OUT/report.html"
