#!/bin/bash
# Requeues this job without the given nodes, at most MOST times: requeue.sh 'h[1-2]'
# Call it from the batch script of a job that was submitted with --requeue; see train.sbatch.

MOST=${PREFLIGHT_MOST_REQUEUES:-3}
bad=$1

if [ -z "$bad" ]; then
    echo "requeue: no node to leave out; look at the report" >&2
    exit 1
fi
if [ "${SLURM_RESTART_COUNT:-0}" -ge "$MOST" ]; then
    echo "requeue: tried $((MOST + 1)) times, last without $bad; look at the reports" >&2
    exit 1
fi
number=$(scontrol show hostnames "$bad" | wc -l)
if [ "$number" -ge "$SLURM_JOB_NUM_NODES" ] && [ "$number" -gt 2 ]; then
    echo "requeue: all $number nodes are bad at once: look for what they share first" >&2
    exit 1
fi
# Keep the nodes excluded that earlier attempts have excluded.
before=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/.*ExcNodeList=\([^ ]*\).*/\1/p')
[ "$before" = "(null)" ] && before=
all=${before:+$before,}$bad

# Slurm ends this script soon after the job is requeued, and the excluded nodes of a job can only be
# changed while it waits. So hold it, change it and release it within the seconds of KillWait.
trap '' TERM
scontrol requeuehold "$SLURM_JOB_ID" || exit 1
for _ in 1 2 3 4 5 6 7 8 9 10; do
    scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$all" 2>/dev/null && excluded=yes && break
    sleep 0.5
done
if [ -z "$excluded" ]; then
    echo "requeue: job $SLURM_JOB_ID is held: scontrol could not exclude $all from it" >&2
    exit 1
fi
scontrol release "$SLURM_JOB_ID"
echo "requeue: job $SLURM_JOB_ID waits for other nodes than $all" >&2
exit 1
