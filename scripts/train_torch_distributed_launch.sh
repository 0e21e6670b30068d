#!/usr/bin/env bash
# Train on one machine with `python -m torch.distributed.launch`, for old job scripts. Torch calls
# that module deprecated (it is still there in 2.13) and it says so at each start: in anything new
# use train_torchrun.sh, or `drumline train` alone.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: train_torch_distributed_launch.sh [OPTIONS] CONFIG [KEY=VALUE ...]

Runs `drumline train CONFIG KEY=VALUE ...` in every process that torch.distributed.launch starts.
The module is deprecated in favour of torchrun: see train_torchrun.sh.

Options:
  -n, --processes N   processes on this machine (default: one per GPU, or 2 without GPUs)
  -p, --port PORT     port of the rendezvous (default: a free one)
  -h, --help          this text

Environment: PYTHON names the interpreter (default python).
TEXT
}

fail() {
  echo "train_torch_distributed_launch.sh: $1" >&2
  echo "Try: train_torch_distributed_launch.sh --help" >&2
  exit 2
}

python=${PYTHON:-python}
processes=
port=
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    -n | --processes) processes=${2:-}; shift 2 || fail "$1 needs a value" ;;
    -p | --port) port=${2:-}; shift 2 || fail "$1 needs a value" ;;
    --) shift; break ;;
    -*) fail "unknown option $1" ;;
    *) break ;;
  esac
done
processes=${processes:-$("$python" -c 'import torch; print(torch.cuda.device_count() or 2)')}
port=${port:-$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
[[ $processes =~ ^[1-9][0-9]*$ ]] || fail "--processes is '$processes': give a number"
[[ $port =~ ^[1-9][0-9]*$ ]] || fail "--port is '$port': give a number"
(($#)) || fail "no config was given"
[[ -f $1 ]] || fail "there is no file $1"

# --use-env: without it the module appends --local-rank=N to the command, which is not an option
# of drumline; ranks are read from the environment.
exec "$python" -m torch.distributed.launch --use-env --nproc-per-node "$processes" \
  --master-addr 127.0.0.1 --master-port "$port" -m drumline train "$@"
