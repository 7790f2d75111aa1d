#!/bin/bash
# A run that may take longer than the cluster allows: it is told two minutes before its time is up, saves, and is queued again.
#
#     sbatch recipes/slurm.sh runs/mine electra_small --data shards/mine
#
#SBATCH --job-name=electra
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

run=$1
shift
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # without it, a restart after a killed worker may hang

torchrun --standalone --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts 3 \
    --signals-to-handle SIGTERM,SIGINT,SIGUSR1 --shutdown-timeout 100 \
    -m -- electrakit pretrain "$@" --run "$run" &
training=$!

is_asked=
trap 'is_asked=1; kill -USR1 $training' USR1
while kill -0 $training 2>/dev/null; do
    wait $training # ends with a signal to us, too: then the training is still saving
    code=$?
done

if [ -n "$is_asked" ] && grep -q '"is_complete": false' "$run/status.json"; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit $code
