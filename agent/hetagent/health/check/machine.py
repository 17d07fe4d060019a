"""What a check finds on this machine itself: versions, devices, memory, the address that it would offer."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from hetagent.errors import UsageError
from hetagent.health.check.findings import Finding, Grade
from hetagent.launch.slots import narrow, slots_of
from hetagent.node import network, release
from hetagent.node.console import counted
from hetagent.node.gpu import devices, memory
from hetagent.node.gpu.discovery import memory_of
from hetagent.options.model import Options
from hetrdzv import __version__
from hetrdzv.protocol.texts.addresses import is_loopback

GIB = 1 << 30

SHARE = 0.1
"""A GPU of which more than this is in use has too little for most jobs."""


def versions(there: Mapping[str, str], torch: str | None) -> Finding:
    """What has to fit together on all nodes.

    Args:
        there: as `hetagent.node.gpu.versions.versions` finds it.
        torch: the version of the installed torch.
    """
    text = ", ".join(f"{name} {version}" for name, version in {"hetrdzv": __version__, **there}.items())
    try:
        warning = release.check(torch)
    except UsageError as error:
        return Finding("versions", Grade.WRONG, text, str(error))
    if warning:
        return Finding("versions", Grade.WARNING, text, warning)
    return Finding("versions", Grade.OK, text)


def workers(options: Options) -> list[Finding]:
    """What the workers would run on. Leaves only the chosen devices visible to this process."""
    try:
        chosen, slots = slots_of(options)
    except UsageError as error:
        return [Finding("devices", Grade.WRONG, error.finding, error.advice)]
    if chosen is None:
        return [Finding("devices", Grade.OK, f"{counted(slots, 'worker')}; the GPUs are not checked")]
    if chosen.kind == "cpu":
        return [Finding("devices", Grade.OK, counted(slots, "CPU worker"))]
    narrow(chosen)
    findings = [Finding("devices", Grade.OK, chosen.facts.get("name") or counted(slots, "GPU"))]
    try:
        return [
            *findings,
            *map(gpu_memory, memory_of([gpu.uuid for gpu in devices.visible_gpus(os.environ)])),
        ]
    except memory.GpuBroken as error:
        return [
            *findings,
            Finding("GPU memory", Grade.WRONG, str(error), "reset the GPU, or leave it out: --gpus"),
        ]


def gpu_memory(usage: memory.Usage) -> Finding:
    """How much of a GPU's memory is free."""
    free = usage.total_bytes - usage.used_bytes
    text = f"{free / GIB:.1f} of {usage.total_bytes / GIB:.1f} GiB free"
    if usage.used_bytes <= max(memory.SLACK_BYTES, SHARE * usage.total_bytes):
        return Finding(usage.gpu, Grade.OK, text)
    who = ", ".join(f"pid {holder.pid}" for holder in usage.holders[:5])
    advice = f"in use by {who}" if who else "the driver names no process that uses it: another container?"
    return Finding(usage.gpu, Grade.WARNING, text, advice)


def address(
    options: Options, offered: str, interface: str | None, interfaces: Sequence[network.Interface]
) -> Finding:
    """The address that this node would offer, and why this one.

    Args:
        interface: the one that has it; None: none here does.
        interfaces: those of this node.
    """
    why = "towards the server"
    if options.local_addr is not None:
        why = "--local-addr"
    elif options.interface is not None:
        why = "--interface"
    where = interface or "no interface here has it"
    others = ", ".join(
        f"{other.name} {other.address}"
        for other in interfaces
        if not other.is_loopback and other.name != interface
    )
    text = f"{offered} ({where}; {why})" + (f"; others: {others}" if others else "")
    if is_loopback(offered) and any(not is_loopback(_host(url)) for url in options.servers):
        return Finding(
            "address", Grade.WRONG, text, "other hosts cannot reach it: --local-addr or --interface"
        )
    if is_loopback(offered):
        return Finding("address", Grade.WARNING, text, "for a job on this host only")
    return Finding("address", Grade.OK, text)


def ports(offered: str, port_range: tuple[int, int] | None, count: int) -> Finding:
    """Whether the ports that a node needs can be had."""
    span = "any" if port_range is None else f"{port_range[0]}-{port_range[1]}"
    try:
        with ExitStack() as held:
            for _ in range(count):
                held.enter_context(network.hold_port(offered, port_range))
    except network.NetworkError as error:
        return Finding("ports", Grade.WRONG, str(error))
    return Finding("ports", Grade.OK, f"{count} are free ({span})")


def _host(url: str) -> str:
    return url.rpartition(":")[0].rpartition("//")[2].strip("[]")
