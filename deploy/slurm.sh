#!/bin/bash
# Trains on the first node of a Slurm job, and samples on each of the others:
#
#   RUN=/shared/runs/mine sbatch --nodes=3 --gpus-per-node=8 deploy/slurm.sh CONFIG --mesh.fsdp 8
#
# RUN, CONFIG, the model and the Python environment (.venv here) are on a disk that all nodes share.
#SBATCH --job-name=grre
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
# `ray stop` at the end stops every Ray of this user on the node, and the port below is one a node.
#SBATCH --exclusive
# SIGTERM five minutes before the time limit, to this script alone (B:): Slurm would send it to Ray's
# own processes too, and the learner could no longer save.
#SBATCH --signal=B:TERM@300 --requeue --open-mode=append
set -u
export PATH=$PWD/.venv/bin:$PATH
export RUN=${RUN:-$PWD/runs/${SLURM_JOB_NAME:-grre}}
# The head's address as the other nodes see it. A name that is 127.0.1.1 on the head itself (Debian's
# /etc/hosts) will not do: set HEAD to the address.
HEAD=${HEAD:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
export HEAD GPUS=${SLURM_GPUS_ON_NODE:-0}
export EXPLORERS=$((SLURM_JOB_NUM_NODES - 1))
# Ray waits 30 seconds for the other nodes if nothing is said; a shared disk that is read by many is slower.
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
export RAY_USAGE_STATS_ENABLED=0
# Without a token everyone who reaches the port may run programs. Ray takes one of ~/.ray on the head
# alone, and then refuses the other nodes: one for this job, which srun hands to all.
RAY_AUTH_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
resume=$([ -e "$RUN/config.json" ] && echo --resume)

# Runs on every node. symmetric-run starts Ray, runs `grre train` on the head, and stops Ray.
#   --num-gpus, --resources: the learner is the process on the head, and has its GPUs without asking
#     Ray; an explorer asks for the resource that every other node has once.
#   --num-processes 1: else JAX takes Slurm's tasks for the processes of one learner.
node='
explorer=$((SLURM_NODEID > 0))
exec ray symmetric-run --address "$HEAD:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-gpus $((explorer * GPUS)) --resources "{\"explorer\": $explorer}" -- \
  grre train "$@" --run-dir "$RUN" --num-processes 1 --cluster.address auto \
  --cluster.explorers.most "$EXPLORERS" --cluster.explorers.accelerators "$GPUS" \
  --cluster.explorers.resources "{\"explorer\": 1}"
'
# The script is on the head too: `grre` is the learner, which saves a checkpoint and ends.
stopped=
trap 'stopped=1; pkill -TERM --exact --euid "$EUID" grre' TERM
srun --kill-on-bad-exit=1 bash -c "$node" grre "$@" $resume &
wait $!
status=$?
# The trap ends `wait`, not srun.
while kill -0 $! 2> /dev/null; do wait $!; status=$?; done
# Not by the status 143: srun has it also when it ended the head since another node failed.
[ -n "$stopped" ] && scontrol requeue "$SLURM_JOB_ID"
exit $status
