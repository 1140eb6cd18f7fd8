#!/bin/bash -p
# For schedulers other than Slurm (PBS prologue, LSF pre_exec, HTCondor, a node agent): keeps jobs off
# a node that is not ready, and calls a program of yours. Root must own the copy. See docs/reference/prolog.md.
#
# Exit 0: start the job. Exit $KEEP_AWAY: the node is not ready. There is no other exit code: if
# preflight cannot check the node, is damaged, missing or late, the job starts, and the log says so.

# Settings. They are in this file because the job's user may control the environment.
PREFLIGHT=/opt/preflight/bin/preflight
VERB=prolog         # or healthcheck: all GPUs, more time
# The script ends preflight after LIMIT_S. preflight ends by itself after budget_s (8 s), which must be
# at least a second less, or is refused. For healthcheck (healthcheck_budget_s, 30 s) write 40 here.
LIMIT_S=20
KEEP_AWAY=1         # the exit code that your scheduler reads as "not on this node"
# If this file is executable, it is called as: ON_UNHEALTHY drain|hold NODE <DOCUMENT
# drain: this node's own hardware is at fault. hold: something else would make the job fail.
ON_UNHEALTHY=/etc/preflight/on-unhealthy

# Sets the exit code however this shell ends, also if it cannot fork or open a file.
answer=0
trap 'exit $answer' EXIT
shopt -s execfail
# The job's user may have set variables from which Python, the loader or OpenSSL load code, or shell
# functions (-p already ignores these): start again without them.
case ${1-} in
--clean) ;;
*)
    exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/bash -p "$0" --clean
    exit
    ;;
esac

# A log daemon that hangs must not delay the job. If no process can be started, bash tries to fork for
# 15 s, so the script forks as rarely as possible.
note() {
    [ "$SECONDS" -lt $((LIMIT_S + 2)) ] || return
    timeout -s KILL 0.5 logger -t preflight -p daemon.err -- "$1" 2>/dev/null ||
        echo "preflight: $1" >&2
}

# In the place of closed standard streams, bash and preflight would open other files.
: 2>/dev/null <&0 || exec </dev/null
: 2>/dev/null >&1 || exec >/dev/null
: >&2 || exec 2>/dev/null
found=$(exec timeout -k 1 "$LIMIT_S" "$PREFLIGHT" "$VERB" --plain --json --limit="$LIMIT_S" </dev/null)
status=$?

case $status in
0) # Where bash can open no pipe, preflight did not run, and $status is 0 all the same.
    [ -n "$found" ] || note "$PREFLIGHT gave no answer; this node was not checked"
    exit
    ;;
1) ;;
2) exit ;; # preflight has logged the reason
124 | 137) note "$VERB was not done within $LIMIT_S s; this node was not checked"; exit ;;
*) note "$PREFLIGHT cannot be run (exit $status); this node was not checked"; exit ;;
esac

# Python also exits 1 if it cannot load a program. Only a verdict comes with a document.
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
