"""``stepscope plan``, as it is typed."""

import json
import re

import pytest
from typer.testing import CliRunner

from stepsim.commands import app


def run(*words):
    return CliRunner().invoke(app, ["plan", *map(str, words)], env={"COLUMNS": "200"})


def test_without_options_it_prints_a_whole_plan():
    """Where a step goes, memory, communication, both curves with their knees."""
    done = run()
    assert done.exit_code == 0
    for said in ("Llama 3 8B on 64 × H100 SXM", "where a step goes", "memory of a GPU", "data parallel", "Weak scaling",
                 "Strong scaling", "GPUs: "):  # fmt: skip
        assert said in done.output


def test_a_narrow_terminal_keeps_a_number_and_its_unit_together():
    """The headline's numbers have a line of their own."""
    done = CliRunner().invoke(
        app, ["plan", "--model", "Llama 3 70B", "--gpus", "512", "--tp", "8"], env={"COLUMNS": "80"}
    )
    assert re.match(
        r"Llama 3 70B on 512 × H100 SXM \(.*\):\ndoes not fit, step [\d.]+ (s|ms), \S+ tokens/s, MFU \S+\n", done.output
    )


def test_json_has_the_numbers_of_the_tables():
    """Units in the names."""
    told = json.loads(run("--json", "--gpus", 8, "--max-gpus", 16).stdout)
    now = told["prediction"]
    assert now["step_seconds"] == pytest.approx(sum(now["seconds"].values()))
    assert now["memory_bytes"]["total"] < now["memory_available_bytes"]
    assert [point["gpus"] for point in told["scaling"]["weak"]["points"]] == [1, 2, 4, 8, 16]
    assert {"step_seconds", "tokens_per_second", "efficiency_ratio", "marginal_ratio"} <= told["scaling"]["strong"][
        "points"
    ][0].keys()


def test_what_does_not_fit_is_still_predicted():
    """With status 0, by how much, and what would fit."""
    done = run("--model", "Llama 3 70B", "--strategy", "ddp", "--max-gpus", 8)
    assert done.exit_code == 0
    assert "It does not fit: " in done.output
    assert "GiB too much. It would with --" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "lama3"), "unknown model 'lama3'; near it are Llama 3"),
        (("--gpus", "12"), "gpus: 12 do not fill nodes of 8"),
        (("--job", "/nowhere.yml"), "cannot read /nowhere.yml"),
        (("--preset", "clutser"), "unknown preset 'clutser'"),
        (("--tp", "x"), "Invalid value for '--tp'"),
    ],
)
def test_bad_usage_ends_with_2_and_says_why(words, said):
    """On standard error."""
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_file_describes_the_job(tmp_path):
    """In place of a model's name, with the preset's for what it leaves open."""
    file = tmp_path / "job.yml"
    file.write_text("nodes: 2\nmodel: {name: mine, layers: 12, parameters: 8e8}\n", encoding="utf-8")
    told = json.loads(run("--job", file, "--json").stdout)
    assert (told["model"]["name"], told["model"]["layers"], told["prediction"]["gpus"]) == ("mine", 12, 16)
    assert told["request"]["strategy"] == "ddp"
