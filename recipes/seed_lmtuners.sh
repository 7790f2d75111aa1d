#!/bin/bash
# The models that lmtuners (https://github.com/shoarora/lmtuners) trained with transformers' BERT classes:
#
#   bert-small               its baseline: the discriminator's network as a masked language model
#   electra-small-owt        two BERTs, embedding size = hidden size (256), LAMB at 2e-3, 500,000 steps of 512 rows; 17 M parameters
#   albert-generator         its first attempt: an ALBERT generator, on Wikipedia and Gutenberg
#
# Published scores of electra-small-owt on GLUE dev: CoLA 56.3, SST 88.4, MRPC 75.0, STS 86.1, QQP 89.1, MNLI 77.9, QNLI 83.0, RTE 67.1;
# none for the others. Each sees about twice the tokens of ELECTRA-Small, whose training takes 4 days on one V100.
# A row is two samples of 64 tokens. In GLUE, RTE and STS-B start from MNLI, RTE uses 2e-5, and the median of five runs counts.
#
#     OPENWEBTEXT=openwebtext.tar.xz VOCAB=vocab.txt GLUE=glue recipes/seed_lmtuners.sh
#
# OpenWebText is at https://skylion007.github.io/OpenWebTextCorpus/, the dump at
# https://dumps.wikimedia.org/enwiki/latest/enwiki-latest-pages-articles.xml.bz2, the books at
# https://web.eecs.umich.edu/~lahiri/gutenberg_dataset.html. All are read as downloaded.
#
# If it is stopped or killed, the same command resumes. --dry-run prints and checks every command without running any.

source "$(dirname "$0")/run.sh"

OPENWEBTEXT=${OPENWEBTEXT:-openwebtext.tar.xz}
WIKIPEDIA=${WIKIPEDIA:-enwiki-latest-pages-articles.xml.bz2} # a dump, or WikiExtractor's output
GUTENBERG=${GUTENBERG:-Gutenberg.zip}
VOCAB=${VOCAB:-vocab.txt} # of bert-base-uncased
GLUE=${GLUE:-glue}        # electra glue --download glue
OUT=${OUT:-lmtuners}      # everything is written here
MODELS=${MODELS:-bert-small electra-small-owt albert-generator}
GPUS=${GPUS:-1}
SEEDS=${SEEDS:-5}

train() { # NAME SHARDS PRESET ...
    local name=$1 shards=$2
    shift 2
    [[ " $MODELS " == *" $name "* ]] || return 0
    pretrain "$OUT/$name" "$@" --data "$shards"
    score "$OUT/$name" "$OUT/hf/$name" --preset lmtuners --seeds "$SEEDS"
    runs+=("$OUT/$name")
}

for name in $MODELS; do
    [[ " bert-small electra-small-owt albert-generator " == *" $name "* ]] || { echo "there is no model $name; see --help" >&2 && exit 2; }
done

runs=()
if [[ "$MODELS" == *small* ]]; then
    run electra prepare "$OPENWEBTEXT" --tokenizer "$VOCAB" --length 128 --rows crude --valid 0.01 --test 0.01 --out "$OUT/shards-owt"
    doctor "$OUT/shards-owt"
fi
if [[ "$MODELS" == *albert-generator* ]]; then
    run electra prepare "$WIKIPEDIA" "$GUTENBERG" --tokenizer "$VOCAB" --length 128 --out "$OUT/shards-wiki-books"
    doctor "$OUT/shards-wiki-books"
fi

train bert-small "$OUT/shards-owt" electra_small_owt --generator none --objective.kind mlm
train electra-small-owt "$OUT/shards-owt" electra_small_owt
train albert-generator "$OUT/shards-wiki-books" electra_albert_generator

run electra report "${runs[@]}" --out "$OUT/report.html"
