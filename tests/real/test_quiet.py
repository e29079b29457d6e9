"""A healthy real job: nobody is accused, however long it runs."""

LAPS = 40


def test_a_healthy_job_accuses_nobody(train, request):
    """Windows of 40 laps of some 40 ms; 10 minutes at 4 ranks in ``make soak``, a short run otherwise. One window may be the
    machine's own doing."""
    minutes = request.config.getoption("--quiet-minutes")
    run = train(4 if minutes > 1 else 2, steps=None, minutes=minutes, width=640, workers=1, seconds=60 * minutes + 120)
    verdicts = run.verdicts(LAPS, stride=LAPS // 4)
    accused = [verdict for verdict in verdicts if verdict]
    assert len(verdicts) > 40 * minutes
    assert len(accused) <= max(1, 0.01 * len(verdicts)), accused
