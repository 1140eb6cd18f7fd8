#!/bin/sh
# Reserves nodes from 01:00 to 06:00 every night, so that preflight disturbs no job.
# Run once, as a Slurm operator. See docs/how-to/nightly.md.
#
#   sh reservation.sh gpu[001-064]
#   preflight nightly --inventory=fleet.toml --reservation=preflight
set -eu

nodes=${1:?give the nodes, as in: sh reservation.sh gpu[001-064]}

exec scontrol create reservation ReservationName=preflight Users=root \
    StartTime=01:00:00 Duration=05:00:00 Flags=DAILY,IGNORE_JOBS Nodes="$nodes"
