"""5: is it learning?"""

from __future__ import annotations

from board import dashboard, to
from meaning import BAD, GOOD, LINE, NONFINITE_STEPS, OUT_OF_BAND_STEPS, PLAIN, REFERENCE, WARN, Json, steps
from panels import fixed, named, reference, stat, target, timeseries
from series import NO_STEP, NO_TOKENS, RANKS_QUERY, counted, now

OF = '{run="$run"}'
EMPTY = "the loop does not report it"
EMPTY_NOW = f"not reported, or {NO_STEP}"
TOKENS = f"run:training_tokens:rate1m{OF}"
NORM = f"max by (run) (training_gradient_norm{OF})"
TELLS = f"(max by (run) (training_loss{OF}) or {NORM})"
"""The counters of steps in trouble stand at 0 where the loop tells neither."""


def _band(quantile: float) -> str:
    """Of the last hour; the comparison leaves out what is not a number, which would sort first."""
    return f"quantile_over_time({quantile}, ({NORM} < 1e30)[1h:15s])"


def _last_minute(counter: str, told: str) -> Json:
    """How many steps it has counted in the last minute, where the loop tells what they are counted by."""
    return target(now(f"sum by (run) (increase({counter}{OF}[1m])) and on (run) {told}", RANKS_QUERY), "steps")


def _numbers() -> tuple[Json, ...]:
    return (
        stat("Loss", "Of the last step. NaN: the run learns nothing more, whatever the GPUs do.",
             target(f"max by (run) (training_loss{OF})", "loss"), unit="none", decimals=3, nan=True, color=fixed(PLAIN),
             noValue=EMPTY),
        stat("Steps with NaN or infinite values", "Steps of the last minute whose loss or gradient norm was NaN or infinite: above "
             "three, the alert fires. Healthy: 0, or now and then one where losses are scaled for fp16.",
             _last_minute("training_nonfinite_steps_total", TELLS), unit="none", decimals=0, noValue=EMPTY_NOW,
             color={"mode": "thresholds"}, thresholds=steps((None, PLAIN), (0, GOOD), (1, WARN), (NONFINITE_STEPS, BAD))),
        stat("Steps out of band", "Steps of the last minute whose gradient norm left the band that the loop was given: above "
             "three, the alert fires.",
             _last_minute("training_gradient_out_of_band_total", NORM), unit="none", decimals=0, noValue=EMPTY_NOW,
             color={"mode": "thresholds"}, thresholds=steps((None, PLAIN), (0, GOOD), (1, WARN), (OUT_OF_BAND_STEPS, BAD))),
        stat("Tokens per second now", "All ranks. It falls with every fault that costs time, and never with a gradient that "
             "explodes.",
             target(now(counted(TOKENS), TOKENS), "tokens/s"), unit="short", decimals=1, min=0, color=fixed(PLAIN),
             noValue=NO_TOKENS),
        stat("Tokens in this range", "Seen by all ranks over the time range chosen above.",
             target(f"sum(increase(training_tokens_total{OF}[$__range])) > 0", "tokens", instant=True), unit="short", decimals=2,
             color=fixed(PLAIN), noValue=NO_TOKENS),
        stat("Since the last checkpoint", "What would be lost if the job died now.",
             target(now(f"time() - max(training_last_checkpoint_timestamp_seconds{OF})", RANKS_QUERY), "age"), unit="s", decimals=0,
             color=fixed(PLAIN), noValue=f"none yet, or {NO_STEP}"),
    )  # fmt: skip


def learning() -> Json:
    loss = timeseries(
        "Loss, with its own recent minimum",
        "A healthy loss stays near its minimum of the last hour. Bad: it leaves it and does not come back, or the line ends "
        "(NaN). GPUs look perfectly well meanwhile.",
        target(f"max by (run) (training_loss{OF})", "loss"),
        target(f"min by (run) (min_over_time(training_loss{OF}[1h]))", "lowest of the last hour"),
        unit="none", noValue=EMPTY,
        overrides=[named("loss", color=fixed(LINE)), reference("lowest of the last hour")],
    )  # fmt: skip
    norm = timeseries(
        "Gradient norm, against the last hour's usual range",
        "L2 norm of the reduced gradient before clipping, on a log axis; the range holds 98 % of the last hour's. An explosion "
        "rises by decades within seconds, before the loss does.",
        target(NORM, "gradient norm"),
        target(_band(0.99), "99th percentile, last hour"),
        target(_band(0.01), "1st percentile, last hour"),
        unit="none", log=True, noValue=EMPTY,
        overrides=[named("gradient norm", color=fixed(LINE)),
                   named("99th percentile, last hour", color=fixed(REFERENCE), custom__lineWidth=1,
                         custom__fillBelowTo="1st percentile, last hour", custom__fillOpacity=25),
                   named("1st percentile, last hour", color=fixed(REFERENCE), custom__lineWidth=1)],
    )  # fmt: skip
    rate = timeseries(
        "Learning rate",
        "As the loop set it. A jump is a schedule's, or a mistake's.",
        target(f"max by (run) (training_learning_rate{OF})", "learning rate"), unit="sci", log=True, noValue=EMPTY,
        color=fixed(LINE),
    )  # fmt: skip
    trouble = timeseries(
        "Steps in trouble",
        "Share of steps that were clipped, out of band, or not finite. Clipping now and then is normal; all of them, for long, "
        "is a learning rate too high.",
        *(target(f"sum by (run) (rate(training_{name}_total{OF}[1m])) / max by (run) (rate(training_steps_total{OF}[1m])) "
                 f"and on (run) {TELLS}", legend)
          for name, legend in (("gradient_clipped", "clipped"), ("gradient_out_of_band", "out of band"),
                               ("nonfinite_steps", "not finite"))),
        unit="percentunit", min=0, max=1, noValue=EMPTY,
        overrides=[named("clipped", color=fixed(LINE)), named("out of band", color=fixed(WARN)),
                   named("not finite", color=fixed(BAD))],
    )  # fmt: skip
    tokens = timeseries(
        "Tokens per second",
        "All ranks. The pace of learning is this times what a token teaches.",
        target(counted(TOKENS), "tokens per second"), unit="short", min=0, noValue=NO_TOKENS,
        color=fixed(LINE),
    )  # fmt: skip
    return dashboard(
        "learning",
        "5 · Is it learning?",
        "Loss, gradient and learning rate: faults of learning leave the hardware untouched, and the other way round.",
        (
            (4, tuple((4, number) for number in _numbers())),
            (12, ((12, loss), (12, norm))),
            (9, ((8, rate), (8, trouble), (8, tokens))),
        ),
        [],
        onward=to("mirage", "The mirage: is the hardware well?"),
    )  # fmt: skip
