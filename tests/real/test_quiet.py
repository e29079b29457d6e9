"""A healthy real job: nobody is accused, however long it runs."""

LAPS = 40


def test_a_healthy_job_accuses_nobody(train, request):
    """10 minutes at 4 ranks in ``make soak``, where at most one window of 40 laps in a hundred may accuse; otherwise a short run,
    and a second one if need be: a machine that others share takes a core away, and the rank on it is then late indeed."""
    minutes = request.config.getoption("--quiet-minutes")
    long = minutes > 1

    def accused():
        run = train(4 if long else 2, steps=None, minutes=minutes, width=640, workers=1, seconds=60 * minutes + 120)
        assert len(run.verdicts(LAPS, stride=LAPS // 4)) > 40 * minutes
        return run.accused(LAPS, LAPS // 4, allowed=0.01 if long else 0.25)

    first = accused()
    assert first is None or (not long and accused() is None), first
