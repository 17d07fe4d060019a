"""A worker's torch is torch's own: the agent that watches it replaces nothing."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.cluster import run_to_end, standalone

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
import torch, torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

def of(thing):
    code = getattr(thing, "__code__", None)
    kind = thing if isinstance(thing, type) else type(thing)
    names = [str(getattr(thing, name, None)) for name in ("__module__", "__qualname__")]
    return [kind.__module__, kind.__qualname__, *names, code and code.co_filename]

def everything():
    places = {name: module for name, module in sys.modules.items() if name.startswith("torch.distributed")}
    places["bindings"] = torch._C._distributed_c10d
    places["world"] = c10d._world
    places |= {one.__name__: one for one in vars(torch._C._distributed_c10d).values() if isinstance(one, type)}
    return {f"{place} {name}": thing for place, one in places.items() for name, thing in vars(one).items()}

imported = everything()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
side = dist.new_group([0])
dist.all_reduce(torch.ones(3), group=side)
dist.barrier()
functions = {name: thing for name, thing in everything().items() if callable(thing)}
changed = sorted(name for name, thing in functions.items() if imported.get(name, thing) is not thing)
with open(sys.argv[1], "w") as file:
    json.dump({"changed": changed, "all": {name: of(thing) for name, thing in imported.items()}}, file)
"""


@pytest.mark.long
@pytest.mark.parametrize("preload", ["none", "torch"])
def test_nothing_of_torch_distributed_is_replaced_in_a_worker(tmp_path: Path, preload: str) -> None:
    (script := tmp_path / "script.py").write_text(SCRIPT)
    run_to_end(sys.executable, str(script), str(tmp_path / "plain")).check_returncode()
    standalone("--gpus", "1", "--preload", preload, str(script), str(tmp_path / "worker"))
    plain, worker = (json.loads((tmp_path / name).read_text()) for name in ("plain", "worker"))
    assert worker["all"] == plain["all"]
    assert worker["changed"] == plain["changed"]
    assert len(plain["all"]) > 1000
