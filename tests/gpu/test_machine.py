"""What `nvidia-smi` prints, in the forms that its manual and public reports show, is read right."""

import pytest

from tests.gpu.machine import Card, cards, slices, users

QUERY = """0, GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, NVIDIA H100 80GB HBM3, 81559, 580.95.05, Disabled, Default
1, GPU-9a1b0c52-0000-4c11-8e8e-1f6c2a7b3d10, Tesla T4, 15360, 580.95.05, [N/A], Exclusive_Process
2, GPU-0e2c0b7e-94a7-4d9c-a3c0-2b1d7f6f4e55, NVIDIA GB10, [N/A], 580.95.05, [Not Supported], Default
"""
LIST = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c788539f-c1ea-5a36-8b4d-9b07d024b1bb)
  MIG 1c.3g.20gb  Device  1: (UUID: MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/2/0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1d82f4df-cf31-d682-4945-c92d7a914160)
"""


def test_query() -> None:
    first, second, third = cards(QUERY)
    uuid = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
    assert first == Card(0, uuid, "NVIDIA H100 80GB HBM3", 81559, "580.95.05", False, "Default")
    assert (second.mig, second.compute_mode, third.memory_mib) == (False, "Exclusive_Process", None)
    assert cards(QUERY.replace("Disabled", "Enabled"))[0].mig


def test_slices() -> None:
    legacy = "MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/2/0"
    assert slices(LIST) == ["MIG-c788539f-c1ea-5a36-8b4d-9b07d024b1bb", legacy]


@pytest.mark.parametrize("nothing", ["", "No devices were found\n", "No running processes found\n"])
def test_nothing(nothing: str) -> None:
    assert (cards(nothing), slices(nothing), users(nothing)) == ([], [], {})


def test_users() -> None:
    assert users("4711, 1024\n12, [N/A]\n13, [Insufficient Permissions]\n") == {
        4711: 1024,
        12: None,
        13: None,
    }
