"""The work of `scripts.fuzzing.campaign`, in a process that one of the cases kills."""

from __future__ import annotations

import os
import signal

from scripts.fuzzing import campaign

_judge = campaign.judge


def work(share, tell):
    doomed = share.common.plan.case(1).text()

    def judging(case, *arguments):
        if case.text() == doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        return _judge(case, *arguments)

    campaign.judge = judging
    campaign.work(share, tell)


def losing(share, tell):
    """Eager loses the device at case 1, the candidate at case 2; at case 4, whose numbers differ, shrinking does."""
    shares = {number: share.common.plan.case(number).text() for number in (1, 2, 4)}

    def judging(case, *arguments):
        if case.text() == shares[1]:
            raise campaign.EagerAsserts("an index")
        if case.text() == shares[2]:
            return [campaign.Difference("crash", "", "a wild address")]
        if case.text() == shares[4]:
            return [campaign.Difference("value", "output[0]", "1 of 2")]
        return _judge(case, *arguments)

    def shrinking(*_, **__):
        raise campaign.DeviceLost("meanwhile")

    campaign.judge, campaign.shrink = judging, shrinking
    campaign.work(share, tell)


def differing_then_dying(share, tell):
    """Case 0 differs, case 1 kills the process."""
    texts = {share.common.plan.case(number).text(): number for number in range(3)}

    def judging(case, *arguments):
        if texts.get(case.text()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if texts.get(case.text()) == 0:
            return [campaign.Difference("value", "output[0]", "1 of 2")]
        return _judge(case, *arguments)

    campaign.judge, campaign.shrink = judging, lambda case, *_, **__: case
    campaign.work(share, tell)
