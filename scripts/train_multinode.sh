#!/usr/bin/env bash
# Train on several machines with torchrun's rendezvous. Start the same command on each of them.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: train_multinode.sh --nodes N --rendezvous HOST:PORT [OPTIONS] CONFIG [KEY=VALUE ...]

Start the same command on every machine. HOST is one of them, PORT a free port there that the
others can reach. CONFIG, its data and the run directory must be at the same path on all of them
(a shared file system).

Options:
      --nodes N             machines that take part
      --rendezvous HOST:PORT  where they meet
      --id NAME             name of the job, if several share a rendezvous (default drumline)
      --address ADDRESS     address of this machine for the others, if its host name is none
  -n, --processes N         processes on this machine (default auto: one per GPU, or per core)
  -r, --restarts N          how often all ranks are started again after a failure (default 3)
  -h, --help                this text

Environment: PYTHON names the interpreter (default python). NCCL_SOCKET_IFNAME or
GLOO_SOCKET_IFNAME names the network interface, where a machine has several.

Example, on both of two machines:
  train_multinode.sh --nodes 2 --rendezvous gpu01:29400 sae.yaml run_dir=/shared/runs/sae
TEXT
}

fail() {
  echo "train_multinode.sh: $1" >&2
  echo "Try: train_multinode.sh --help" >&2
  exit 2
}

nodes=
rendezvous=
id=drumline
address=()
processes=auto
restarts=3
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --nodes) nodes=${2:-}; shift 2 || fail "$1 needs a value" ;;
    --rendezvous) rendezvous=${2:-}; shift 2 || fail "$1 needs a value" ;;
    --id) id=${2:-}; shift 2 || fail "$1 needs a value" ;;
    --address) address=(--local-addr "${2:-}"); shift 2 || fail "$1 needs a value" ;;
    -n | --processes) processes=${2:-}; shift 2 || fail "$1 needs a value" ;;
    -r | --restarts) restarts=${2:-}; shift 2 || fail "$1 needs a value" ;;
    --) shift; break ;;
    -*) fail "unknown option $1" ;;
    *) break ;;
  esac
done
[[ $nodes =~ ^[1-9][0-9]*$ ]] || fail "--nodes is '$nodes': give the number of machines"
[[ $rendezvous =~ ^.+:[0-9]+$ ]] || fail "--rendezvous is '$rendezvous': give HOST:PORT"
[[ $processes =~ ^(auto|gpu|cpu|[1-9][0-9]*)$ ]] || fail "--processes is '$processes': give a number, auto, gpu or cpu"
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts is '$restarts': give a number"
(($#)) || fail "no config was given"
[[ -f $1 ]] || fail "there is no file $1"

exec "${PYTHON:-python}" -m torch.distributed.run \
  --nnodes "$nodes" --rdzv-backend c10d --rdzv-endpoint "$rendezvous" --rdzv-id "$id" \
  "${address[@]}" --nproc-per-node "$processes" --max-restarts "$restarts" \
  -m drumline train "$@"
