"""The manifests: what an API server would take, up to date with the lab's files, and fitting together."""

import copy
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboard_files import DASHBOARDS
from stepscope.cli import parser

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
BASE, EXAMPLE = KUBERNETES / "base", KUBERNETES / "example"
MANIFESTS = sorted(file for file in KUBERNETES.rglob("*.yaml") if file.name != "kustomization.yaml")
FOLDERS = sorted(file.parent for file in KUBERNETES.rglob("kustomization.yaml"))
APPLY_LIMIT = 262_144
"""Bytes of an object that kubectl can keep in its annotation when it applies on the client's side."""


def read(file):
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def generator():
    spec = importlib.util.spec_from_file_location("generate_kubernetes", KUBERNETES / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Schemas ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kubernetes", ["1.29", "1.37"])
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_an_api_server_takes_every_manifest(file, documents, refusals, kubernetes):
    """By the real schemas, of the oldest Kubernetes that has native sidecars by default and of a new one."""
    found = documents(file)
    assert found
    for document in found:
        assert refusals(document, kubernetes) == []


def test_every_kind_is_there(documents):
    """So that the test above has looked at each."""
    kinds = {document["kind"] for file in MANIFESTS for document in documents(file)}
    assert kinds == {"PodMonitor", "PrometheusRule", "ConfigMap", "PyTorchJob", "NetworkPolicy"}


def endpoint(document):
    return document["spec"]["podMetricsEndpoints"][0]


def master(document):
    return document["spec"]["pytorchReplicaSpecs"]["Master"]


MISTAKES = [
    ("podmonitor.yaml", endpoint, "honorLabels", "honourLabels"),
    ("podmonitor.yaml", lambda d: endpoint(d)["metricRelabelings"][0], "sourceLabels", "source_labels"),
    ("podmonitor.yaml", lambda d: d["metadata"], "labels", "label"),
    ("prometheusrule.yaml", lambda d: d["spec"]["groups"][0], "interval", "intervall"),
    ("prometheusrule.yaml", lambda d: d["spec"]["groups"][0]["rules"][0], "record", "recorded"),
    ("dashboards.yaml", lambda d: d, "data", "files"),
    ("networkpolicy.yaml", lambda d: d["spec"]["ingress"][0], "from", "sources"),
    ("pytorchjob.yaml", lambda d: d["spec"], "nprocPerNode", "nProcPerNode"),
    ("pytorchjob.yaml", lambda d: d["spec"]["runPolicy"], "cleanPodPolicy", "cleanPodPolicies"),
    ("pytorchjob.yaml", master, "replicas", "replica"),
    ("pytorchjob.yaml", lambda d: master(d)["template"]["spec"], "initContainers", "initContainer"),
    ("pytorchjob.yaml", lambda d: master(d)["template"]["spec"]["initContainers"][0], "restartPolicy", "restart"),
    ("pytorchjob.yaml", lambda d: master(d)["template"]["metadata"], "labels", "label"),
]


@pytest.mark.parametrize(("name", "part", "field", "misspelt"), MISTAKES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_misspelt_field_is_refused(name, part, field, misspelt, documents, refusals):
    """At any depth, in every kind: by its name."""
    (file,) = (one for one in MANIFESTS if one.name == name)
    document = copy.deepcopy(documents(file)[0])
    place = part(document)
    place[misspelt] = place.pop(field)
    assert any(misspelt in refusal for refusal in refusals(document))


WRONG = [
    ("podmonitor.yaml", endpoint, "interval", "ten seconds"),
    ("podmonitor.yaml", lambda d: endpoint(d)["metricRelabelings"][1], "action", "labeldelete"),
    ("prometheusrule.yaml", lambda d: d["spec"]["groups"][0]["rules"][0], "expr", None),
    ("pytorchjob.yaml", lambda d: d["spec"], "nprocPerNode", 8),
    ("pytorchjob.yaml", lambda d: d["spec"], "pytorchReplicaSpecs", None),
    ("pytorchjob.yaml", lambda d: master(d)["template"]["spec"]["containers"][0]["env"][2], "value", 9401),
]


@pytest.mark.parametrize(("name", "part", "field", "value"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_a_wrong_value_is_refused(name, part, field, value, documents, refusals):
    """A number for a text, a word that is none of the choices, a required field that is missing."""
    (file,) = (one for one in MANIFESTS if one.name == name)
    document = copy.deepcopy(documents(file)[0])
    if value is None:
        del part(document)[field]
    else:
        part(document)[field] = value
    assert refusals(document) != []


# Kustomize ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_kustomization_lists_what_is_in_its_folder(folder):
    """Each file, and no other."""
    listed = read(folder / "kustomization.yaml")["resources"]
    assert sorted(listed) == sorted(file.name for file in folder.glob("*.yaml") if file.name != "kustomization.yaml")


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_kustomize_builds_the_same_objects_in_the_namespace(folder, documents):
    """What `kubectl apply -k` would send."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kustomization = read(folder / "kustomization.yaml")
    expected = [document for name in kustomization["resources"] for document in documents(folder / name)]
    for document in expected:
        document["metadata"]["namespace"] = kustomization["namespace"]

    def by_name(objects):
        return {(one["kind"], one["metadata"]["name"]): one for one in objects}

    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(expected)


# What is generated --------------------------------------------------------------------------------------------------


def test_generated_manifests_are_what_the_generator_writes():
    """``make generate`` changes nothing."""
    written = generator().files()
    assert written == {name: (BASE / name).read_text(encoding="utf-8") for name in written}


def test_the_rules_are_the_labs_but_for_runbook_and_interval(manifest):
    """All groups in their order; every expression, label and text."""
    groups = manifest("PrometheusRule")["spec"]["groups"]
    lab = [group for name in ("recording", "alerts") for group in read(ROOT / f"prometheus/rules/{name}.yml")["groups"]]

    def bare(group):
        rules = copy.deepcopy(group["rules"])
        for rule in rules:
            rule.get("annotations", {}).pop("runbook_url", None)
        return group["name"], rules

    assert [bare(group) for group in groups] == [bare(group) for group in lab]
    (interval,) = {group["interval"] for group in groups}
    assert interval == endpoint(manifest("PodMonitor"))["interval"]


@pytest.mark.prometheus
def test_promtool_accepts_the_rules_of_the_manifest(manifest, tmp_path):
    """The operator hands the spec to Prometheus as it stands."""
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(manifest("PrometheusRule")["spec"]), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout + done.stderr


def test_nothing_in_a_cluster_leads_to_the_lab(manifest):
    """Neither a runbook nor a dashboard; and every runbook that is linked is there to be published."""
    for file in BASE.glob("*.yaml"):
        text = file.read_text(encoding="utf-8")
        assert "127.0.0.1" not in text
        assert "${console}" not in text
    alerts = [
        rule for group in manifest("PrometheusRule")["spec"]["groups"] for rule in group["rules"] if "alert" in rule
    ]
    assert alerts
    for rule in alerts:
        name = rule["annotations"]["runbook_url"].rpartition("/")[2]
        assert name == rule["alert"]
        assert (ROOT / f"docs/runbooks/{name}.md").is_file()


def test_runbooks_go_where_the_user_says():
    """In alerts and in dashboards."""
    written = generator().files("https://git.example/runbooks/{alert}.md")
    assert "runbook_url: https://git.example/runbooks/TrainingRankStraggling.md\n" in written["prometheusrule.yaml"]
    assert '"url": "https://git.example/runbooks/${__value.text}.md"' in written["dashboards.yaml"]
    assert "runbooks.example" not in "".join(written.values())


IN_A_CLUSTER = [content for name, content in DASHBOARDS.items() if name != "practice"]


def dashboards(documents):
    for document in documents(BASE / "dashboards.yaml"):
        ((name, text),) = document["data"].items()
        yield document, name, json.loads(text)


def test_every_dashboard_is_in_a_config_map_that_grafana_finds(documents):
    """By the label; small enough to be applied; with its own uid and file name."""
    found = list(dashboards(documents))
    assert [content["uid"] for _, _, content in found] == [lab["uid"] for lab in IN_A_CLUSTER]
    assert len({name for _, name, _ in found}) == len(found)
    for document, _, _ in found:
        assert document["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(document).encode()) < APPLY_LIMIT


def test_a_clusters_dashboard_loses_no_query_and_has_no_hole(documents):
    """What needed the lab, buttons and diagnosis among it, is gone with its variable; its neighbour has the place."""
    for (_, _, content), lab in zip(dashboards(documents), IN_A_CLUSTER, strict=True):
        assert [p["targets"] for p in content["panels"] if "targets" in p] == [
            p["targets"]
            for p in lab["panels"]
            if "targets" in p and p["type"] != "canvas" and p["title"] != "Diagnosis"
        ]
        boxes = [panel["gridPos"] for panel in content["panels"]]
        assert sum(b["w"] * b["h"] for b in boxes) == 24 * max(b["y"] + b["h"] for b in boxes)
        variables = {variable["name"] for variable in content["templating"]["list"]}
        used = set(re.findall(r"\$\{?([^\W\d]\w*)", json.dumps(content["panels"])))
        assert {name for name in used if not name.startswith("__")} <= variables


# How the parts fit --------------------------------------------------------------------------------------------------


def test_the_pod_monitor_relabels_as_the_lab_does(manifest):
    """In the operator's spelling; the exporter's labels win over the target's."""
    (lab,) = (
        one for one in read(ROOT / "prometheus/prometheus.yml")["scrape_configs"] if one["job_name"] == "stepscope"
    )

    def camel(rule):
        return {re.sub(r"_(\w)", lambda m: m[1].upper(), key): value for key, value in rule.items()}

    ours = endpoint(manifest("PodMonitor"))
    assert ours["metricRelabelings"] == [camel(rule) for rule in lab["metric_relabel_configs"]]
    assert ours["honorLabels"] is True
    assert "podTargetLabels" not in manifest("PodMonitor")["spec"]


def test_the_pod_monitor_finds_the_examples_pods(manifest):
    """Selector and labels, the port's name and the port that the sidecar serves."""
    monitor, job = manifest("PodMonitor"), manifest("PyTorchJob")
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        template = replica["template"]
        assert template["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
        (sidecar,) = template["spec"]["initContainers"]
        (port,) = sidecar["ports"]
        assert port["name"] == endpoint(monitor)["port"]
        assert sidecar["command"][:2] == ["stepscope", "serve"]
        options = parser().parse_args(sidecar["command"][1:])  # as the command itself would read them
        assert (options.port, options.address) == (port["containerPort"], "0.0.0.0")


def test_the_sidecar_serves_as_many_ranks_as_a_pod_has(manifest):
    """Processes, GPUs and what `serve` looks for are the same number; the ranks' ports follow its own."""
    spec = manifest("PyTorchJob")["spec"]
    assert spec["pytorchReplicaSpecs"].keys() == {"Master", "Worker"}
    assert spec["pytorchReplicaSpecs"]["Master"]["replicas"] == 1
    for replica in spec["pytorchReplicaSpecs"].values():
        (sidecar,) = replica["template"]["spec"]["initContainers"]
        (trainer,) = replica["template"]["spec"]["containers"]
        assert sidecar["restartPolicy"] == "Always"
        ranks = sidecar["command"][sidecar["command"].index("--ranks") + 1]
        assert ranks == spec["nprocPerNode"] == str(trainer["resources"]["limits"]["nvidia.com/gpu"])
        trainer_env, sidecar_env = ({one["name"]: one for one in c["env"]} for c in (trainer, sidecar))
        assert trainer_env["STEPSCOPE_METRICS_PORT"]["value"] == "9401"
        assert trainer_env["STEPSCOPE_METRICS_ADDRESS"]["value"] == "0.0.0.0"
        for name in ("STEPSCOPE_RUN", "STEPSCOPE_NODE"):
            assert trainer_env[name] == sidecar_env[name]
        assert trainer_env["STEPSCOPE_NODE"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
