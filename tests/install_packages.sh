#!/bin/sh
# Installs what the tests need from Debian's packages: Chromium for the report's page, and a compiler with Python's headers and those of
# libaio, with which DeepSpeed builds its CPU Adam and its reads and writes of NVMe. Does nothing where all is there.
set -eu
missing=""
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing="chromium"
command -v g++ >/dev/null || missing="$missing g++"
headers=$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -e "$headers/Python.h" ] || missing="$missing python3-dev"
[ -e /usr/include/libaio.h ] || missing="$missing libaio-dev"
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || { echo "the tests need $missing; install them with this machine's package manager" >&2; exit 4; }
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "as root: apt-get install $missing" >&2; exit 4; }
    as_root="sudo"
fi
$as_root apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
