#!/bin/bash
# A Ray cluster on the nodes of a Slurm job, and one command on it:  sbatch recipes/ray/slurm.sh
# prism-prm[ray] must be installed on every node, e.g. in an environment on the shared file system.
#SBATCH --job-name=prism-score
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | cut -d ' ' -f 1):6379

srun --nodes=1 --ntasks=1 -w "$head" \
  ray start --head --port 6379 --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "$SLURM_GPUS_ON_NODE" --block &
sleep 20
srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude "$head" \
  ray start --address "$address" --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "$SLURM_GPUS_ON_NODE" --block &
sleep 20

# The driver runs on the head node. A requeued job runs the same command and resumes.
unset PMI_SIZE OMPI_COMM_WORLD_SIZE
prism score solutions.jsonl --prm prms/my-prm --out scores.parquet --ray "$address" -R workers=32 -R gpus_per_worker=1
