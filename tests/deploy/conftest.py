"""What the deployment tests share: the schemas that an API server would check with, and a ``Prometheus`` of one's own."""

import json
import subprocess
from importlib.resources import files
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import requests
import yaml
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator
from kubeflow.training import models as kubeflow
from kubeflow.training.configuration import Configuration
from referencing import Registry, Resource

from running_lab import free_ports, poll_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


# Schemas ------------------------------------------------------------------------------------------------------------


def core(kubernetes):
    """Kubernetes' own definitions, which refuse unknown fields, and their address."""
    folder = files(kubernetes_validate) / "kubernetes-json-schema" / f"v{kubernetes}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))
    address = definitions["$id"]
    return Registry().with_resource(address, Resource.from_contents(definitions)), f"{address}#/$defs/"


def closed(schema):
    """The schema with unknown fields refused, as an API server does with a structural schema.

    The models say "this, or null" of every optional field; in a manifest it is this, or not there.
    """
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    match schema.get("anyOf"):
        case [only, {"type": "null"}]:
            return closed(only)
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def kubeflow_schema(kind, core_address):
    """From the training operator's generated models, which carry each field's name, type and whether it is required."""
    plain = {"str": "string", "int": "integer", "bool": "boolean"}
    if kind in plain:
        return {"type": plain[kind]}
    if kind == "datetime":
        return {"type": "string", "format": "date-time"}
    if kind.startswith("dict(str, "):
        return {"type": "object", "additionalProperties": kubeflow_schema(kind[10:-1], core_address)}
    if kind.startswith("list["):
        return {"type": "array", "items": kubeflow_schema(kind[5:-1], core_address)}
    if not kind.startswith("KubeflowOrg"):
        group = "apimachinery.pkg.apis.meta" if kind == "V1ObjectMeta" else "api.core"
        return {"$ref": f"{core_address}io.k8s.{group}.v1.{kind.removeprefix('V1')}"}
    model = getattr(kubeflow, kind)
    return {
        "type": "object",
        "properties": {model.attribute_map[name]: kubeflow_schema(of, core_address) for name, of in model.openapi_types.items()},
        "required": [model.attribute_map[name] for name in model.openapi_types if refuses_none(model, name)],
        "additionalProperties": False,
    }  # fmt: skip


def refuses_none(model, name):
    empty = model.__new__(model)
    empty.local_vars_configuration = Configuration()
    try:
        setattr(empty, name, None)
    except ValueError:
        return True
    return False


def schema_of(document, kubernetes):
    registry, address = core(kubernetes)
    match document["apiVersion"], document["kind"]:
        case "v1", kind:
            return registry, {"$ref": f"{address}io.k8s.api.core.v1.{kind}"}
        case "networking.k8s.io/v1", kind:
            return registry, {"$ref": f"{address}io.k8s.api.networking.v1.{kind}"}
        case "monitoring.coreos.com/v1", kind:
            return registry, closed(getattr(prometheus_operator, kind).model_json_schema(by_alias=True))
        case "kubeflow.org/v1", "PyTorchJob":
            return registry, kubeflow_schema("KubeflowOrgV1PyTorchJob", address)
    raise AssertionError(f"no schema for {document['apiVersion']} {document['kind']}")


def refusals(document, kubernetes="1.37"):
    """What an API server of that version would say against the document; nothing if it would take it."""
    registry, schema = schema_of(document, kubernetes)
    errors = jsonschema.Draft202012Validator(schema, registry=registry).iter_errors(document)
    return [f"{error.json_path}: {error.message[:300]}" for error in errors]


@pytest.fixture(scope="session", name="refusals")
def refusals_fixture():
    return refusals


def documents(file):
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


@pytest.fixture(scope="session", name="documents")
def documents_fixture():
    """All objects in a file."""
    return documents


@pytest.fixture(scope="session")
def manifest():
    """The only object of a kind in deploy/kubernetes."""

    def find(kind):
        every = [one for file in (DEPLOY / "kubernetes").rglob("*.yaml") for one in documents(file)]
        found = [one for one in every if one["kind"] == kind]
        assert len(found) == 1, (kind, len(found))
        return found[0]

    return find


# Programs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", name="free_ports")
def free_ports_fixture():
    return free_ports


def answers(url):
    try:
        return requests.get(url, timeout=2).status_code == 200
    except requests.RequestException:
        return False


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a program, waits until its URL answers, and ends it after the module's tests, before those it sends to."""
    folder, running = tmp_path_factory.mktemp("programs"), []

    def begin(command, ready):
        log = folder / f"{len(running)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        running.append(process)
        poll_until(lambda: answers(ready) or process.poll() is not None, f"{command[0]} answers", 60)
        assert process.poll() is None, log.read_text()[-2000:]
        return process

    yield begin
    for process in reversed(running):
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def query(url, expr, at=None):
    """Labels and values of an instant query."""
    asked = {"query": expr, **({"time": at} if at else {})}
    answer = requests.post(url + "/api/v1/query", data=asked, timeout=10).json()
    assert answer["status"] == "success", answer
    return [(sample["metric"], float(sample["value"][1])) for sample in answer["data"]["result"]]


@pytest.fixture(scope="session", name="query")
def query_fixture():
    return query
