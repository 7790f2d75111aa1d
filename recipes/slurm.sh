#!/bin/bash
# A run that may take longer than the cluster allows: it is told two minutes before its time is up, saves, and is queued again.
#
#     sbatch recipes/slurm.sh electra_small --data shards/mine --run runs/mine
#
#SBATCH --job-name=electra
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # without it, a restart after a killed worker may hang

torchrun --standalone --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts 3 --signals-to-handle SIGTERM,SIGINT,SIGUSR1 \
    -m -- electrakit pretrain "$@" &
training=$!

is_asked=
trap 'is_asked=1; kill -USR1 $training' USR1
wait $training
code=$?
if [ -n "$is_asked" ]; then
    wait $training # the first wait ended with the signal, not with the training
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit $code
