#!/bin/sh
# Debian packages that the lab needs. As root they are installed when missing; without root the
# lab's tests are skipped, and the demo runs its fleet as local processes.
set -eu
missing=""
for pair in /usr/sbin/sshd:openssh-server /usr/bin/ssh:openssh-client /sbin/ip:iproute2 \
    /usr/sbin/nft:nftables /sbin/ethtool:ethtool /usr/bin/gcc:gcc /usr/include/stdio.h:libc6-dev \
    /usr/sbin/munged:munge /usr/sbin/slurmd:slurmd /usr/sbin/slurmctld:slurmctld \
    /usr/bin/srun:slurm-client /usr/bin/ansible-inventory:ansible-core /usr/bin/chromium:chromium; do
    [ -e "${pair%%:*}" ] || missing="$missing ${pair##*:}"
done
"${PYTHON:-python3.11}" -c 'import ensurepip' 2>/dev/null || missing="$missing python3.11-venv"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "the lab needs$missing: install them as root to run all of it" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# The lab starts its own daemons; Debian's would run on this machine, beside them and for good.
refusal=/usr/sbin/policy-rc.d
if [ ! -e "$refusal" ]; then
    trap 'rm -f "$refusal"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$refusal"
    chmod +x "$refusal"
fi
apt-get update -qq
# shellcheck disable=SC2086  # a list of package names
apt-get install -y -qq --no-install-recommends $missing >/dev/null
