"""A healthy real job: nobody is accused, however long it runs."""

LAPS = 40


def test_a_healthy_job_accuses_nobody(train, request):
    """Windows of 40 laps; 10 minutes at 4 ranks in ``make soak``, a short run otherwise."""
    minutes = request.config.getoption("--quiet-minutes")
    run = train(4 if minutes > 1 else 2, steps=None, minutes=minutes, width=320, workers=1, seconds=60 * minutes + 120)
    verdicts = run.verdicts(LAPS, stride=LAPS // 4)
    accused = [verdict for verdict in verdicts if verdict]
    assert len(verdicts) > 10 * minutes
    assert len(accused) <= 0.01 * len(verdicts), accused
