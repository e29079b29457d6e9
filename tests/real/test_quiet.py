"""A healthy real job: nobody is accused, however long it runs."""

LAPS = 40


def test_a_healthy_job_accuses_nobody(train, request):
    """10 minutes at 4 ranks in ``make soak``, where at most one window of 40 laps in a hundred may accuse; a short run otherwise,
    judged as a whole: a machine that other jobs share takes a core away for seconds, and the rank on it is then late indeed."""
    minutes = request.config.getoption("--quiet-minutes")
    run = train(4 if minutes > 1 else 2, steps=None, minutes=minutes, width=640, workers=1, seconds=60 * minutes + 120)
    verdicts = run.verdicts(LAPS, stride=LAPS // 4)
    accused = [verdict for verdict in verdicts if verdict]
    assert len(verdicts) > 40 * minutes
    assert run.verdict() is None, accused
    assert len(accused) <= (0.01 if minutes > 1 else 0.25) * len(verdicts), accused
