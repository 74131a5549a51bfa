"""Validates the Kubernetes manifests on the standard input, strictly: unknown fields are errors.

Prints the kind and name of each valid one. Exits with 1 at the first invalid one, after a line that names it.
"""

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


def validate_keda(document):
    schema = strict(getattr(keda, document["kind"]).model_json_schema())
    jsonschema.validate(document, schema)
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


for document in yaml.safe_load_all(sys.stdin):
    name = f"{document.get('kind')}/{document.get('metadata', {}).get('name')}"
    try:
        validate(document)
    except (KeyError, jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        print(f"{name}: {getattr(error, 'message', None) or repr(error)}")
        sys.exit(1)
    print(name)
