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
