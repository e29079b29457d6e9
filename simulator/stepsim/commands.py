"""The subcommands of ``stepscope``. To add one: decorate a function with ``app.command()``."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepscope import __version__
from stepscope.cli import COMMANDS
from stepscope.diagnosis import SourceError
from stepscope.publisher import METRICS_PORT
from stepscope.server import PortInUse
from stepsim.diagnoser import Diagnoser
from stepsim.failure import fail
from stepsim.fault_commands import fault_app
from stepsim.history import HistoryError, write_history
from stepsim.incidents import PACES, UnknownPace, pace_named
from stepsim.job import PRESETS, JobError, load_job
from stepsim.lab import LabError, LabJob, run_lab
from stepsim.lab_jobs import RealLab, SimulatedLab
from stepsim.live import LiveJob
from stepsim.options import number_option, port_option
from stepsim.pages import Pages
from stepsim.planner.commands import plan_scaling
from stepsim.practice.commands import grade_rules, practice_app
from stepsim.real import RealJob, RealPages
from stepsim.serving import LinkError, listen, parse_links, serve, web_origins
from stepsim.state import StateError
from stepsim.straggler.commands import calculate_straggler

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Why a training job is slow while every GPU reads busy.",
                  epilog=f"For clusters, without the lab: {', '.join(COMMANDS)}; see stepscope serve --help.")  # fmt: skip
app.add_typer(fault_app, name="fault")
app.add_typer(practice_app, name="practice")
app.command("grade")(grade_rules)
app.command("plan")(plan_scaling)
app.command("straggler")(calculate_straggler)

errors = Console(stderr=True, highlight=False)

Preset = Annotated[str, typer.Option(envvar="PRESET", help=f"The job: {', '.join(PRESETS)}.")]
JobFile = Annotated[Path | None, typer.Option("--job", help="YAML file that overrides the preset.")]
Nodes = Annotated[int | None, typer.Option(help="Number of nodes.")]
GpusPerNode = Annotated[int | None, typer.Option(help="GPUs per node.")]
Gpu = Annotated[str | None, typer.Option("--accelerator", help="Accelerator, such as 'A100 SXM'.")]
Run = Annotated[str | None, typer.Option("--run", help="Name of the run: the label 'run' of all its metrics.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same run.")]
RandomIncidents = Annotated[
    str | None,
    typer.Option("--incidents", metavar="PACE", envvar="INCIDENTS",
                 help=f"Let faults strike at random: {' or '.join(PACES)}."),
]  # fmt: skip

SimulatorPort = Annotated[int, port_option("Port of API, console and metrics.", "STEPSCOPE_PORT")]
GrafanaPort = Annotated[int, port_option("Pages from there may start faults.", "GRAFANA_PORT")]
Links = Annotated[
    str,
    typer.Option(
        envvar="STEPSCOPE_LINKS", metavar="NAME=PORT,…", help="Where the console leads to, such as Prometheus=9090."
    ),
]
AllowOrigin = Annotated[list[str] | None, typer.Option(help="A further web origin that may start faults.")]
PublicPort = Annotated[
    int | None, port_option("Port that browsers reach the console by, if another.", "STEPSCOPE_PUBLIC_PORT")
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


PrometheusUrl = Annotated[
    str | None,
    typer.Option("--prometheus", metavar="URL", envvar="STEPSCOPE_PROMETHEUS",
                 help="Diagnose the job from what this Prometheus has of it; it need not be there yet."),
]  # fmt: skip


@app.command()
def simulate(
    preset: Preset = "cluster",
    job_file: JobFile = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    accelerator: Gpu = None,
    run: Run = None,
    seed: Seed = 0,
    incidents: RandomIncidents = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: SimulatorPort = 8000,
    grafana_port: GrafanaPort = 3000,
    links: Links = "",
    allow_origin: AllowOrigin = None,
    public_port: PublicPort = None,
    prometheus: PrometheusUrl = None,
    state: Annotated[Path | None, typer.Option(help="File that keeps faults and checkpoint across restarts.")] = None,
    per_rank_histogram: Annotated[bool, typer.Option("--per-rank-histogram", help="Step histogram per rank.")] = False,
    blind: Annotated[bool, typer.Option("--blind", help="Hide which faults are active.")] = False,
) -> None:
    """Simulate a training job in real time, and serve its metrics, its faults and the console."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        job = load_job(preset, job_file, nodes=nodes, gpus_per_node=gpus_per_node, accelerator=accelerator, run=run)
        pace, linked = pace_named(incidents), parse_links(links)
        listener = listen(host, port)
        live = LiveJob(job, seed=seed, state_file=state, incidents=pace, blind=blind)
        diagnoser = Diagnoser.of(prometheus, lambda: job.run)
    except (JobError, StateError, PortInUse, SourceError, UnknownPace, LinkError) as error:
        raise fail(error, 2) from None
    errors.print(f"{job.ranks} × {job.gpu.model_name}, {job.model.name}: http://{host}:{listener.getsockname()[1]}/")
    origins = web_origins(public_port or listener.getsockname()[1], grafana_port, extra=tuple(allow_origin or ()))
    pages = Pages(live.engine, time.time, per_rank_histogram=per_rank_histogram, blind=blind, diagnoser=diagnoser)
    if not serve(live, pages, listener, origins=origins, blind=blind, diagnoser=diagnoser, links=linked):
        raise typer.Exit(1)


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="Folder in which the ranks write their discovery files.")],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the job.")] = 4,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: SimulatorPort = 8000,
    grafana_port: GrafanaPort = 3000,
    links: Links = "",
    allow_origin: AllowOrigin = None,
    public_port: PublicPort = None,
    prometheus: PrometheusUrl = None,
) -> None:
    """Serve API, console and critical path of a real job whose ranks announce themselves in a folder."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        linked = parse_links(links)
        listener = listen(host, port)
        job = RealJob(folder, ranks)
        diagnoser = Diagnoser.of(prometheus, job.run)
    except (OSError, PortInUse, SourceError, LinkError) as error:
        raise fail(error, 2) from None
    errors.print(f"{ranks} ranks that announce themselves in {folder}: http://{host}:{listener.getsockname()[1]}/")
    origins = web_origins(public_port or listener.getsockname()[1], grafana_port, extra=tuple(allow_origin or ()))
    pages = RealPages(job, diagnoser=diagnoser)
    if not serve(job, pages, listener, origins=origins, diagnoser=diagnoser, links=linked):
        raise typer.Exit(1)


@app.command()
def history(
    out: Annotated[Path, typer.Argument(help="Folder to write to.")],
    preset: Preset = "cluster",
    job_file: JobFile = None,
    run: Run = None,
    seed: Seed = 0,
    hours: Annotated[float, typer.Option(min=0.1, max=48, help="How far back it reaches.")] = 2.0,
    state: Annotated[Path | None, typer.Option(help="File to leave the run's last checkpoint in.")] = None,
    rules: Annotated[Path, typer.Option(help="Recording rules to split into levels.")] = Path(
        "prometheus/rules/recording.yml"
    ),
) -> None:
    """Write a past of the job with three incidents, for loading into an empty Prometheus."""
    try:
        job = load_job(preset, job_file, run=run)
        write_history(job, out, seed=seed, hours=hours, rules=rules, state_file=state, console=errors)
    except (JobError, HistoryError) as error:
        raise fail(error, 2) from None


Root = Annotated[Path, typer.Option(help="The project's folder, which holds prometheus/ and alertmanager/.")]
PrometheusPort = Annotated[int, port_option("Prometheus's port.", "PROMETHEUS_PORT")]
AlertmanagerPort = Annotated[int, port_option("Alertmanager's port.", "ALERTMANAGER_PORT")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget an earlier lab's data and faults first.")]


@app.command()
def lab(
    preset: Preset = "cluster",
    job_file: JobFile = None,
    seed: Seed = 0,
    incidents: RandomIncidents = None,
    root: Root = Path(),
    data: Annotated[
        Path | None, typer.Option(help="Where data, logs and written configs go; else build/lab/PRESET there.")
    ] = None,
    port: SimulatorPort = 8000,
    prometheus_port: PrometheusPort = 9090,
    alertmanager_port: AlertmanagerPort = 9093,
    grafana_port: GrafanaPort = 3000,
    with_history: Annotated[bool, typer.Option("--history/--no-history", help="Preload two hours of past.")] = True,
    fresh: Fresh = False,
) -> None:
    """Run simulator, Prometheus and Alertmanager on this machine, until Ctrl-C."""
    try:
        folder = data or root / "build" / "lab" / load_job(preset, job_file).run
        pace_named(incidents)
    except (JobError, UnknownPace) as error:
        raise fail(error, 2) from None
    simulated = SimulatedLab(preset=preset, job_file=job_file, seed=seed, grafana_port=grafana_port,
                             with_history=with_history, incidents=incidents)  # fmt: skip
    _run(simulated, root, folder, (port, prometheus_port, alertmanager_port), fresh)


@app.command("lab-real")
def lab_real(
    ranks: Annotated[int, number_option("number of ranks", "Processes that train.", "RANKS", low=1, high=64)] = 4,
    strategy: Annotated[str, typer.Option(help="ddp or fsdp.")] = "ddp",
    training_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Further options of examples/train_gpt.py.")
    ] = None,
    root: Root = Path(),
    data: Annotated[
        Path | None, typer.Option(help="Where data, logs and written configs go; else build/lab/real there.")
    ] = None,
    metrics_port: Annotated[
        int, port_option("Port of rank 0; the others follow.", "STEPSCOPE_METRICS_PORT")
    ] = METRICS_PORT,
    port: SimulatorPort = 8000,
    prometheus_port: PrometheusPort = 9090,
    alertmanager_port: AlertmanagerPort = 9093,
    grafana_port: GrafanaPort = 3000,
    fresh: Fresh = False,
) -> None:
    """Train a small GPT for real, under the lab's Prometheus and Alertmanager, until Ctrl-C."""
    if strategy not in ("ddp", "fsdp"):
        raise fail(f"no strategy {strategy!r}; there are ddp and fsdp", 2)
    real = RealLab(ranks=ranks, strategy=strategy, grafana_port=grafana_port, metrics_port=metrics_port,
                   training_options=tuple(training_options or ()))  # fmt: skip
    _run(real, root, data or root / "build" / "lab" / "real", (port, prometheus_port, alertmanager_port), fresh)


def _run(job: LabJob, root: Path, folder: Path, ports: tuple[int, int, int], fresh: bool) -> None:
    named = dict(zip(("simulator", "prometheus", "alertmanager"), ports, strict=True))
    try:
        code = run_lab(
            root.resolve(), folder.resolve(), job, ports=named, fresh=fresh, console=Console(highlight=False)
        )
    except (LabError, PortInUse) as error:
        raise fail(error, 2) from None
    raise typer.Exit(code)
