"""Becomes the leader on a real etcd, without a server."""

from hetrdzv.storage.etcd.client import EtcdClient
from hetrdzv.storage.etcd.election import Term, campaign_for_leadership

LEASE_S = 60
"""Longer than any test, since nothing renews it."""


async def lead(etcd: EtcdClient) -> Term:
    """Become the leader; the lease of the one before ends as if it had expired."""
    found = await etcd.get(etcd.key("leader"), within_s=5.0)
    if found is not None:
        await etcd.revoke_lease(found.lease, within_s=5.0)
    term = await campaign_for_leadership(etcd, "http://test:1", LEASE_S)
    assert term is not None, "another server leads"
    return term
