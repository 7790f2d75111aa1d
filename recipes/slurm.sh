#!/bin/bash
# A run that may take longer than the cluster's time limit: two minutes before the limit it gets a signal, saves, and is queued again.
#
#     sbatch recipes/slurm.sh runs/mine electra_small --data shards/mine
#
# The arguments are a folder for the run, a preset, and settings as for `electra pretrain`. To print and check the command without running it:
#
#     recipes/slurm.sh --dry-run runs/mine electra_small --data shards/mine
#
#SBATCH --job-name=electra
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

set -uo pipefail

if [ "${1:-}" = --dry-run ]; then # run directly, not by sbatch
    source "$(dirname "$0")/run.sh"
    shift
    [ $# -gt 0 ] || set -- runs/mine electra_small --data shards/mine
    GPUS=${SLURM_GPUS_ON_NODE:-8}
    pretrain "$@"
    exit 0
fi

run=${1:?"name a folder for the run, a preset and its settings: sbatch $0 runs/mine electra_small --data shards/mine"}
shift
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # without it, a restart after a killed worker may hang
started=$(mktemp)

is_asked= is_complete=
trap 'is_asked=1; was_told=1; kill -USR1 $training' USR1

torchrun --standalone --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts 3 \
    --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGUSR1,SIGUSR2,SIGXCPU --shutdown-timeout 100 \
    -m -- electrakit pretrain "$@" --run "$run" &
training=$!

was_told=1
while [ -n "$was_told" ]; do
    was_told=
    wait $training # also returns when this script gets a signal; the training is then still saving
    code=$?
done

# Only a status written by this job counts. Without one, the job ended before the run was opened.
status=$run/status.json
if [ "$status" -nt "$started" ] && grep -q '"is_complete": true' "$status"; then
    is_complete=1
fi
rm "$started"
if [ -n "$is_asked" ] && [ -z "$is_complete" ]; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit $code
