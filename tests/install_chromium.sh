#!/bin/sh
# Installs the Chromium that the report's browser tests need, from Debian's packages; does nothing where one is there.
set -eu
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
command -v apt-get >/dev/null || { echo "the browser tests need Chromium; install it with this machine's package manager" >&2; exit 4; }
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "as root: apt-get install chromium" >&2; exit 4; }
    as_root="sudo"
fi
$as_root apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
