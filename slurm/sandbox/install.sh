#!/bin/sh
# Installs what the sandbox needs from Debian's or Ubuntu's packages; does nothing where it is all there.
set -eu
missing=""
for pair in slurmctld:slurm-wlm slurmd:slurm-wlm sinfo:slurm-wlm slurmdbd:slurmdbd munged:munge mariadbd:mariadb-server; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || { echo "the sandbox needs$missing; install them with this machine's package manager" >&2; exit 4; }
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "as root: apt-get install$missing" >&2; exit 4; }
    as_root="sudo"
fi
$as_root apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
