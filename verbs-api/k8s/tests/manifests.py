"""Validates manifests of Kubernetes against the schemas of kubernetes-validate.

For each object of the files it prints a line, and for each container of the device plugin its
arguments in JSON. It exits with 1 if an object is not valid, or of a kind that it does not know.
"""

import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

# The oldest and the newest release of the package, and the first one in which CDI devices of
# device plugins are stable.
RELEASES = ["1.25", "1.31", "1.37"]

TEMPLATE = {"type": "object", "required": ["spec"]}


def closed(properties, required):
    """Returns the schema of an object that has these members and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def custom(spec):
    """Returns the schema of a custom resource."""
    head = {"apiVersion": {}, "kind": {}, "metadata": closed({"name": {"type": "string"}}, ["name"])}
    return closed({**head, "spec": spec}, ["apiVersion", "kind", "metadata", "spec"])


REPLICAS = closed({"replicas": {"type": "integer"}, "template": TEMPLATE}, ["template"])

# The parts of these kinds that the examples use. Pod templates in them are validated as such.
CUSTOM = {
    ("kubeflow.org/v2beta1", "MPIJob"): custom(
        closed(
            {
                "slotsPerWorker": {"type": "integer"},
                "runPolicy": closed({"cleanPodPolicy": {"enum": ["None", "Running", "All"]}}, []),
                "sshAuthMountPath": {"type": "string"},
                "mpiReplicaSpecs": closed({"Launcher": REPLICAS, "Worker": REPLICAS}, ["Launcher"]),
            },
            ["mpiReplicaSpecs"],
        )
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): custom(
        closed(
            {
                "replicas": {"type": "integer"},
                "leaderWorkerTemplate": closed(
                    {
                        "size": {"type": "integer"},
                        "leaderTemplate": TEMPLATE,
                        "workerTemplate": TEMPLATE,
                    },
                    ["workerTemplate"],
                ),
            },
            ["leaderWorkerTemplate"],
        )
    ),
}

KUSTOMIZATION = closed(
    {
        "apiVersion": {"const": "kustomize.config.k8s.io/v1beta1"},
        "kind": {"const": "Kustomization"},
        "namespace": {"type": "string"},
        "resources": {"type": "array", "items": {"type": "string"}},
        "images": {
            "type": "array",
            "items": closed({name: {"type": "string"} for name in ["name", "newName", "newTag"]}, ["name"]),
        },
        "patches": {
            "type": "array",
            "items": closed(
                {
                    "target": closed({"kind": {"type": "string"}, "name": {"type": "string"}}, ["kind"]),
                    "patch": {"type": "string"},
                },
                ["target", "patch"],
            ),
        },
    },
    ["apiVersion", "kind", "resources"],
)

GENERIC_DEVICE = closed(
    {
        "name": {"type": "string"},
        "groups": {
            "type": "array",
            "minItems": 1,
            "items": closed(
                {
                    "count": {"type": "integer", "minimum": 1},
                    "paths": {
                        "type": "array",
                        "minItems": 1,
                        "items": closed(
                            {
                                "path": {"type": "string"},
                                "mountPath": {"type": "string"},
                                "type": {"enum": ["Device", "Mount"]},
                                "readOnly": {"type": "boolean"},
                            },
                            ["path"],
                        ),
                    },
                },
                ["paths"],
            ),
        },
    },
    ["name", "groups"],
)


def core(document):
    """Validates an object of Kubernetes itself, with every release."""
    for release in RELEASES:
        kubernetes_validate.validate(document, release, strict=True)


def templates(value):
    """Yields the pod templates in a custom resource."""
    if not isinstance(value, dict):
        return
    for name, member in value.items():
        if name == "template" or name.endswith("Template") and "spec" in member:
            yield member
        else:
            yield from templates(member)


def documents(path):
    """Returns the objects of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def patched(document, patch):
    """Applies a patch of which each step adds a member to a list."""
    for step in yaml.safe_load(patch):
        assert step["op"] == "add" and step["path"].endswith("/-"), step
        value = document
        for part in step["path"].split("/")[1:-1]:
            value = value[int(part) if isinstance(value, list) else part]
        value.append(step["value"])


def kustomized(path):
    """Validates a kustomization and returns the objects that it makes, images left as they are."""
    (kustomization,) = documents(path)
    jsonschema.validate(kustomization, KUSTOMIZATION)
    made = []
    for name in kustomization["resources"]:
        resource = path.parent / name
        made += kustomized(resource / path.name) if resource.is_dir() else documents(resource)
    for patch in kustomization.get("patches", []):
        target = patch["target"]
        targets = [
            document
            for document in made
            if document["kind"] == target["kind"]
            and target.get("name", document["metadata"]["name"]) == document["metadata"]["name"]
        ]
        assert targets, f"no object for the patch of {target}"
        for document in targets:
            patched(document, patch["patch"])
    names = {container["image"] for document in made for container in containers(document)}
    for image in kustomization.get("images", []):
        assert image["name"] in names, f"no container has the image {image['name']}"
    return made


def containers(document):
    """Returns all containers of a DaemonSet."""
    spec = document["spec"]["template"]["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def arguments(document):
    """Prints the arguments of the device plugin, and validates those of the generic one."""
    if document["kind"] != "DaemonSet":
        return
    for container in containers(document):
        args = container.get("args", [])
        if "device-plugin" in args:
            print("args", json.dumps(args))
        for option, value in zip(args, args[1:]):
            if option == "--device":
                jsonschema.validate(yaml.safe_load(value), GENERIC_DEVICE)


def validated(document):
    """Validates an object of any known kind."""
    schema = CUSTOM.get((document["apiVersion"], document["kind"]))
    if schema is None:
        core(document)
        arguments(document)
        return
    jsonschema.validate(document, schema)
    found = list(templates(document["spec"]))
    assert found, "no pod template"
    for template in found:
        metadata = {"name": "template"}
        core({"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template})


def main():
    failed = False
    for path in map(pathlib.Path, sys.argv[1:]):
        try:
            made = kustomized(path) if path.name == "kustomization.yaml" else documents(path)
            assert made, "no object"
            for document in made:
                validated(document)
                print("valid", path, document["kind"], document["metadata"]["name"])
        except Exception as error:
            failed = True
            message = getattr(error, "message", str(error))
            where = "/".join(map(str, getattr(error, "absolute_path", [])))
            print("INVALID", path, where, type(error).__name__, message)
    sys.exit(failed)


main()
