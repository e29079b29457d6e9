"""A healthy real job: nobody is accused, however long it runs."""

LAPS = 40


def test_a_healthy_job_accuses_nobody(train, request):
    """10 minutes at 4 ranks in ``make soak``, otherwise a short run of two."""
    minutes = request.config.getoption("--quiet-minutes")
    ranks = 4 if minutes > 1 else 2
    run = train(ranks, steps=None, minutes=minutes, width=640, workers=1, seconds=60 * minutes + 120)
    assert len(run.verdicts(LAPS, stride=LAPS // 4)) > 40 * minutes
    assert run.accused_wrongly(LAPS, stride=LAPS // 4) == []
