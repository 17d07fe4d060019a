"""What ends a round, why a node goes, and why a job fails."""

from hetrdzv.protocol.reasons.hangs import Hang
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, make_reason, with_message
from hetrdzv.protocol.rounds import EarlierSuccesses, WorkerFailure
from hetrdzv.protocol.texts.node_rank_lists import RankList
from hetrdzv.protocol.texts.phrasing import clip_text, count_text
from hetrdzv.protocol.texts.tracebacks import find_exception

# -- workers -------------------------------------------------------------------------------------------------


def worker_failed(node_id: str, failure: WorkerFailure, before: EarlierSuccesses | None = None) -> Reason:
    """A worker failed.

    A worker that was killed did not choose its last words: they may be anything, such as half a progress bar. One that
    chose its status may have logged an exception before: that counts only if it is the last that it wrote.
    """
    text = failure.message.rstrip()
    if failure.is_start_failure:
        message = f"{node_id} could not start its workers{f': {clip_text(text)}' if text else ''}"
        return make_reason(ReasonCode.START_FAILED, message, nodes=[node_id], quote=text)
    quote = where = ""
    if failure.signal is None:
        exception = find_exception(text)
        if exception is not None and (
            failure.exit_code == 1 or failure.lingers or exception.end == len(text)
        ):
            quote, where = exception.headline, exception.where
        else:
            quote = text.rpartition("\n")[2].strip()
    ended = ""
    if before is not None:
        others = f" and {count_text(before.others, 'other worker')}" if before.others else ""
        ended = f"; rank {before.rank} on {before.node_id}{others} had ended with exit code 0 before that"
    who = f"rank {failure.rank} on {node_id}" if failure.rank >= 0 else f"the program of {node_id}"
    if where:
        message = f"{clip_text(quote)} ({clip_text(where)}, {who}{', has not ended since' if failure.lingers else ''})"
    else:
        how = f"was killed by {failure.signal}" if failure.signal else f"exited with code {failure.exit_code}"
        how = "has not ended" if failure.exit_code is None and not failure.signal else how
        message = f"{who} {how}{f': {clip_text(quote)}' if quote else ''}"
    return make_reason(
        ReasonCode.WORKER_FAILED,
        f"{message}{ended}",
        nodes=[node_id],
        ranks=RankList.of([failure.rank]) if failure.rank >= 0 else None,
        quote=quote,
        exit_code=failure.exit_code,
        signal=failure.signal,
        where=where or None,
        lingers=1 if failure.lingers else None,
        weights_only=1 if "Weights only load failed" in text else None,
    )


def workers_hang(hang: Hang) -> Reason:
    """Workers have waited for too long: for one, which is named, or for nobody in particular."""
    who = "a worker hangs" if hang.ranks else "the workers hang"
    return make_reason(
        ReasonCode(hang.kind),
        f"{who}: {hang.message(hang.for_s)}",
        nodes=hang.nodes[:1],
        ranks=RankList.of(hang.ranks[:1]),
        for_s=round(hang.for_s, 3),
    )


# -- members -------------------------------------------------------------------------------------------------


def node_drained(group_id: str, node_id: str) -> Reason:
    """A person took a node out."""
    text = f"{node_id} was drained; to readmit it: hetctl undrain {group_id} {node_id}"
    return make_reason(ReasonCode.NODE_DRAINED, text, nodes=[node_id])


# -- why a job fails -----------------------------------------------------------------------------------------


def failure_without_restart(failed: Reason, why: str, max_restarts: int = 0) -> Reason:
    """A worker's failure on which no restart could be spent."""
    text = {
        "permanent": "; no restart, since it would end the same way",
        "no_restart_on": f"; no restart, since no_restart_on has exit code {failed.data.get('exit_code')}",
        "used_up": f"; no restart is left ({max_restarts} used)" if max_restarts else "",
    }[why]
    return with_message(failed, f"{failed}{text}", data={**failed.data, "no_restart": why})


def departure_with_failures(of: Reason) -> Reason:
    """A member's departure, after which others failed: before it was known, or since."""
    return with_message(of, f"{of}; failures elsewhere were a consequence")
