"""`drumline check` under torchrun on two nodes, which here are two agents on one machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_two_nodes_are_checked_together_and_told_once(tmp_path: Path) -> None:
    port = free_port()
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # two nodes cannot share one GPU
    nodes = []
    for node in range(2):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--nproc-per-node", "1", "--node-rank", str(node)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        command += ["-m", "drumline", "check", "--quick", "--json"]
        nodes.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told[0][1] + told[1][1]
    assert told[1][0] == ""
    report = json.loads(told[0][0])
    found = {finding["name"]: finding for finding in report["findings"]}
    assert found["clock skew"]["status"] == "pass"
    assert found["all-reduce, 2 ranks"]["value"]["wrong_elements"] == 0
    assert set(found["matmul fp32"]["value"]) == {"rank 0", "rank 1"}
    disks = [name for name in found if name.endswith(": disk")]
    assert disks == [f"{socket.gethostname()}: disk"]  # both nodes have this machine's name
    assert sum(one["name"].endswith(": disk") for one in report["findings"]) == 2
    assert list(tmp_path.iterdir()) == []
