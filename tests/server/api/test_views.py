"""Replies are written in pieces, which nobody can tell."""

from hetrdzv.api.views import group_reply, json_response
from hetrdzv.protocol import codec
from tests.support.served import serving, two_nodes


async def test_a_reply_in_pieces_is_the_same_as_in_one() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        group = service.group("g")
        reply = group_reply(group, service.now(), lambda node: node.heard_at)
        assert reply.nodes
        assert reply.current_round is not None
        assert bytes(json_response(reply).body) == codec.write(reply, nulls=True)
        assert bytes(json_response(reply.current_round.members[0]).body).startswith(b'{"')
