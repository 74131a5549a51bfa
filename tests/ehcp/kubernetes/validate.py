"""Validates Kubernetes manifests, strictly: unknown fields are errors.

Reads a JSON array of YAML texts from the standard input. Writes a JSON array with the result of each text: the kinds and
names of its manifests if all of them are valid, otherwise the first error.
"""

import functools
import json
import sys

import jsonschema
import kubernetes_validate
import yaml
from cloudcoil.models.keda import v1alpha1 as keda

# The oldest version that KEDA supports, and the newest one of the package.
KUBERNETES = ["1.30", "1.37"]

# The settings of the scaler `azure-eventhub` with `podIdentity`, which KEDA's schema does not list: a misspelled one is
# ignored. From the fields of `eventHubMetadata` and `EventHubInfo` in kedacore/keda, pkg/scalers.
NEEDED = {"checkpointStrategy", "eventHubNamespace", "eventHubName", "storageAccountName", "blobContainer"}
SETTINGS = NEEDED | {
    "activationUnprocessedEventThreshold",
    "cloud",
    "consumerGroup",
    "endpointSuffix",
    "stalePartitionInfoThreshold",
    "storageEndpointSuffix",
    "unprocessedEventThreshold",
}


def strict(schema):
    """Forbids unknown fields in every object whose fields are known, and null, which YAML has for empty values."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(part) for key, part in schema.items()}
    if schema.get("type") == "object" and schema.get("properties"):
        schema.setdefault("additionalProperties", False)
    if isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [part for part in schema["anyOf"] if part != {"type": "null"}]
    return schema


@functools.cache
def keda_schema(kind):
    return strict(getattr(keda, kind).model_json_schema())


def validate_keda(document):
    jsonschema.validate(document, keda_schema(document["kind"]))
    for trigger in document["spec"].get("triggers", []):
        found = set(trigger["metadata"])
        if trigger["type"] != "azure-eventhub" or found - SETTINGS or NEEDED - found:
            wrong = sorted(found - SETTINGS), sorted(NEEDED - found)
            raise jsonschema.ValidationError(f"{trigger['type']}: unknown and missing settings: {wrong}")


def validate(document):
    if document["apiVersion"].startswith("keda.sh/"):
        validate_keda(document)
        return
    for version in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


def validated(text):
    names = []
    for document in yaml.safe_load_all(text):
        names.append(f"{document.get('kind')}/{document.get('metadata', {}).get('name')}")
        try:
            validate(document)
        except (AttributeError, KeyError, jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
            return {"Err": f"{names[-1]}: {getattr(error, 'message', None) or repr(error)}"}
    return {"Ok": names}


json.dump([validated(text) for text in json.load(sys.stdin)], sys.stdout)
