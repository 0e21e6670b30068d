#!/usr/bin/env bash
# Train on one machine with torchrun. `drumline train` needs no launcher; this is for those whose
# tools expect torchrun.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: train_torchrun.sh [OPTIONS] CONFIG [KEY=VALUE ...]

Runs `drumline train CONFIG KEY=VALUE ...` in every process that torchrun starts.

Options:
  -n, --processes N   processes; auto (one per GPU, or per core without GPUs) by default
  -r, --restarts N    how often torchrun starts all ranks again after a failure (default 3)
  -h, --help          this text

Environment: PYTHON names the interpreter (default python).
TEXT
}

fail() {
  echo "train_torchrun.sh: $1" >&2
  echo "Try: train_torchrun.sh --help" >&2
  exit 2
}

processes=auto
restarts=3
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    -n | --processes) processes=${2:-}; shift 2 || fail "$1 needs a value" ;;
    -r | --restarts) restarts=${2:-}; shift 2 || fail "$1 needs a value" ;;
    --) shift; break ;;
    -*) fail "unknown option $1" ;;
    *) break ;;
  esac
done
[[ $processes =~ ^(auto|gpu|cpu|[1-9][0-9]*)$ ]] || fail "--processes is '$processes': give a number, auto, gpu or cpu"
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts is '$restarts': give a number"
(($#)) || fail "no config was given"
[[ -f $1 ]] || fail "there is no file $1"

exec "${PYTHON:-python}" -m torch.distributed.run --standalone \
  --nproc-per-node "$processes" --max-restarts "$restarts" -m drumline train "$@"
