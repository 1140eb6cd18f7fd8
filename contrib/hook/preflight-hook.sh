#!/bin/bash -p
# For schedulers other than Slurm (PBS prologue, LSF pre_exec, HTCondor, a node agent): keeps a job
# from an unhealthy node, and tells a program of yours about it. Copy it, root-owned; docs/prolog.md.
#
# Exit 0: start the job. Exit $KEEP_AWAY: the node is unhealthy. Nothing else: where preflight could
# not judge, is damaged, missing or late, the job starts, and the log says so.

# Settings. They stand here because a job's environment may be its user's.
PREFLIGHT=/opt/preflight/bin/preflight
VERB=prolog         # or healthcheck: all GPUs, more time
# It is ended after these. It ends by itself after budget_s, 8 s (healthcheck_budget_s, 30 s: then
# write 40 here), which must be a second less than this, or is refused.
LIMIT_S=20
KEEP_AWAY=1         # what your scheduler takes for "not on this node"
# Run, where it is there and executable, as: ON_UNHEALTHY drain|hold NODE <DOCUMENT
# drain: this node's own hardware is at fault. hold: something else that a job would fail on.
ON_UNHEALTHY=/etc/preflight/on-unhealthy

# However this shell ends, also where it cannot fork or open a file.
answer=0
trap 'exit $answer' EXIT
shopt -s execfail
# A job's user may have set what Python, the loader or OpenSSL take code from (functions, too, which
# -p does not take): begin again without.
case ${1-} in
--clean) ;;
*)
    exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/bash -p "$0" --clean
    exit
    ;;
esac

# A log daemon that stands still must not keep a job waiting. Where all processes are taken, bash tries
# for 15 s to fork: so it forks no more often than it must.
note() {
    [ "$SECONDS" -lt $((LIMIT_S + 2)) ] || return
    timeout -s KILL 0.5 logger -t preflight -p daemon.err -- "$1" 2>/dev/null ||
        echo "preflight: $1" >&2
}

found=$(exec timeout -k 1 "$LIMIT_S" "$PREFLIGHT" "$VERB" --plain --json --limit="$LIMIT_S" </dev/null)
status=$?

case $status in
0) exit ;;
1) ;;
2) exit ;; # it has logged why
124 | 137) note "$VERB was not done within $LIMIT_S s; this node was not checked"; exit ;;
*) note "$PREFLIGHT cannot be run (exit $status); this node was not checked"; exit ;;
esac

# Python, too, exits 1 where it cannot even load a program: a verdict comes with its document.
end='
}'
case $found in
'{'*'"findings"'*"$end") ;;
*) note "$PREFLIGHT is damaged: it exits 1 without a document; this node was not checked"; exit ;;
esac

case $found in
*'"drains": true'*) what=drain ;;
*) what=hold ;;
esac

if [ -x "$ON_UNHEALTHY" ]; then
    printf '%s\n' "$found" | timeout -k 1 10 "$ON_UNHEALTHY" "$what" "$(uname -n)" ||
        note "$ON_UNHEALTHY $what failed"
fi
answer=$KEEP_AWAY
