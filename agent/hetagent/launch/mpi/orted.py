"""Checks the command line of mpirun's daemon that a node runs for the round's master. Pure."""

import re
import shlex
from collections.abc import Sequence

from hetagent.errors import CommandError
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.requests import DAEMON_PROGRAM

MCA_FLAGS = frozenset({"-mca", "--mca", "-gmca", "--gmca"})

NEEDED = frozenset(
    {
        "ess",
        "ess_base_jobid",
        "ess_base_num_procs",
        "ess_base_vpid",
        "orte_do_not_resolve",
        "orte_hnp_uri",
        "orte_node_regex",
        "orte_parent_uri",
        "oob_tcp_dynamic_ipv4_ports",
        "oob_tcp_if_include",
        "btl_tcp_if_include",
        "btl_tcp_port_min_v4",
        "btl_tcp_port_range_v4",
        "plm",
        "plm_rsh_no_tree_spawn",
        "plm_rsh_pass_environ_mca_params",
        "pmix",
        "ras",
    }
)
"""Settings that mpirun and this launch give the daemon. None of them loads code or names a program or file."""

LEFT_OUT = frozenset({"plm_rsh_agent"})
"""Settings that mpirun also gives its daemons but only needs itself: here they would name a program."""


def host_name(member: Member) -> str:
    """What mpirun calls a member: a plain word that is no real host's name, since mpirun interprets host names.

    It contains the node's id, so that Open MPI's messages lead people to the node.
    """
    if member.group_rank == 0:
        return "localhost"
    plain = re.sub(r"[^a-z0-9]+", "-", member.node_id.lower())[:40].strip("-")
    return f"n{member.group_rank}-{plain or 'node'}"


def split_command_line(words: Sequence[str]) -> list[str]:
    """The daemon's command line as a shell on the other host would have read it."""
    try:
        plain = shlex.split(" ".join(words))
    except ValueError as error:
        raise CommandError(f"what mpirun would run on another host cannot be parsed ({error})") from None
    places = [at for at, word in enumerate(plain) if word.rpartition("/")[2] == DAEMON_PROGRAM]
    if not places:
        raise CommandError(
            f"mpirun would run {plain[:1]} on another host, not {DAEMON_PROGRAM}: is it Open MPI 4?"
        )
    return [word for word in plain[places[-1] :] if word != ")"]


def make_orted_args(words: Sequence[str]) -> list[str]:
    """The arguments for this node's own orted, in the foreground."""
    program, *rest = words or [""]
    if program.rpartition("/")[2] != DAEMON_PROGRAM:
        raise CommandError(f"the master asked this node to run {program!r}: only {DAEMON_PROGRAM} is run")
    checked: list[str] = []
    while rest:
        flag = rest.pop(0)
        if flag == "--daemonize":
            continue
        if flag not in MCA_FLAGS or len(rest) < 2:
            raise CommandError(
                f"the master asked this node to run {DAEMON_PROGRAM} with {flag!r}, which is refused"
            )
        name, value = rest.pop(0), rest.pop(0)
        if name in LEFT_OUT:
            continue
        if name not in NEEDED:
            raise CommandError(
                f"the master asked this node to run {DAEMON_PROGRAM} with the setting {name!r}, which is refused, "
                f"since some settings load code or run programs: "
                f"set OMPI_MCA_{name} in hetagent's environment on each node"
            )
        checked += [flag, name, value]
    return checked
