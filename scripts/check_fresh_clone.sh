#!/usr/bin/env bash
# Clone the committed state into an empty directory, run `make demo` there, and say how long it took.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: check_fresh_clone.sh [--keep] [TARGET ...]

Clones HEAD of this repository into an empty directory and runs make TARGET there (default: demo),
each with its time. Uncommitted changes do not take part.

Options:
  --keep      leave the directory for a look
  -h, --help  this text
TEXT
}

keep=false
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --keep) keep=true; shift ;;
    -*) echo "check_fresh_clone.sh: unknown option $1" >&2; exit 2 ;;
    *) break ;;
  esac
done
(($#)) || set -- demo

repository=$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)
folder=$(mktemp -d)
if $keep; then
  echo "Cloning into $folder"
else
  trap 'rm -rf "$folder"' EXIT
fi
git clone --quiet --no-hardlinks "$repository" "$folder/drumline"
git -C "$folder/drumline" checkout --quiet --detach "$(git -C "$repository" rev-parse HEAD)"
# An active environment of this shell must not stand in for what the clone installs.
unset PYTHONPATH VIRTUAL_ENV
for target in "$@"; do
  began=$SECONDS
  make -C "$folder/drumline" --no-print-directory "$target"
  echo "make $target: $((SECONDS - began)) s in a fresh clone of $(git -C "$repository" rev-parse --short HEAD)"
done
