"""Presets, files and overrides."""

import pytest

from stepsim.job import PRESETS, JobError, load_job


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_fits_into_its_gpus(preset):
    """With a tenth to spare, under DDP."""
    job = load_job(preset)
    assert job.memory_bytes()["reserved"] < 0.9 * job.gpu.memory_bytes


@pytest.mark.parametrize(
    ("preset", "ranks"), [("laptop", 4), ("node", 8), ("cluster", 32), ("pod", 256), ("large", 1024)]
)
def test_presets_have_their_sizes(preset, ranks):
    """As the README names them."""
    assert load_job(preset).ranks == ranks


def test_the_default_model_does_the_documented_work():
    """MPT-1B, 16,384 tokens per GPU: 1.4915e14 FLOPs per step."""
    assert load_job().flops_per_step == pytest.approx(1.4915e14, rel=1e-4)


def test_a_file_overrides_the_preset_and_flags_override_the_file(tmp_path):
    """Nested keys merge."""
    file = tmp_path / "job.yml"
    file.write_text("nodes: 2\nloader: {workers: 8}\nmodel: {layers: 12}\n")
    job = load_job("cluster", file, nodes=3)
    assert (job.nodes, job.loader.workers, job.loader.prefetch, job.model.layers) == (3, 8, 2, 12)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nodse: 2", "unknown key 'nodse'; here there are run, nodes"),
        ("loader: {wrokers: 2}", "unknown key 'loader.wrokers'; here there are workers, prefetch"),
        ("nodes: many", "nodes: .*got 'many'"),
        ("nodes: 0", "nodes: .*greater than or equal to 1"),
        ("accelerator: H1000", "unknown accelerator 'H1000'; known are A100 SXM"),
        ("loader: {read_seconds: .inf}", "loader.read_seconds: .*finite"),
        ("kernels: {jitter: 0.5}", "kernels.jitter: .*0.15"),
        ("nodes: 1000000000", "nodes: .*4096"),
        ("model: {parameters: 500}", "model.parameters: .*1000000"),
        ("tokens_per_gpu: 131072", "MPT-1B with 131072 tokens per GPU needs .* GiB, and a H100 SXM has 80"),
        ("- nodes", "must hold a mapping"),
        ("nodes: [", "is not YAML"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, content, said):
    """What was wrong, and what would be right."""
    file = tmp_path / "job.yml"
    file.write_text(content)
    with pytest.raises(JobError, match=said):
        load_job("cluster", file)


def test_a_missing_file_and_an_unknown_preset_are_named(tmp_path):
    """Not a traceback."""
    with pytest.raises(JobError, match=r"cannot read .*nowhere\.yml"):
        load_job("cluster", tmp_path / "nowhere.yml")
    with pytest.raises(JobError, match="unknown preset 'huge'; there are laptop, node, vision, cluster, pod, large"):
        load_job("huge")
